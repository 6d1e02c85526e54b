"""The command line: ``bucketlab demo``, ``bucketlab lab`` and ``bucketlab run``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of ``bucketlab``; returns the exit status."""
    parser = _parser()
    given, rest = parser.parse_known_args(arguments)
    if rest and given.command != "lab":
        parser.error(f"{given.command} does not know {' '.join(rest)}")
    given.rest = rest
    try:
        return int(given.run(given))
    except (ValueError, RuntimeError) as refusal:
        print(f"bucketlab {given.command}: {refusal}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bucketlab {given.command}: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bucketlab", description="See inside bucketed, multi-context training on Apache MXNet 1.9.1."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    demo = commands.add_parser(
        "demo",
        help="train a bucketed language model on two CPU contexts, print what it shows, write a report",
        description="Trains a bucketed language model on real sentences over two CPU contexts for about a "
        "minute. Ctrl-C ends the training at the next step; what there is by then is shown all the same.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--epochs", type=_count, default=12, help="passes over the sentences")
    demo.add_argument("--seconds", type=_positive, default=50.0, help="end the training after this long")
    demo.add_argument("--contexts", type=_count, default=2, help="CPU contexts to train on")
    demo.add_argument("--sentences", type=_count, metavar="N", help="take the first N sentences only")
    demo.add_argument("--report", type=Path, default=Path("bucketlab-report.html"), help="the page to write")
    demo.add_argument("--no-progress", action="store_true", help="no progress bar")
    demo.set_defaults(run=_demo)

    lab = commands.add_parser(
        "lab",
        help="open JupyterLab on the notebooks",
        description="Opens JupyterLab on the notebooks: on the checkout's own, or on a copy of the installed "
        "ones. Options that are not listed here go to JupyterLab, for example --no-browser or --port 8890.",
    )
    lab.add_argument("--folder", type=Path, help="work here; copies in what it lacks")
    lab.set_defaults(run=_lab)

    run = commands.add_parser(
        "run",
        help="run a script that imports mxnet on bucketlab's classes, and write a report",
        description="Runs a Python script as `python SCRIPT` does, with bucketlab's classes in the place of "
        "mx.mod's, and writes a report of what it did. It ends with the script's own exit status.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    run.add_argument("--report", type=Path, default=Path("bucketlab-report.html"), help="the page to write")
    run.add_argument("script", type=Path, metavar="SCRIPT", help="the script")
    run.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own arguments")
    run.set_defaults(run=_run)
    return parser


def _demo(given: argparse.Namespace) -> int:
    from bucketlab.demo import run_demo

    run_demo(
        given.report,
        epochs=given.epochs,
        seconds=given.seconds,
        contexts=given.contexts,
        sentences=given.sentences,
        progress=False if given.no_progress else None,
    )
    return 0


def _lab(given: argparse.Namespace) -> int:
    from bucketlab.notebooks import open_lab

    return open_lab(given.folder, given.rest)


def _run(given: argparse.Namespace) -> int:
    from bucketlab.runner import end_like_python, run_script

    finish = end_like_python()
    run = run_script(given.script, given.args, given.report)
    print(f"bucketlab run: report: {run.report}", file=sys.stderr)
    return finish(run)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


if __name__ == "__main__":
    sys.exit(main())
