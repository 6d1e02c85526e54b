"""One small network in every class of module that can run it, for faults that might be in any of them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from nets import CONTEXTS, Batches

KINDS = ("Module", "BucketingModule", "SequentialModule", "MutableModule", "SVRGModule")
every_kind = pytest.mark.parametrize("kind", KINDS)
every_number_of_contexts = pytest.mark.parametrize("contexts", [1, 2])
WIDTH, CLASSES = 4, 3
LABEL = ("softmax_label",)


def symbol(name: str = "fc", **loss: Any) -> Any:
    """data (rows, 4) -> softmax over 3 classes."""
    scores = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=CLASSES, name=name)
    return mx.sym.SoftmaxOutput(scores, name="softmax", **loss)


def make(kind: str, net: Any = None, contexts: int = 1, data: Any = ("data",), label: Any = LABEL, **more: Any) -> Any:
    """A module of this kind; a BucketingModule has the same network in every bucket."""
    net, where = symbol() if net is None else net, CONTEXTS[:contexts]
    if kind == "BucketingModule":
        return bl.BucketingModule(lambda key: (net, data, label), 0, context=where, **more)
    if kind == "SequentialModule":
        return bl.SequentialModule().add(bl.Module(net, data, label, context=where, **more), take_labels=True)
    if kind == "SVRGModule":
        more["update_freq"] = 1
    if kind == "MutableModule":
        more["grow"] = True
    return getattr(bl, kind)(net, data, label, context=where, **more)


def shapes(rows: int = 4) -> tuple[Any, Any]:
    return [("data", (rows, WIDTH))], [("softmax_label", (rows,))]


def batch(rows: int = 4, seed: int = 0, key: Any = 0, pad: Any = 0, **changed: Any) -> Any:
    """A batch with all that a batch can say; ``changed`` are attributes with other values."""
    random = np.random.RandomState(seed)
    data, label = random.uniform(-1, 1, (rows, WIDTH)), random.randint(0, CLASSES, rows)
    made = mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(label)], pad=pad, bucket_key=key)
    made.provide_data, made.provide_label = shapes(rows)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def start(seed: int = 7, name: str = "fc") -> dict[str, Any]:
    """Values of the network's parameters."""
    random = np.random.RandomState(seed)
    return {
        f"{name}_weight": mx.nd.array(random.uniform(-1, 1, (CLASSES, WIDTH))),
        f"{name}_bias": mx.nd.array(random.uniform(-1, 1, CLASSES)),
    }


def bound(kind: str, rows: int = 4, contexts: int = 1, values: Any = None, bind: Any = None, **more: Any) -> Any:
    """Bound to these rows, with parameters."""
    made = make(kind, contexts=contexts, **more)
    made.bind(*shapes(rows), **(bind or {}))
    made.init_params(arg_params=start() if values is None else values, aux_params={})
    return made


def ready(kind: str, rows: int = 4, contexts: int = 1, kvstore: Any = "local", **more: Any) -> Any:
    """Ready to train with momentum; an SVRGModule has its first full gradients."""
    made = bound(kind, rows, contexts, **more)
    made.init_optimizer(kvstore=kvstore, optimizer_params={"learning_rate": 0.2, "momentum": 0.9})
    if kind == "SVRGModule":
        made.update_full_grads(Batches([batch(rows, seed=11)]))
    return made


def step(module: Any, given: Any) -> None:
    module.forward_backward(given)
    module.update()


def values(module: Any) -> dict[str, np.ndarray]:
    """Every parameter and auxiliary state as numpy arrays of their own."""
    return {name: value.asnumpy() for table in module.get_params() for name, value in table.items()}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def inner(module: Any) -> Any:
    """The Module that holds the executors."""
    module = module._modules[0] if hasattr(module, "_modules") else module
    return getattr(module, "_curr_module", module)


@contextlib.contextmanager
def refused(*words: str, kind: Any = (ValueError, TypeError, RuntimeError)) -> Any:
    """What is inside raises one of our kinds of error, in whose own words all of these are; no C++ text alone."""
    with pytest.raises(kind) as caught:
        yield
    assert isinstance(caught.value, bl.errors.BucketlabError) or type(caught.value) in (ValueError, TypeError)
    message = str(caught.value)
    assert all(word in message for word in words), f"{words} are not all in {message!r}"
    assert "Stack trace" not in message and "simple_bind error" not in message
