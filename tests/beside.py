"""One program run on mx.mod and on bucketlab, from the same seeds: what it gives has to be the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import bucketlab as bl
from bucketlab import mx
from nets import CONTEXTS

LIBRARIES = (mx.mod, bl)
ROWS, WIDTH, CLASSES = 8, 5, 3


def mlp(dtype: str | None = None, **attributes: Any) -> Any:
    """data (rows, 5) -> tanh of 4 -> softmax over 3, computed in ``dtype``; ``attributes`` are of the first bias."""
    data = mx.sym.Variable("data")
    data = data if dtype is None else mx.sym.Cast(data, dtype=dtype)
    bias = mx.sym.Variable("fc1_bias", **attributes)
    hidden = mx.sym.FullyConnected(data, num_hidden=4, name="fc1", bias=bias)
    scores = mx.sym.FullyConnected(mx.sym.Activation(hidden, act_type="tanh"), num_hidden=CLASSES, name="fc2")
    return mx.sym.SoftmaxOutput(scores if dtype is None else mx.sym.Cast(scores, dtype="float32"), name="softmax")


def batches(count: int = 4, rows: int = ROWS, seed: int = 0, shape: Any = None, scale: float = 1, **more: Any) -> Any:
    """Batches of ``rows`` with data of any ``shape`` (None: rows times 5) and labels for every row."""
    random, made = np.random.RandomState(seed), []
    for _ in range(count):
        data = mx.nd.array(random.uniform(-scale, scale, shape or (rows, WIDTH)))
        label = mx.nd.array(random.randint(0, CLASSES, rows))
        names = {"provide_data": [("data", data.shape)], "provide_label": [("softmax_label", label.shape)]}
        made.append(mx.io.DataBatch([data], [label], pad=0, **names, **more))
    return made


def seed(number: int = 3) -> None:
    mx.random.seed(number)
    np.random.seed(number)


def module(
    library: Any,
    net: Any,
    contexts: int = 1,
    data: Any = (("data", (ROWS, WIDTH)),),
    label: Any = (("softmax_label", (ROWS,)),),
    initializer: Any = None,
    bind: Any = None,
    **more: Any,
) -> Any:
    """A Module, bound and initialised."""
    made = library.Module(net, context=CONTEXTS[:contexts], **more)
    made.bind(list(data), list(label), **(bind or {}))
    seed()
    made.init_params(initializer or mx.init.Xavier())
    return made


def train(made: Any, some: Any, rows_of: Any = None) -> Any:
    """A step for each batch, after ``prepare`` with the rows of sparse parameters that ``rows_of`` names."""
    for given in some:
        if rows_of:
            made.prepare(given, sparse_row_id_fn=rows_of)
        made.forward_backward(given)
        made.update()
    return made


def values(made: Any) -> dict[str, np.ndarray]:
    """Every parameter and auxiliary state."""
    # BatchNorm changes its running statistics without the engine's knowledge: mx.mod reads them too early.
    mx.nd.waitall()
    return {name: value.asnumpy() for table in made.get_params() for name, value in table.items()}


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
        assert np.asarray(ours[name]).dtype == np.asarray(value).dtype, name


def side_by_side(run: Callable[[Any], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What a program gives with either library, compared, and returned."""
    theirs, ours = (run(library) for library in LIBRARIES)
    assert_same(ours, theirs)
    return theirs
