"""``python -m tests.benchmarks``: measure, and print tables or JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence

# Before mxnet starts its threads: one for each context, as the figures are meant.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from . import bind, dashboard, memory, score, step, switch
from .report import Report, machine
from .workloads import SMALL, WORKLOADS

EPILOG = """\
step       a training step against the floor: executors bound beforehand, inputs copied in, one fused optimizer call
bind       a new bucket bound, by its length and the number of contexts
switch     going to a bound bucket, a shape seen before, a step as buckets become more
score      score and predict against the forward passes that they consist of
memory     bytes by the engine's counters, over those of the hungriest bucket alone under mx.mod
dashboard  the share of training time that the dashboard takes, in a Jupyter kernel

Machines are shared and noisy: only ratios within one run are claims."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks that are asked for; returns the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    runs: dict[str, Callable[[], list[Report]]] = {
        "step": lambda: [step.run(step.cases(given.workloads, given.contexts, given.kvstores), given.rounds)],
        "bind": lambda: [
            bind.run(given.lengths, [n for n in given.contexts if n <= 2] or [1], _some(given.rounds, 10))
        ],
        "switch": lambda: switch.run(given.buckets or [1, 2, 5, 10, 20, 50, 100, 200], given.rounds),
        "score": lambda: [score.run([n for n in given.workloads if "layers" not in n], _some(given.rounds, 8))],
        "memory": lambda: [memory.run(memory.cases(given.buckets or [1, 5, 10, 50], given.contexts[:2], given.models))],
        "dashboard": lambda: [dashboard.run(given.rates, _some(given.rounds, 20), given.seconds)],
    }
    names = list(runs) if given.what == "all" else [given.what]
    reports = []
    for name in names:
        reports += (found := runs[name]())
        if not given.json:
            print(*(report.text() + "\n" for report in found), sep="\n", flush=True)
    if given.json:
        print(json.dumps({"machine": machine(), "reports": [report.to_dict() for report in reports]}, indent=1))
    else:
        print("Measured on", ", ".join(f"{key} {value}" for key, value in machine().items()))
    return 0


def _some(rounds: int, part: int) -> int:
    """Fewer rounds for what takes longer."""
    return max(2, rounds // part)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measures bucketlab beside mx.mod in one process and prints the tables of the README.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = ("step", "bind", "switch", "score", "memory", "dashboard", "all")
    parser.add_argument("what", nargs="?", choices=what, default="step", help="what to measure (default: step)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of tables")
    parser.add_argument("--rounds", type=_count, default=100, help="turns of each contender (default: 100)")
    parser.add_argument("--small", action="store_const", const=list(SMALL), dest="workloads", help="small nets only")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), metavar="NAME", help="some of " + _quoted())
    parser.add_argument("--contexts", nargs="+", type=_count, default=[1, 2, 4], metavar="N")
    parser.add_argument("--kvstores", nargs="+", choices=step.KVSTORES, default=list(step.KVSTORES), metavar="NAME")
    parser.add_argument(
        "--lengths", nargs="+", type=_count, default=list(bind.LENGTHS), metavar="STEPS", help="of bind"
    )
    parser.add_argument("--buckets", nargs="+", type=_count, metavar="N", help="of switch and memory")
    parser.add_argument("--models", nargs="+", choices=memory.MODELS, default=list(memory.MODELS), metavar="NAME")
    parser.add_argument("--rates", nargs="+", type=float, default=[10.0, 60.0], metavar="HZ", help="of the dashboard")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn with or without the dashboard")
    parser.set_defaults(workloads=list(WORKLOADS))
    return parser


def _quoted() -> str:
    return ", ".join(map(repr, WORKLOADS))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
