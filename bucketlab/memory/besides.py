"""What operators take besides arrays and working memory, as far as it can be told before they run.

Two things are not in any plan. Operators borrow one space for temporaries, as large as the largest request so far; and
the RNN operator keeps a buffer for each executor. Neither can be asked for, so both are intervals. Their ends come from
mxnet 1.9.1's and oneDNN's code and were held against the engine's own counters.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bucketlab.binding import Requirements

__all__ = ["Besides", "besides"]

_ARRAY_SLACK = 64
_CHANNELS_TOGETHER, _FEW_CHANNELS = 16, 4
_PACKED_SLACK = 8192
# fmt: off
_KNOWN = frozenset([
    "null", "Activation", "BatchNorm", "BlockGrad", "Cast", "Concat", "Convolution", "Deconvolution", "Dropout",
    "Embedding", "Flatten", "FullyConnected", "LayerNorm", "LeakyReLU", "LinearRegressionOutput",
    "LogisticRegressionOutput", "MAERegressionOutput", "MakeLoss", "Pooling", "RNN", "Reshape", "SequenceMask",
    "SliceChannel", "SoftmaxActivation", "SoftmaxOutput", "SwapAxis", "_arange", "_copy", "_full", "_ones",
    "_zeros", "abs", "add_n", "batch_dot", "clip", "dot", "exp", "expand_dims", "log", "log_softmax", "max",
    "mean", "min", "negative", "ones_like", "relu", "reshape_like", "rsqrt", "sigmoid", "slice", "slice_axis",
    "slice_like", "softmax", "sqrt", "square", "squeeze", "stack", "sum", "tanh", "tile", "transpose", "where",
    "zeros_like",
])
_KNOWN_STARTS = ("elemwise_", "broadcast_", "_plus", "_minus", "_mul", "_div", "_rminus", "_rdiv", "_power", "_maximum",
                 "_minimum", "_equal", "_not_equal", "_greater", "_lesser", "_add", "_sub", "_grad_add")
# fmt: on
_LITTLE_IN_TRAINING = frozenset(["SoftmaxOutput"])
_BY_IMAGE = ("Convolution", "Deconvolution")
_GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}


@dataclass(frozen=True)
class Besides:
    """Bytes that one executor's operators take: its own buffers, and what the largest of them may borrow.

    ``temporary`` is None where no bound is known, with ``unknown`` naming the operators; so is ``high``.
    """

    low: int
    high: int | None
    temporary: int | None
    borrower: str
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """One operator of a graph, with the shapes of what it reads and writes."""

    op: str
    name: str
    attributes: Mapping[str, str]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]


def besides(symbol: Any, needs: Requirements, training: bool) -> Besides:
    """What the operators of ``symbol`` take when an executor for ``needs`` runs, for training or not."""
    low, high, most, borrower = 0, 0, 0, ""
    known_high = True
    plain = all(need.dtype == np.float32 for need in needs.params)
    unknown: dict[str, None] = {}
    for node in nodes_of(symbol, needs):
        if not (node.op in _KNOWN or node.op.startswith(_KNOWN_STARTS)) or (node.op in _BY_IMAGE and not plain):
            unknown[node.op] = None
        touched = 0 if training and node.op in _LITTLE_IN_TRAINING else _touched(node) * (2 if training else 1)
        if touched > most:
            most, borrower = touched, node.name
        if node.op == "RNN":
            least, packed = rnn_buffer(node)
            by_onednn = plain and "projection_size" not in node.attributes
            if by_onednn and os.environ.get("MXNET_USE_MKLDNN_RNN", "1") != "0":
                low, high = low + least + packed, high + least + 2 * packed + _matrices(node) * _PACKED_SLACK
            else:
                known_high = False
    return Besides(low, high if known_high else None, None if unknown else most, borrower, tuple(unknown))


def nodes_of(symbol: Any, needs: Requirements) -> Iterator[Node]:
    """The operators of a graph with their shapes, in the order in which they run."""
    internals = symbol.get_internals()
    every: tuple[Any, ...] = (*needs.params, *needs.inputs)
    known = {need.name: need.shape for need in every}
    _, shapes, _ = internals.infer_shape_partial(**known)
    graph = json.loads(symbol.tojson())
    entries = _entries(graph, internals, [shape or () for shape in shapes])
    for node, outputs in zip(graph["nodes"], entries):
        if node["op"] != "null":
            inputs = tuple(entries[i][k] for i, k, *_ in node["inputs"] if k < len(entries[i]))
            yield Node(node["op"], node["name"], node.get("attrs", {}), inputs, tuple(outputs))


def _entries(
    graph: Mapping[str, Any], internals: Any, shapes: Sequence[tuple[int, ...]]
) -> list[list[tuple[int, ...]]]:
    """The shapes of each node's visible outputs, which come in the order of the nodes."""
    at, entries, starts = 0, [], graph["node_row_ptr"]
    for number, node in enumerate(graph["nodes"]):
        mine = [shapes[at]]
        at += 1
        while len(mine) < starts[number + 1] - starts[number] and at < len(shapes):
            # Some operators show fewer outputs than they have.
            if internals[at].name != node["name"]:
                break
            mine.append(shapes[at])
            at += 1
        entries.append(mine)
    return entries


def _touched(node: Node) -> int:
    """Bytes of all that a node reads and writes, at 4 bytes an element, channels rounded up as oneDNN lays them out."""
    total = 0
    for shape in (*node.inputs, *node.outputs):
        total += math.prod(_laid_out(shape)) * 4 + _ARRAY_SLACK
    return total


def _laid_out(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) < 4 or shape[1] <= _FEW_CHANNELS:
        return shape
    channels = -(-shape[1] // _CHANNELS_TOGETHER) * _CHANNELS_TOGETHER
    return (shape[0], channels, *shape[2:])


def _fusions(node: Node) -> list[tuple[int, int, int]]:
    """(layers, width of the input, directions) of the parts in which oneDNN runs an RNN operator."""
    hidden, layers = int(node.attributes["state_size"]), int(node.attributes["num_layers"])
    width = node.inputs[0][2]
    if node.attributes.get("bidirectional") in ("True", "1"):
        return [(1, width, 2), *[(1, 2 * hidden, 2)] * (layers - 1)]
    if width == hidden:
        return [(layers, width, 1)]
    return [(1, width, 1), *([(layers - 1, hidden, 1)] if layers > 1 else [])]


def rnn_buffer(node: Node) -> tuple[int, int]:
    """Of an RNN operator's buffer: bytes that are certain, and bytes of the weights that oneDNN packs besides."""
    hidden, gates = int(node.attributes["state_size"]), _GATES[node.attributes["mode"]]
    biases = gates + 1 if node.attributes["mode"] == "gru" else gates
    steps, rows, _ = node.inputs[0]
    parts = _fusions(node)
    weights = sum(layers * directions * (width + hidden) * gates * hidden for layers, width, directions in parts)
    bias = sum(layers * directions * biases * hidden for layers, _, directions in parts)
    between = steps * rows * hidden * parts[0][2] * (len(parts) - 1)
    margin = 64 * 5 * len(parts) + len(parts)
    return 4 * (weights + bias + between + margin), 4 * weights


def _matrices(node: Node) -> int:
    return sum(2 * layers * directions for layers, _, directions in _fusions(node))


