"""Losses that average over the rows of their own context, which uneven slices make wrong.

Every context has a copy of the symbol, and gradients are summed over the contexts. A loss that divides by
its own rows gives each context the same weight, whatever its rows: with slices of 3 and 1 rows, a row of the
second weighs three times as much as one of the first. ``normalization='null'`` is right: there
``rescale_grad`` divides by the rows of the whole batch.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bucketlab._engine import mx

_NORMALIZED = ("SoftmaxOutput", "MakeLoss")
_HEADS = ("MakeLoss", "make_loss")
_ROWS_ARE = {"batch": "the rows", "valid": "the valid labels"}


@dataclass(frozen=True)
class AveragingLoss:
    """A layer whose gradient is divided by what its own context has of ``over``."""

    layer: str
    operator: str
    setting: str
    over: str

    def __str__(self) -> str:
        return f"{self.layer!r} ({self.operator}{', ' + self.setting if self.setting else ''})"


def averaging_losses(
    symbol: Any, shapes: Mapping[str, tuple[int, ...]], axes: Mapping[str, int]
) -> tuple[AveragingLoss, ...]:
    """The losses of a symbol that average over rows, in its order.

    Found are SoftmaxOutput and MakeLoss with ``normalization`` 'batch' or 'valid', and a mean over the batch
    axis that ends in MakeLoss. ``shapes`` are those of the inputs, ``axes`` their batch axes (-1: none).

    >>> loss = mx.sym.SoftmaxOutput(mx.sym.Variable("data"), normalization="batch", name="softmax")
    >>> print(*averaging_losses(loss, {}, {}))
    'softmax' (SoftmaxOutput, normalization='batch')
    """
    nodes = json.loads(symbol.tojson())["nodes"]
    found: dict[int, AveragingLoss] = {}
    for i, node in enumerate(nodes):
        setting = node.get("attrs", {}).get("normalization", "null")
        if node["op"] in _NORMALIZED and setting in _ROWS_ARE:
            found[i] = AveragingLoss(
                node["name"], node["op"], f"normalization={setting!r}", _ROWS_ARE[setting]
            )
    means = [i for i in _under_losses(nodes) if nodes[i]["op"] == "mean"]
    if means:
        over_rows = _over_rows(symbol, shapes, axes, {nodes[i]["name"] for i in means})
        for i in means:
            if nodes[i]["name"] in over_rows:
                found[i] = AveragingLoss(nodes[i]["name"], "mean", "", "the rows")
    return tuple(found[i] for i in sorted(found))


def _under_losses(nodes: Sequence[Mapping[str, Any]]) -> set[int]:
    """What a MakeLoss sends its gradient to."""
    reached: set[int] = set()
    pending = [i for i, node in enumerate(nodes) if node["op"] in _HEADS]
    while pending:
        i = pending.pop()
        if i not in reached and nodes[i]["op"] != "BlockGrad":
            reached.add(i)
            pending += [source for source, *_ in nodes[i]["inputs"]]
    return reached


def _over_rows(
    symbol: Any, shapes: Mapping[str, tuple[int, ...]], axes: Mapping[str, int], names: set[str]
) -> set[str]:
    """Which of the nodes take rows in and give none out: with twice the rows only their input is larger."""
    arguments = set(symbol.list_arguments())
    given = {name: shape for name, shape in shapes.items() if name in arguments}
    doubled = {
        name: tuple(2 * size if at == axes.get(name, -1) else size for at, size in enumerate(shape))
        for name, shape in given.items()
    }
    internals = symbol.get_internals()
    found = set()
    for name in names:
        node = internals[f"{name}_output"]
        both = mx.sym.Group([node.get_children()[0], node])
        try:
            _, (source, mean), _ = both.infer_shape_partial(**_known(both, given))
            _, (grown, larger), _ = both.infer_shape_partial(**_known(both, doubled))
        except mx.base.MXNetError:
            continue
        if source != grown and mean == larger:
            found.add(name)
    return found


def _known(symbol: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    arguments = set(symbol.list_arguments())
    return {name: shape for name, shape in shapes.items() if name in arguments}


def warn_if_uneven(
    losses: Sequence[AveragingLoss], rows: Sequence[int], step: int | None, told: set[str]
) -> None:
    """Warn, once for each layer, of averaging losses where contexts have other numbers of rows.

    ``rows`` are those of every context, ``step`` the number that divides evenly (None where each context has
    shapes of its own), ``told`` the layers that were named before; it grows.
    """
    fresh = [loss for loss in losses if loss.layer not in told]
    if not fresh:
        return
    # Told before the warning, which a filter may turn into an error: that, too, comes once.
    told.update(loss.layer for loss in fresh)
    even = f"batches of a multiple of {step} rows" if step is not None else "as many rows on every context"
    warnings.warn(
        f"{', '.join(map(str, fresh))} averages over {fresh[0].over} of its own context, and the contexts have "
        f"{', '.join(map(str, rows))} rows: every context weighs the same, so gradients are not those of the "
        f"whole batch. Use normalization='null' or a sum (rescale_grad divides by the rows of the batch), or "
        f"{even}",
        stacklevel=2,
    )
