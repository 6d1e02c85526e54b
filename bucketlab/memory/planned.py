"""What a forecast is of: a model that may not exist yet, and the shapes of the batches that it will get."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import BucketError, BucketlabError, ShapeError
from bucketlab.memory.kept import Training
from bucketlab.module.module import contexts_of
from bucketlab.shapes import BatchShapes, DataDesc, parse
from bucketlab.slicing import check_workload

__all__ = ["Bucket", "Model", "make_bucket", "read_batches", "read_model"]

Generate = Callable[[Hashable], tuple[Any, list[str], list[str]]]

_MODELS = (
    "a Module or BucketingModule (ours or mx.mod's), a function sym_gen(key) -> (symbol, data_names, label_names), "
    "or a Symbol"
)
_BATCHES = (
    "an iterator with shapes() such as BucketIter, a BucketPlan, a mapping of key to (data_shapes, label_shapes), "
    "a pair (data_shapes, label_shapes) for a single symbol, or batches"
)


@dataclass(frozen=True)
class Model:
    """Everything that decides what executors a run binds. ``generate`` gives a bucket's symbol and names."""

    generate: Generate
    bucketed: bool
    contexts: tuple[Any, ...]
    workload: tuple[float, ...]
    training: Training
    default_key: Hashable = None
    split: str = "balanced"
    working_memory: str = "shared"
    host: str = "cpu"
    for_training: bool = True
    inputs_need_grad: bool = False
    grad_req: Any = "write"
    fixed: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    group2ctxs: Any = None
    bound: Mapping[Hashable, tuple[Any, Any]] | None = None

    @property
    def context_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.contexts))

    def arguments(self, key: Hashable) -> dict[str, Any]:
        """What an executor group of a bucket is made with, besides shapes and contexts."""
        symbol, data_names, label_names = self.generate(key)
        given = symbol.list_arguments()
        inputs = {*data_names, *label_names, *self.states}
        request = self.grad_req
        if isinstance(request, Mapping):
            request = {name: value for name, value in request.items() if name in given}
        return {
            "symbol": symbol,
            "workload": self.workload,
            "param_names": [name for name in given if name not in inputs],
            "for_training": self.for_training,
            "inputs_need_grad": self.inputs_need_grad,
            "fixed_param_names": [name for name in self.fixed if name in given],
            "grad_req": request,
            "state_names": list(self.states),
            "group2ctxs": self.group2ctxs,
            "split": self.split,
        }


@dataclass(frozen=True)
class Bucket:
    """One set of shapes that a bucket's batches have; a bucket may come with several."""

    key: Hashable
    shapes: BatchShapes

    @property
    def rows(self) -> int | None:
        """Rows of a whole batch; None where nothing counts rows."""
        if not self.shapes.per_context:
            return self.shapes.rows
        counts = [self.shapes.context_rows(i) for i in range(len(self.shapes.data))]
        return None if None in counts else sum(count or 0 for count in counts)


def read_model(
    model: Any, batches: Any, contexts: Any, workloads: Any, optimizer: Any, kvstore: Any, **given: Any
) -> Model:
    """The model as it will run. What is ``given`` as None is as the module says, and else as usual.

    ``kvstore`` counts where ``optimizer`` is given, or the module has none yet.
    """
    found = _found(model, batches)
    found.update((name, value) for name, value in given.items() if value is not None)
    if found.get("working_memory", "shared") not in ("shared", "arena"):
        raise ValueError(f"working_memory is {found['working_memory']!r}; choose 'shared' or 'arena'")
    where, shares = found.pop("contexts", None), found.pop("workload", None)
    if contexts is None and where is None:
        where = shares = getattr(batches, "workloads", None)
        where = None if where is None else len(where)
    if contexts is not None:
        where, shares = contexts, None
    if isinstance(where, (int, np.integer)) and not isinstance(where, bool):
        where = [mx.cpu(i) for i in range(int(where))]
    homes = tuple(contexts_of(mx.cpu() if where is None else where))
    shares = shares if workloads is None else workloads
    workload = check_workload([1] * len(homes) if shares is None else list(shares), len(homes))
    training, compressed = found.pop("training", None), found.pop("compressed", False)
    if not found.get("for_training", True):
        training = Training(None, None)
    elif training is None or optimizer is not None:
        training = Training(_optimizer("sgd" if optimizer is None else optimizer), kvstore, compressed)
    found.setdefault("default_key", getattr(batches, "default_bucket_key", None))
    return Model(contexts=homes, workload=workload, training=training, **found)


def _optimizer(given: Any) -> Any:
    """An optimizer from an instance, a name, or a pair of name and settings."""
    name, settings = given if isinstance(given, tuple) and len(given) == 2 else (given, ())
    if isinstance(name, str):
        return mx.optimizer.create(name, **dict(settings))
    if not isinstance(given, mx.optimizer.Optimizer):
        raise TypeError(f"optimizer is {given!r}; expected a name, (name, settings), or an mx.optimizer.Optimizer")
    return given


def _found(model: Any, batches: Any) -> dict[str, Any]:
    if isinstance(model, mx.sym.Symbol):
        pair = (getattr(batches, "provide_data", None), getattr(batches, "provide_label", None))
        data, label = pair if pair[0] else _pair(batches)
        names = [[entry[0] for entry in descs or ()] for descs in (data, label)]
        return {"generate": _fixed(model, *names), "bucketed": False}
    if getattr(model, "_sym_gen", None) is not None:
        return {**_of_module(model), "generate": _generator(model), "bucketed": True,
                "default_key": model._default_bucket_key}  # fmt: skip
    if getattr(model, "_symbol", None) is not None and hasattr(model, "_data_names"):
        generate = _fixed(model._symbol, model._data_names, model._label_names)
        return {**_of_module(model), "generate": generate, "bucketed": False}
    if callable(model) and not hasattr(model, "bind"):
        return {"generate": _remembered(model), "bucketed": True}
    several = "; of a SequentialModule forecast each module" if hasattr(model, "_modules") else ""
    raise TypeError(f"forecast takes {_MODELS}; given {type(model).__name__}{several}")


def _of_module(module: Any) -> dict[str, Any]:
    theirs = not type(module).__module__.startswith("bucketlab") and not hasattr(module, "_split")
    inner = getattr(module, "_curr_module", None) or module
    found: dict[str, Any] = {
        "contexts": module._context,
        "workload": module._work_load_list,
        "split": "mxnet" if theirs else module._split,
        "working_memory": getattr(module, "_options", {}).get("working_memory", "shared"),
        "host": getattr(inner, "_host", "cpu"),
        "fixed": tuple(module._fixed_param_names or ()),
        "states": tuple(module._state_names or ()),
        "group2ctxs": getattr(module, "_group2ctxs", None),
        "compressed": bool(getattr(module, "_compression_params", None)),
    }
    if module.binded:
        buckets = getattr(module, "_buckets", None) or {None: module}
        found["for_training"] = module.for_training
        found["inputs_need_grad"] = module.inputs_need_grad
        found["grad_req"] = module._grad_req or "write"
        found["bound"] = {key: (m.data_shapes, m.label_shapes) for key, m in buckets.items() if m.binded}
    if module.optimizer_initialized:
        found["training"] = Training(inner._optimizer, _kvstore_of(inner), found["compressed"])
    return found


def _kvstore_of(module: Any) -> Any:
    exchange = getattr(getattr(module, "_update", None), "exchange", None)
    if exchange is not None:
        return exchange.order or exchange.kvstore
    return getattr(module._kvstore, "type", None)


def _fixed(symbol: Any, data_names: Iterable[str], label_names: Iterable[str]) -> Generate:
    made = (symbol, list(data_names or ()), list(label_names or ()))
    return lambda key: made


def _generator(module: Any) -> Generate:
    own = getattr(module, "_generate", None)
    return own if own is not None else _remembered(module._sym_gen)


def _remembered(sym_gen: Any) -> Generate:
    """A user's sym_gen as BucketingModule calls it: once for each key, with automatic names starting anew."""
    made: dict[Hashable, tuple[Any, list[str], list[str]]] = {}

    def generate(key: Hashable) -> tuple[Any, list[str], list[str]]:
        if key not in made:
            with mx.name.NameManager():
                result = sym_gen(key)
            if not isinstance(result, tuple) or len(result) != 3:
                raise BucketError(f"sym_gen({key!r}) returned {result!r}; expected (symbol, data_names, label_names)")
            symbol, data_names, label_names = result
            made[key] = (symbol, list(data_names or ()), list(label_names or ()))
        return made[key]

    return generate


def read_batches(batches: Any, model: Model) -> list[Bucket]:
    """Each bucket with each set of shapes that it comes in, in the order given, the default bucket first."""
    pairs = list(_pairs(batches, model))
    if not pairs:
        raise BucketError(f"there are no batches to forecast for; give {_BATCHES}")
    found: dict[Any, Bucket] = {}
    for key, data, label in pairs:
        bucket = make_bucket(model, key, data, label)
        found.setdefault((key, bucket.shapes.key), bucket)
    first = model.default_key
    return sorted(found.values(), key=lambda bucket: bucket.key != first if first is not None else False)


def make_bucket(model: Model, key: Hashable, data: Any, label: Any) -> Bucket:
    """A bucket of these shapes; what does not fit is refused naming the bucket."""
    try:
        _, data_names, label_names = model.generate(key)
        return Bucket(key, parse(data_names, label_names, data, label, len(model.contexts)))
    except BucketlabError as error:
        raise type(error)(f"{_named(key)}{error}") from error


def _named(key: Hashable) -> str:
    return "" if key is None else f"bucket {key!r}: "


def _pairs(batches: Any, model: Model) -> Iterable[tuple[Hashable, Any, Any]]:
    if batches is None:
        if model.bound is None:
            raise BucketError(f"nothing is bound and no batches are given; give {_BATCHES}")
        return [(key, *shapes) for key, shapes in model.bound.items()]
    if isinstance(batches, Mapping):
        return [(key, *_pair(shapes)) for key, shapes in batches.items()]
    if callable(getattr(batches, "shapes", None)):
        return [(key, *shapes) for key, shapes in batches.shapes().items()]
    if hasattr(batches, "bind_order") and hasattr(batches, "batch_sizes"):
        return _of_plan(batches, model)
    if not model.bucketed and getattr(batches, "provide_data", None):
        return [(None, batches.provide_data, batches.provide_label)]
    if not model.bucketed and isinstance(batches, tuple) and len(batches) == 2 and not hasattr(batches[0], "data"):
        return [(None, *_pair(batches))]
    return _of_batches(batches, model)


def _pair(shapes: Any) -> tuple[Any, Any]:
    if not isinstance(shapes, (tuple, list)) or len(shapes) != 2:
        raise ShapeError(f"the shapes of a bucket are {shapes!r}; expected (data_shapes, label_shapes)")
    return shapes[0], shapes[1]


def _of_batches(batches: Any, model: Model) -> Iterable[tuple[Hashable, Any, Any]]:
    several = [batches] if hasattr(batches, "provide_data") and hasattr(batches, "data") else batches
    try:
        items = iter(several)
    except TypeError:
        raise TypeError(f"forecast takes {_BATCHES}; given {type(batches).__name__}") from None
    found = []
    for batch in items:
        if getattr(batch, "provide_data", None) is None:
            raise ShapeError(f"a batch has no provide_data to tell its shapes by: {batch!r}; give {_BATCHES}")
        key = getattr(batch, "bucket_key", None) if model.bucketed else None
        if key is None and model.bucketed:
            raise BucketError("a batch has no bucket_key; set batch.bucket_key, or give a mapping of key to shapes")
        found.append((key, batch.provide_data, batch.provide_label))
    if callable(getattr(batches, "reset", None)):
        batches.reset()
    return found


def _of_plan(plan: Any, model: Model) -> Iterable[tuple[Hashable, Any, Any]]:
    """Shapes as BucketIter gives them: (rows, length) in layout NT, ids of int32 and labels of float32."""
    for key, rows in sorted(zip(plan.keys, plan.batch_sizes), key=lambda pair: plan.bind_order.index(pair[0])):
        _, data_names, label_names = model.generate(key)
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(data_names):
            raise BucketError(
                f"bucket {key!r} has {len(parts)} length(s) and its symbol the data {data_names}: the plan does not "
                f"tell their shapes; give the iterator, or a mapping of key to (data_shapes, label_shapes)"
            )
        data = [DataDesc(name, (rows, part), np.int32, "NT") for name, part in zip(data_names, parts)]
        yield key, data, [DataDesc(name, (rows, parts[-1]), np.float32, "NT") for name in label_names]
