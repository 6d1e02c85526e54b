"""``bucketlab run``: an old script on these classes, recorded, with a report of what it did with them."""

from __future__ import annotations

import atexit
import builtins
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from os import PathLike
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from bucketlab.patching import patch
from bucketlab.record.watch import ModuleRun, Watch

__all__ = ["ScriptRun", "run_script"]


@dataclass(frozen=True)
class ScriptRun:
    """How a script ended, and what it did with modules until then.

    ``status`` is the exit status that Python would have had; ``failure`` the traceback of what ended it, None
    where it ran to its end or left by ``sys.exit``. ``report`` is the page that was written.
    """

    script: str
    arguments: tuple[str, ...]
    status: int
    failure: str | None
    interrupted: bool
    seconds: float
    modules: tuple[ModuleRun, ...]
    report: Path

    def to_dict(self) -> dict[str, Any]:
        return {
            "script": self.script,
            "arguments": list(self.arguments),
            "status": self.status,
            "failure": self.failure,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
            "modules": [module.to_dict() for module in self.modules],
            "report": str(self.report),
        }

    def __repr__(self) -> str:
        from bucketlab.views.run import run_text

        return run_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.run import run_html

        return run_html(self)


def run_script(
    script: str | PathLike[str],
    arguments: Sequence[str] = (),
    report: str | PathLike[str] = "bucketlab-report.html",
) -> ScriptRun:
    """Run a Python script as ``python script`` would, with bucketlab's classes under mxnet's names, and write
    a report.

    Whatever the script raises is printed as Python prints it, and the report is written all the same: of what
    there was by then. Threads that Python would wait for are waited for first. Raises ValueError for a script
    that cannot be read or a report that cannot be written; nothing has run then.

    >>> run_script("train_mnist.py", ["--epochs", "2"], report="mnist.html").status
    0
    """
    path, page = Path(script), Path(report).absolute()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ValueError(f"script is {os.fspath(script)!r}, which cannot be read: {error.strerror}") from error
    if page.is_dir() or not page.parent.is_dir() or not os.access(page if page.exists() else page.parent, os.W_OK):
        raise ValueError(f"report is {os.fspath(report)!r}, which cannot be written; give another file")
    given = [os.fspath(script), *arguments]
    begin = time.perf_counter()
    others = set(threading.enumerate())
    with _as_main(path, given) as main, patch(), Watch() as watch:
        ending = _run(path, source, main)
        _wait_for_threads(others)
        seconds = time.perf_counter() - begin
        modules = watch.modules()
    run = ScriptRun(given[0], tuple(arguments), *ending, seconds, modules, page)
    page.write_text(_page(run), encoding="utf-8")
    return run


def end_like_python() -> Callable[[ScriptRun], int]:
    """Call it before a run, and what it returns after: that is the exit status to leave with.

    A script that was interrupted makes Python end itself by the signal when all else is done, so that a shell
    knows. Exit handlers run last to first, so the script's own come before this one.
    """
    interrupted: list[bool] = []

    def end() -> None:
        if interrupted:
            sys.stdout.flush()
            sys.stderr.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    def finish(run: ScriptRun) -> int:
        if run.interrupted:
            interrupted.append(True)
        return run.status

    atexit.register(end)
    return finish


def _page(run: ScriptRun) -> str:
    from bucketlab.views.run import run_html

    # The script may have asked all loggers to tell everything; what we import now is none of its business.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return run_html(run)
    finally:
        logging.disable(before)


@contextmanager
def _as_main(path: Path, given: list[str]) -> Iterator[ModuleType]:
    """The process as a script finds it: its module is ``__main__``, its arguments and folder are in ``sys``."""
    main = ModuleType("__main__")
    main.__file__ = str(path.absolute())
    main.__loader__ = SourceFileLoader("__main__", main.__file__)
    vars(main).update(__builtins__=builtins, __package__=None, __cached__=None)
    before = sys.modules["__main__"], sys.argv, sys.path[:]
    sys.modules["__main__"] = main
    sys.argv = given
    sys.path[0] = str(path.resolve().parent)
    try:
        yield main
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before


def _run(path: Path, source: bytes, main: ModuleType) -> tuple[int, str | None, bool]:
    """Exit status, traceback, and whether it was interrupted."""
    file = str(path.absolute())
    try:
        exec(compile(source, file, "exec", dont_inherit=True), vars(main))
    except SystemExit as leaving:
        return _status(leaving.code), None, False
    except BaseException as error:
        error.__traceback__ = trace = _of_script(error.__traceback__, file)
        text = "".join(traceback.format_exception(type(error), error, trace))
        sys.excepthook(type(error), error, trace)
        interrupted = isinstance(error, KeyboardInterrupt)
        return (130 if interrupted else 1), text, interrupted
    return 0, None, False


def _status(code: Any) -> int:
    """What ``sys.exit(code)`` ends a process with; a text is printed."""
    if code is None or isinstance(code, int):
        return int(code or 0)
    print(code, file=sys.stderr)
    return 1


def _of_script(trace: TracebackType | None, file: str) -> TracebackType | None:
    """A traceback from the script's own first line on."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace


def _wait_for_threads(others: Collection[threading.Thread]) -> None:
    """Wait for the threads that a script has left; ``others`` were there before it."""
    for thread in threading.enumerate():
        if not thread.daemon and thread not in others:
            thread.join()
