"""Forecasts and runs in a process of its own, as the engine's counters want; prints what they say as JSON."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bucketlab import mx
from bucketlab.memory import counters, memory
from bucketlab.memory.forecast import forecast
from forecast_runs import MODELS, run, shapes


def counted() -> int:
    gc.collect()
    mx.nd.waitall()
    return sum((counters.read() or {}).values())


def main() -> None:
    # An operator's space for temporaries stays as large as it ever was: the smallest come first.
    counters.start([mx.cpu(0), mx.cpu(1)])
    out = {}
    for name in ("gru", "lstm", "fused", "attention", "images"):
        model, lengths = MODELS[name]
        given = {key: shapes(key, 6) for key in lengths[:2]}
        before = counted()
        found = forecast(model, given, 2)
        after = counted()
        module = run(model, given, [mx.cpu(0), mx.cpu(1)])
        counts = counted()
        book = memory(module)
        out[name] = {
            "allocated by forecasting": after - before,
            "counted": counts - after,
            "at least": found.at_least,
            "at most": found.at_most,
            "never touched": book.reserved,
            "held": book.distinct,
            "total": found.total,
        }
        del module, book
    print(json.dumps(out))


main()
