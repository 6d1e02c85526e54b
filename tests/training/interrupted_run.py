"""Interrupts steps at random moments; prints as JSON what became of them. Run by test_interrupts."""

from __future__ import annotations

import json
import signal
import sys
import time

import numpy as np

from bucketlab import mx
from update_runs import Ours, batches, cpus, first_values, mlp

ROWS = 8
CASES = [
    ("sgd", 1, "local"),
    ("adam", 2, "local"),
    ("adagrad", 1, "local"),
    ("adagrad", 2, "local"),
    ("sgd", 2, "instance"),
]


def interrupted(optimizer: str, contexts: int, kvstore: str, wanted: int) -> dict[str, int]:
    """Steps until ``wanted`` of them were interrupted: how many were done whole, not at all, in part, ..."""
    ours = Ours(mlp(), cpus(contexts), first_values(mlp(), ROWS), ROWS)
    ours.init_optimizer(mx.kv.create("local") if kvstore == "instance" else kvstore, optimizer, {})
    (batch,) = batches(ROWS, 1)
    fired: list[int] = []
    unraisable: list[object] = []
    sys.unraisablehook = unraisable.append

    def interrupt(number, frame):
        fired.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    rng = np.random.RandomState(0)
    spans = []
    for _ in range(5):
        ours.forward_backward(batch)
        mx.nd.waitall()
        start = time.perf_counter()
        ours.update.step(ours.names)
        spans.append(time.perf_counter() - start)
    span = sorted(spans)[2]
    found = dict.fromkeys(("whole", "none", "partial", "swallowed", "miscounted", "contexts differ"), 0)
    while found["whole"] + found["none"] + found["partial"] + found["swallowed"] < wanted:
        ours.forward_backward(batch)
        mx.nd.waitall()
        before, updates = ours.weights(), ours.optimizer.num_update
        fired.clear()
        raised = False
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1.5 * span))
            ours.update.step(ours.names)
            # What comes from here on is none of the step's.
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            raised = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        mx.nd.waitall()
        after = ours.weights()
        changed = [bool((after[name] != before[name]).any()) for name in before]
        if any((ours.weights(n)[name] != after[name]).any() for n in range(contexts) for name in after):
            found["contexts differ"] += 1
        if (ours.optimizer.num_update != updates) != changed[0]:
            found["miscounted"] += 1
        if unraisable or (fired and not raised):
            found["swallowed"] += 1
            unraisable.clear()
        elif raised:
            found["whole" if all(changed) else "none" if not any(changed) else "partial"] += 1
    return found


if __name__ == "__main__":
    print(json.dumps([interrupted(*case, int(sys.argv[1])) for case in CASES]))
