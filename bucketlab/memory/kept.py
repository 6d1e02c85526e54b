"""What a run keeps from step to step: parameters, gradients, optimizer states, sums over contexts, host copies.

All of it follows from shapes and types, laid out as :mod:`bucketlab.training` does it. Only what is sparse depends on
the data, and only a kvstore that is no sum within this process keeps what cannot be told from here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.memory.amounts import Amount
from bucketlab.memory.ledger import REST
from bucketlab.training.exchange import IN_PROCESS
from bucketlab.training.flat import ParamSpec, padded
from bucketlab.training.kernels import family_of, fits
from bucketlab.training.states import state_arrays

__all__ = ["Training", "kept_amounts", "separate_amounts"]

_ROW_INDEX_BYTES = 8
_SPARSE = "a row_sparse array holds as many rows as the data ever touch"
_PROBED = (2, 3, 5, 7, 11, 13)
_TERMS_OF_ONE_SUM = 6
"""Contexts whose gradients a 'local' sum adds up in one array; from one more on it takes a second."""


@dataclass(frozen=True)
class Training:
    """How parameters are trained. ``optimizer`` is an instance, or None where nothing is trained."""

    optimizer: Any
    kvstore: Any
    compressed: bool = False

    def in_process(self, contexts: int) -> bool:
        """Whether gradients are summed by bucketlab itself; else a kvstore does it, with memory of its own."""
        if self.kvstore is None or (contexts == 1 and isinstance(self.kvstore, str) and "dist" not in self.kvstore):
            return True
        return isinstance(self.kvstore, str) and self.kvstore in IN_PROCESS and not self.compressed

    @property
    def order(self) -> str:
        return IN_PROCESS.get(self.kvstore, "local") if isinstance(self.kvstore, str) else "local"


def kept_amounts(
    stores: Sequence[Sequence[ParamSpec]],
    contexts: Sequence[str],
    aux: Sequence[Any],
    training: Training,
    host: str = "cpu",
) -> Iterator[Amount]:
    """Amounts of everything that all buckets share: ``stores`` are the parameters of each context, in their order.

    ``aux`` are the auxiliary states of the first context; ``host`` says where copies of parameters are made, on the
    "cpu" or on each one's own "context".
    """
    for context, specs in zip(contexts, stores):
        for spec in specs:
            yield from _array("parameter", context, spec, spec.stype, spec.stype == "default")
            if spec.trains:
                yield from _array("gradient", context, spec, spec.grad_stype, _flat(spec))
    for need in (*stores[0], *aux):
        home = contexts[0] if host == "context" else "cpu(0)"
        yield from _array("host", home, need, need.stype, False)
    if training.optimizer is None:
        return
    trained = [spec for spec in stores[0] if spec.trains]
    in_process = training.in_process(len(contexts))
    if len(contexts) > 1 or not in_process:
        yield from _sums(trained, contexts, training, in_process)
    if not in_process:
        yield Amount(
            contexts[0], "optimizer", 0, _states_at_most(trained, training) * len(contexts),
            f"kvstore {_named(training.kvstore)} decides where the states are",
        )  # fmt: skip
        return
    fused = set(_fused(trained, training.optimizer, len(contexts) > 1))
    for spec in trained:
        yield from _states(spec, contexts[0], training.optimizer, spec.name in fused)


def separate_amounts(
    stores: Sequence[Sequence[ParamSpec]], contexts: Sequence[str], aux: Sequence[Any], training: Training
) -> Iterator[Amount]:
    """The same as mx.mod keeps it: every parameter, gradient and state an array of its own."""
    for context, specs in zip(contexts, stores):
        for spec in specs:
            yield from _array("parameter", context, spec, spec.stype, False)
            if spec.trains:
                yield from _array("gradient", context, spec, spec.grad_stype, False)
    for need in (*stores[0], *aux):
        yield from _array("host", "cpu(0)", need, need.stype, False)
    if training.optimizer is None:
        return
    several = len(contexts) > 1 and training.kvstore is not None
    if several:
        why = f"mx.mod's kvstore {_named(training.kvstore)} keeps weights and sums of its own"
        yield Amount(contexts[0], "kvstore", 0, None, why)
    # A kvstore that updates has weights of its own to do it on, and 'local' keeps them in pinned memory.
    homes = ["cpu_pinned(0)" if training.order == "local" else contexts[0]] if several else contexts
    for context, specs in zip(homes, stores):
        for spec in specs:
            if spec.trains:
                yield from _states(replace(spec, context=None) if several else spec, context, training.optimizer, False)


def _named(kvstore: Any) -> str:
    return repr(kvstore) if isinstance(kvstore, str) else type(kvstore).__name__


def _flat(spec: ParamSpec) -> bool:
    """Whether the parameter and its gradient lie in flat buffers."""
    return spec.stype == "default" and (not spec.trains or spec.grad_stype == "default")


def _room(spec: ParamSpec) -> int:
    """Elements that a parameter takes up in a flat buffer, padding included."""
    return spec.size if spec.alone else padded(spec.size, spec.dtype)


def _home(spec: Any, context: str) -> str:
    return context if getattr(spec, "context", None) is None else str(spec.context)


def _array(role: str, context: str, spec: Any, stype: str, flat: bool) -> Iterator[Amount]:
    width, home = np.dtype(spec.dtype).itemsize, context if role == "host" else _home(spec, context)
    if stype != "default":
        yield Amount(home, role, 0, spec.size * width + spec.shape[0] * _ROW_INDEX_BYTES, _SPARSE)
        return
    yield Amount.exactly(home, role, spec.size * width)
    if role != "host":
        yield Amount.exactly(home, REST, (_room(spec) - spec.size) * width if flat else 0)


def _sums(
    trained: Sequence[ParamSpec], contexts: Sequence[str], training: Training, in_process: bool
) -> Iterator[Amount]:
    sparse = [spec.name for spec in trained if not _flat(spec)]
    if not in_process or sparse:
        whose = f"{len(sparse)} sparse parameters" if in_process else "weights and gradients"
        why = f"kvstore {_named(training.kvstore)} keeps copies of {whose}"
        yield Amount(contexts[0], "kvstore", 0, None, why)
    if in_process:
        copies = 2 if training.order == "local" and len(contexts) > _TERMS_OF_ONE_SUM else 1
        for spec in trained:
            if _flat(spec):
                size = copies * _room(spec) * spec.dtype.itemsize
                yield Amount.exactly(_home(spec, contexts[0]), "kvstore", size)


def _fused(trained: Sequence[ParamSpec], optimizer: Any, on_kvstore: bool) -> Iterator[str]:
    """Names whose states lie in flat buffers: those that go with a sparse one into mxnet's optimizer do not."""
    family = family_of(optimizer)
    if family is None:
        return
    size = 1 if on_kvstore else max(1, optimizer.aggregate_num)
    for dtype in dict.fromkeys(spec.dtype for spec in trained):
        members = [spec for spec in trained if spec.dtype == dtype]
        for start in range(0, len(members), size):
            group = members[start : start + size]
            if fits(family, optimizer, dtype) and all(map(_flat, group)):
                yield from (spec.name for spec in group)


def _states(spec: ParamSpec, context: str, optimizer: Any, fused: bool) -> Iterator[Amount]:
    home = _home(spec, context)
    if fused:
        family = family_of(optimizer)
        assert family is not None
        count = family.choose(optimizer, spec.dtype, None).states
        width = spec.dtype.itemsize
        yield Amount.exactly(home, "optimizer", count * spec.size * width)
        yield Amount.exactly(home, REST, count * (_room(spec) - spec.size) * width)
        return
    for shape, dtype, stype in _probe(optimizer, spec):
        size = math.prod(shape) * dtype.itemsize
        if stype == "default":
            yield Amount.exactly(home, "optimizer", size)
        else:
            yield Amount(home, "optimizer", 0, size + shape[0] * _ROW_INDEX_BYTES, _SPARSE)


def _states_at_most(trained: Iterable[ParamSpec], training: Training) -> int:
    return sum(
        math.prod(shape) * dtype.itemsize
        for spec in trained
        for shape, dtype, _ in _probe(training.optimizer, spec)
    )


def _probe(optimizer: Any, spec: ParamSpec) -> Iterator[tuple[tuple[int, ...], np.dtype, str]]:
    """Shape, type and storage of each state array, asked of the optimizer itself for a small weight of as many axes."""
    small = tuple(_PROBED[i % len(_PROBED)] for i in range(len(spec.shape)))
    weight = mx.nd.zeros(small, dtype=spec.dtype, stype=spec.stype)
    real: Mapping[int, int] = dict(zip(small, spec.shape))
    for array in state_arrays(copy.copy(optimizer).create_state_multi_precision(0, weight)):
        shape = tuple(real.get(size, size) for size in array.shape)
        yield shape, np.dtype(array.dtype), array.stype
