"""Runs in a process of its own, as the engine's counters want, and prints what they say as JSON."""

from __future__ import annotations

import gc
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bucketlab import mx
from bucketlab.memory import counters, memory


def rest() -> None:
    gc.collect()
    mx.nd.waitall()


def told(ledger) -> dict:
    return {
        "engine": {row.counter: [row.counted, row.held] for row in ledger.engine},
        "declared": ledger.declared,
        "distinct": ledger.distinct,
        "reserved": ledger.reserved,
        "lent": sum(row.lent for row in ledger.roles),
    }


def random_arrays(count: int):
    """Dense arrays of many types on two contexts; some are views, promised only, lent, or sparse."""
    draw = random.Random(5)
    arrays = []
    for _ in range(count):
        context = mx.cpu(draw.randrange(2))
        shape = tuple(draw.randint(1, 9) for _ in range(draw.randint(1, 5)))
        dtype = draw.choice(["float32", "float64", "float16", "int8", "int64"])
        kind = draw.choice(["new", "new", "new", "view", "lazy", "sparse"])
        if kind == "view" and arrays and len(arrays[-1].shape) > 1 and arrays[-1].stype == "default":
            arrays.append(arrays[-1][0:1])
        elif kind == "lazy":
            handle = mx.nd.ndarray._new_alloc_handle(shape, context, True, mx.nd.ndarray.np.float32)
            arrays.append(mx.nd.NDArray(handle))
        elif kind == "sparse":
            rows = mx.nd.ones((draw.randint(1, 6), 3), ctx=context)
            arrays.append(rows.tostype(draw.choice(["row_sparse", "csr"])))
        else:
            arrays.append(mx.nd.empty(shape, ctx=context, dtype=dtype))
    return arrays


def main() -> None:
    out = {}
    try:
        counters.start([mx.cpu(0), mx.cpu(63)])
    except ValueError as error:
        out["refused"] = str(error)
    out["running after refusal"] = counters.running()
    counters.start([mx.cpu(0), mx.cpu(1)])
    counters.start()
    rest()
    # The engine's sparse operators take temporary space once, and keep it.
    random_arrays(60)
    rest()
    out["before"] = counters.read()

    arrays = random_arrays(400)
    rest()
    out["all"] = told(memory(arrays))
    del arrays[::2]
    rest()
    out["half"] = told(memory(arrays))
    arrays.clear()
    rest()
    out["none"] = counters.read()

    import memory_runs as runs

    module = runs.bucketing((8, 5), kvstore=None)
    rest()
    first = memory(module)
    out["module"] = told(first)
    module.switch_bucket(20, [("data", (runs.ROWS, 20))], [("softmax_label", (runs.ROWS,))])
    rest()
    out["bound"] = told(memory(module))
    out["bound again"] = counters.read()
    del first
    memory(module)
    rest()
    out["after looking"] = counters.read()
    del module
    rest()

    import bucketlab

    ours = runs.bucketing((8, 5), namespace=bucketlab)
    rest()
    out["ours"] = told(memory(ours))
    del ours
    rest()
    out["dropped"] = counters.read()
    ours = runs.bucketing((8, 5), namespace=bucketlab)
    rest()
    before, refused = counters.read(), 0
    for _ in range(3):
        try:
            ours.switch_bucket(20, [("data", (runs.ROWS, 20))], [("softmax_label", (runs.ROWS + 1,))])
        except ValueError:
            refused += 1
    rest()
    out["refused binds"], out["added by refusals"] = refused, counters.read() != before
    del ours
    rest()
    out["dropped after refusals"] = counters.read()
    counters.stop()
    out["stopped"] = counters.read()
    print(json.dumps(out))


main()
