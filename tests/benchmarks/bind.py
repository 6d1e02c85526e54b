"""What a new bucket costs when its first batch comes, by its length and by the number of contexts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

import bucketlab as bl
from bucketlab import mx

from .contenders import contexts
from .report import Report
from .timing import interleaved

ROWS = 32
LENGTHS = (10, 20, 40, 80, 160)


def run(lengths: Sequence[int], counts: Sequence[int], rounds: int) -> Report:
    """Bind a bucket of each length so many times, on each number of contexts."""
    cases = [(length, count) for count in counts for length in lengths]
    rows = []
    for length, count in tqdm(cases, desc="bind", unit="case", disable=None):
        times = _times(length, count, max(lengths), rounds)
        rows.append(
            {
                "steps": length,
                "contexts": count,
                "mx.mod ms": times.median("mx.mod") * 1e3,
                "ours ms": times.median("ours") * 1e3,
                "ours / mx.mod": times.ratio("ours", "mx.mod"),
            }
        )
    return Report(
        "bind",
        "A new bucket bound",
        rows,
        {"mx.mod ms": ".1f", "ours ms": ".1f", "ours / mx.mod": ".2f"},
        "A two-layer LSTM of 64 cells, 32 rows, bound beside the longest bucket; the symbol is there already. By the "
        "processors' time.",
    )


def _times(length: int, count: int, longest: int, rounds: int) -> Any:
    model = bl.models.lstm_lm(1000, hidden=64, embed=64, layers=2)
    symbols = {key: model(key) for key in {length, longest}}
    modules = {name: _module(space, symbols, longest, count) for name, space in (("mx.mod", mx.mod), ("ours", bl))}

    def bound_by(module: Any) -> Any:
        # A key of its own for each round: the same graph, and a bucket that was never met.
        return lambda number: module.switch_bucket((length, number), *_shapes(length))

    # What was bound goes again out of time, or the buckets of all rounds would be there at once.
    return interleaved(
        {name: bound_by(module) for name, module in modules.items()},
        rounds,
        clock=time.process_time,
        after=lambda name, number: _drop(modules[name], (longest, -1), (length, number)),
    )


def _shapes(length: int) -> tuple[Any, Any]:
    desc = mx.io.DataDesc
    return [desc("data", (ROWS, length), layout="NT")], [desc("softmax_label", (ROWS, length), layout="NT")]


def _module(namespace: Any, symbols: Any, longest: int, count: int) -> Any:
    module = namespace.BucketingModule(lambda key: symbols[key[0]], (longest, -1), context=contexts(count))
    module.bind(*_shapes(longest))
    module.init_params(mx.init.Uniform(0.08))
    module.init_optimizer(kvstore="local", optimizer="sgd", optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    return module


def _drop(module: Any, default: Any, key: Any) -> None:
    module.switch_bucket(default, None)
    if hasattr(module, "release"):
        module.release(key)
    del module._buckets[key]
