"""Parameters and gradients of one context, kept in few flat buffers so that an update is few engine calls.

Executors are bound to views of the buffers; a view costs an executor nothing. What cannot live in one
(a row_sparse weight or gradient, the weight of a convolution) gets an array of its own. Arrays never move: what
is bound stays valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import ShapeError

ALIGNMENT = 64
"""Bytes to which every parameter starts: what the engine's own allocations and vector kernels expect."""

MAX_ELEMENTS = 2**31 - 1
"""Elements of one engine array at most: the engine counts them in 32 bits."""


@dataclass(frozen=True)
class ParamSpec:
    """What one parameter needs: shape, types, and whether it has a gradient (``grad_req``: write, add, null).

    ``context`` is where it lives when that is not the store's own context (``group2ctxs``).
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any = "float32"
    stype: str = "default"
    grad_stype: str = "default"
    grad_req: str = "write"
    context: Any | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if self.grad_req not in ("write", "add", "null"):
            raise ValueError(
                f"grad_req of parameter {self.name!r} is {self.grad_req!r}; expected 'write', 'add' or 'null'"
            )

    @property
    def size(self) -> int:
        """Elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def trains(self) -> bool:
        """Whether the parameter has a gradient."""
        return self.grad_req != "null"

    @property
    def alone(self) -> bool:
        """Whether it may share a buffer with none: oneDNN's convolutions, when they infer, lay their weights out
        anew in place, and the engine notes that of the whole buffer. Their weights are those of 3 axes and more.
        """
        return len(self.shape) > 2


@dataclass(frozen=True, eq=False)
class Segment:
    """A flat buffer of weights, a flat buffer of their gradients (None: they have none), who lies where.

    One that has to lie alone has a segment to itself, of its own shape.

    ``spans`` maps a name to (start, stop) in elements, the same in both buffers. What lies between two spans
    is zero at first and belongs to nobody: a kernel may run over it.
    """

    dtype: np.dtype
    weight: Any
    grad: Any | None
    spans: Mapping[str, tuple[int, int]]

    def __repr__(self) -> str:
        kind = "weights" if self.grad is None else "weights and gradients"
        size, context = self.weight.size, self.weight.context
        return f"Segment({len(self.spans)} {kind}, {self.dtype}, {size} elements, {context})"


def padded(size: int, dtype: np.dtype) -> int:
    """Elements from the start of a parameter to the start of the next."""
    step = max(1, ALIGNMENT // dtype.itemsize)
    return -(-size // step) * step


class FlatParameters:
    """All parameters that the executors of one context share: ``weights``, ``grads`` and their ``segments``.

    >>> store = FlatParameters(mx.cpu())
    >>> store.ensure([ParamSpec("w", (3, 4)), ParamSpec("b", (3,))])
    >>> store.weights["w"].shape, len(store.segments)
    ((3, 4), 1)

    ``version`` goes up whenever ``segments`` change.
    """

    def __init__(self, context: Any):
        self.context = context
        self.weights: dict[str, Any] = {}
        self.grads: dict[str, Any] = {}
        self.segments: tuple[Segment, ...] = ()
        self.version = 0
        self._specs: dict[str, ParamSpec] = {}

    def __repr__(self) -> str:
        return f"FlatParameters({self.context}, {len(self.weights)} parameters, {len(self.grads)} gradients)"

    def spec(self, name: str) -> ParamSpec | None:
        """What a parameter was made for; None for one that is not there."""
        return self._specs.get(name)

    def ensure(self, specs: Sequence[ParamSpec]) -> None:
        """Allocate what is new; what is known must fit. Raises ShapeError before anything has changed."""
        wanted: dict[str, ParamSpec] = {}
        for spec in specs:
            if spec.size == 0 or not spec.shape:
                raise ShapeError(
                    f"parameter {spec.name!r} has shape {spec.shape}, which is not known in full; give the "
                    f"shapes of the inputs (or of the variable itself) from which it can be inferred"
                )
            known = wanted.get(spec.name) or self._specs.get(spec.name)
            if known is not None:
                self._check(known, spec)
            if known is None or not known.trains:
                wanted[spec.name] = spec
        fresh = [spec for spec in wanted.values() if spec.name not in self._specs]
        late = [spec for name, spec in wanted.items() if name in self._specs and spec.trains]
        if not fresh and not late:
            return
        segments = self._with_gradients(self.segments, late) + self._new_segments(fresh)
        for spec in [*fresh, *late]:
            self._place(spec, segments)
        self.segments = tuple(segments)
        self.version += 1

    def _context_of(self, spec: ParamSpec) -> Any:
        return self.context if spec.context is None else spec.context

    def _check(self, known: ParamSpec, asked: ParamSpec) -> None:
        facts = ["shape", "dtype", "stype"]
        if known.trains and asked.trains:
            facts.append("grad_stype")
        for fact in facts:
            has, wants = getattr(known, fact), getattr(asked, fact)
            if has != wants:
                raise ShapeError(
                    f"parameter {asked.name!r} on {self.context} is bound with {fact} {has} already, and "
                    f"{wants} is asked for; executors that share a parameter must agree"
                )
        if self._context_of(known) != self._context_of(asked):
            raise ShapeError(
                f"parameter {asked.name!r} lives on {self._context_of(known)} and is asked for on "
                f"{self._context_of(asked)}; give it the same group2ctxs in every bucket"
            )

    def _new_segments(self, specs: Iterable[ParamSpec]) -> list[Segment]:
        """Buffers for dense parameters; those without a flat gradient apart: they cost no gradient memory."""
        groups: dict[Any, list[ParamSpec]] = {}
        for spec in specs:
            if spec.stype == "default":
                flat_gradient = spec.trains and spec.grad_stype == "default"
                name = spec.name if spec.alone else None
                groups.setdefault((self._context_of(spec), spec.dtype, flat_gradient, name), []).append(spec)
        segments = []
        for (context, dtype, flat_gradient, _), members in groups.items():
            # Optimizers decay weights and gammas only: side by side, they are one range for a kernel.
            members.sort(key=lambda spec: not spec.name.endswith(("_weight", "_gamma")))
            for shape, spans in _lay_out(members, dtype):
                weight = mx.nd.zeros(shape, ctx=context, dtype=dtype)
                grad = mx.nd.zeros(shape, ctx=context, dtype=dtype) if flat_gradient else None
                segments.append(Segment(dtype, weight, grad, spans))
        return segments

    def _with_gradients(self, segments: Sequence[Segment], late: Sequence[ParamSpec]) -> list[Segment]:
        """Cut weight-only segments where some names get gradients after all; the weights stay in place."""
        names = {spec.name for spec in late if spec.stype == "default" and spec.grad_stype == "default"}
        result = []
        for segment in segments:
            if segment.grad is not None or names.isdisjoint(segment.spans):
                result.append(segment)
                continue
            for run in _runs(segment.spans, names):
                start = segment.spans[run[0]][0]
                places = ((name, *segment.spans[name]) for name in run)
                spans = {name: (first - start, last - start) for name, first, last in places}
                weight = segment.weight
                if len(spans) < len(segment.spans):
                    weight = weight[start : start + padded(spans[run[-1]][1], segment.dtype)]
                grad = mx.nd.zeros_like(weight) if run[0] in names else None
                result.append(Segment(segment.dtype, weight, grad, spans))
        return result

    def _place(self, spec: ParamSpec, segments: Sequence[Segment]) -> None:
        home = next((segment for segment in segments if spec.name in segment.spans), None)
        context = self._context_of(spec)
        if spec.name not in self.weights:
            self.weights[spec.name] = (
                mx.nd.zeros(spec.shape, ctx=context, dtype=spec.dtype, stype=spec.stype)
                if home is None
                else view(home.weight, home.spans[spec.name], spec.shape)
            )
        if spec.trains:
            self.grads[spec.name] = (
                mx.nd.zeros(spec.shape, ctx=context, dtype=spec.dtype, stype=spec.grad_stype)
                if home is None or home.grad is None
                else view(home.grad, home.spans[spec.name], spec.shape)
            )
        self._specs[spec.name] = spec


def view(flat: Any, span: tuple[int, int], shape: tuple[int, ...]) -> Any:
    """The elements ``span`` of a flat array, in the given shape, as the same memory."""
    return flat if flat.shape == shape else flat[span[0] : span[1]].reshape(shape)


def _lay_out(
    specs: Sequence[ParamSpec], dtype: np.dtype
) -> list[tuple[tuple[int, ...], dict[str, tuple[int, int]]]]:
    """(shape, spans) of each buffer that the parameters fill one after another."""
    if specs[0].alone:
        return [(specs[0].shape, {specs[0].name: (0, specs[0].size)})]
    buffers: list[tuple[tuple[int, ...], dict[str, tuple[int, int]]]] = []
    total = 0
    spans: dict[str, tuple[int, int]] = {}
    for spec in specs:
        if spans and total + padded(spec.size, dtype) > MAX_ELEMENTS:
            buffers.append(((total,), spans))
            total, spans = 0, {}
        spans[spec.name] = (total, total + spec.size)
        total += padded(spec.size, dtype)
    if spans:
        buffers.append(((total,), spans))
    return buffers


def _runs(spans: Mapping[str, tuple[int, int]], names: set[str]) -> list[list[str]]:
    """The names in order of place, cut wherever membership in ``names`` changes."""
    runs: list[list[str]] = []
    for name in sorted(spans, key=lambda one: spans[one]):
        if runs and (runs[-1][0] in names) == (name in names):
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs
