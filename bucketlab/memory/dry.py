"""What an executor will need, learnt by binding it to arrays that are never allocated.

The engine plans an executor's working memory at its bind and takes it at the first run. So a bind to arrays that are
only promised, never followed by a run, tells the plan to the byte and costs no array memory. It takes as long as any
bind, and the graph's structures for its moment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bucketlab._engine import mx
from bucketlab.binding import ArrayNeed, Requirements, promised
from bucketlab.errors import ShapeError, last_line
from bucketlab.memory.addresses import aside_bytes, pool_places
from bucketlab.memory.proof import layout
from bucketlab.training.flat import ParamSpec

__all__ = ["Draft", "dry_bind"]

MEGABYTE = 1 << 20
_TOTAL = re.compile(r"Total (\d+) MB allocated")
_TAIL = 300


@dataclass(frozen=True)
class Draft:
    """The working memory that one executor plans. ``blocks`` are (context, bytes), None where they cannot be read.

    ``low`` and ``high`` (None: no bound is known) bound their sum; they differ where ``why`` says why.
    ``outputs`` are the bytes that the outputs show of it. ``aside`` are bytes that the executor makes at its bind for
    the gradients of outputs that are no losses.
    """

    blocks: tuple[tuple[str, int], ...] | None
    low: int
    high: int | None
    outputs: int
    aside: int
    why: str = ""

    def on(self, context: str, other: str) -> Draft:
        """The same plan for another context than the one that it was made on."""
        if self.blocks is None or context == other:
            return self
        blocks = tuple((other if where == context else where, size) for where, size in self.blocks)
        return replace(self, blocks=blocks)


def dry_bind(
    symbol: Any,
    context: Any,
    needs: Requirements,
    grad_req: Mapping[str, str],
    group2ctx: Mapping[str, Any] | None = None,
) -> Draft:
    """Bind ``symbol`` for ``needs`` without memory, read its plan and drop it.

    Call it within the settings that the real bind will have. Raises ShapeError where the engine refuses.
    """
    every: tuple[Any, ...] = (*needs.params, *needs.inputs)
    arrays = {need.name: _promised(need) for need in every}
    grads = {spec.name: _promised(spec, spec.grad_stype) for spec in needs.params if spec.trains}
    grads.update({need.name: _promised(need) for need in needs.input_grads})
    try:
        executor = symbol.bind(
            context,
            [arrays[name] for name in symbol.list_arguments()],
            args_grad=grads,
            grad_req=dict(grad_req),
            aux_states={need.name: _promised(need) for need in needs.aux},
            group2ctx=dict(group2ctx) if group2ctx else None,
        )
    except mx.base.MXNetError as error:
        heads = "/".join(symbol.list_outputs())
        raise ShapeError(f"the engine refused to plan {heads} on {context}: {last_line(error)}") from None
    proved = layout()
    found, counts = pool_places([executor], proved)
    if counts[0] is None:
        return _rounded(executor, symbol, needs, proved.reason or "the engine's plan did not read as one")
    sizes, aside = found.block_bytes.tolist(), aside_bytes(executor, proved) or 0
    return Draft(tuple(zip(found.context, sizes)), sum(sizes), sum(sizes), _outputs(executor), aside)


def _outputs(executor: Any) -> int:
    return sum(math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in executor.outputs)


def _promised(need: ArrayNeed | ParamSpec, stype: str | None = None) -> Any:
    """An array of that shape, type and storage that has no memory."""
    stype = need.stype if stype is None else stype
    if stype == "default":
        return promised(need)
    return mx.nd.sparse.empty(stype, need.shape, ctx=need.context, dtype=need.dtype)


def _rounded(executor: Any, symbol: Any, needs: Requirements, reason: str) -> Draft:
    """Bounds from the engine's own report: whole megabytes, at four bytes an element whatever the type."""
    total = _TOTAL.search(executor.debug_str()[-_TAIL:])
    if total is None:
        return Draft(None, 0, None, _outputs(executor), 0, f"{reason}, and the engine's report does not tell")
    megabytes = int(total[1])
    widths = _widths(symbol, needs)
    low = megabytes * MEGABYTE * min(widths) // 4
    high = ((megabytes + 1) * MEGABYTE - 1) * max(widths) // 4
    why = f"{reason}; the engine reports whole megabytes, of elements of 4 bytes"
    return Draft(None, low, high, _outputs(executor), 0, why)


def _widths(symbol: Any, needs: Requirements) -> Sequence[int]:
    """Bytes an element of every type that occurs in the graph."""
    every: tuple[Any, ...] = (*needs.params, *needs.inputs)
    known = {need.name: need.dtype for need in every}
    _, types, _ = symbol.get_internals().infer_type_partial(**known)
    return [np.dtype(kind).itemsize for kind in types if kind is not None] or [4]
