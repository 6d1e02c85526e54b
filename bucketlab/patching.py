"""bucketlab's classes in mxnet's place, for programs that import mxnet by name and shall stay as they are."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, TracebackType
from typing import Any

from bucketlab import helpers, requests
from bucketlab._engine import mx
from bucketlab.executor_group import DataParallelExecutorGroup
from bucketlab.module import base
from bucketlab.module.base import BaseModule
from bucketlab.module.bucketing import BucketingModule
from bucketlab.module.module import Module
from bucketlab.module.python import PythonLossModule, PythonModule
from bucketlab.module.sequential import SequentialModule
from bucketlab.module.svrg import SVRGModule, _SVRGOptimizer

__all__ = ["Patch", "patch"]

_WHERE: dict[str, dict[str, Any]] = {
    "mxnet.module.base_module": {
        "BaseModule": BaseModule,
        "_check_input_names": base._check_input_names,
        "_check_names_match": helpers._check_names_match,
        "_parse_data_desc": helpers._parse_data_desc,
    },
    "mxnet.module.module": {"Module": Module},
    "mxnet.module.bucketing_module": {"BucketingModule": BucketingModule},
    "mxnet.module.sequential_module": {"SequentialModule": SequentialModule},
    "mxnet.module.python_module": {"PythonModule": PythonModule, "PythonLossModule": PythonLossModule},
    "mxnet.module.executor_group": {
        "DataParallelExecutorGroup": DataParallelExecutorGroup,
        "_load_data": helpers._load_data,
        "_load_general": helpers._load_general,
        "_load_label": helpers._load_label,
        "_merge_multi_context": helpers._merge_multi_context,
        "_prepare_group2ctxs": requests.prepare_group2ctxs,
    },
    "mxnet.contrib.svrg_optimization.svrg_module": {"SVRGModule": SVRGModule},
    "mxnet.contrib.svrg_optimization.svrg_optimizer": {"_SVRGOptimizer": _SVRGOptimizer},
}
"""What takes the place of what mxnet defines where, and of the same object wherever else mxnet holds it."""


class _Swap:
    """What was put in place of what, over all of mxnet, and the way back."""

    def __init__(self) -> None:
        pairs = [
            (getattr(importlib.import_module(name), key), ours)
            for name, objects in _WHERE.items()
            for key, ours in objects.items()
        ]
        self._theirs = {id(ours): theirs for theirs, ours in pairs}
        ours_for = {id(theirs): ours for theirs, ours in pairs}
        self._places: list[tuple[ModuleType, str, Any]] = []
        self._known = set()
        for module in _modules_of_mxnet():
            self._known.add(id(module))
            for key, value in list(vars(module).items()):
                if id(value) in ours_for:
                    self._places.append((module, key, value))
                    setattr(module, key, ours_for[id(value)])

    def undo(self) -> None:
        """Put back what was replaced, unless something else has taken the place since."""
        for module, key, value in self._places:
            if self._theirs.get(id(vars(module).get(key))) is value:
                setattr(module, key, value)
        # Modules that mxnet imported in the meantime have taken ours from the others.
        for module in _modules_of_mxnet():
            if id(module) not in self._known:
                for key, value in list(vars(module).items()):
                    if id(value) in self._theirs:
                        setattr(module, key, self._theirs[id(value)])


def _modules_of_mxnet() -> Iterator[ModuleType]:
    prefix = mx.__name__ + "."
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and (name == mx.__name__ or name.startswith(prefix)):
            yield module


# mxnet's namespace is one for the whole process, and so is what was done to it.
_lock = threading.RLock()
_requests: list[Patch] = []
_swap: list[_Swap] = []


class Patch:
    """One request that bucketlab's classes stand in for mxnet's; made by :func:`patch`.

    They do until the last request is undone, in whatever order that happens. As a context manager it is
    undone at the end of the block.
    """

    def __init__(self) -> None:
        with _lock:
            if not _requests:
                _swap.append(_Swap())
            _requests.append(self)

    @property
    def active(self) -> bool:
        """Whether this request still holds."""
        return any(request is self for request in _requests)

    def undo(self) -> None:
        """Withdraw this request; the last one puts back what was replaced. A second call does nothing."""
        with _lock:
            if self.active:
                _requests.remove(self)
                if not _requests:
                    _swap.pop().undo()

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<bucketlab.patch(): {'active' if self.active else 'undone'}>"


def patch() -> Patch:
    """Put bucketlab's classes in mxnet's place: ``mx.mod.Module``, ``mxnet.module.executor_group``, all.

    What a program takes from mxnet from now on is ours: by attribute, by ``from ... import``, in a base
    class, in ``isinstance``. What it has taken before, and modules that it has made, stay what they are.

    >>> with bucketlab.patch():
    ...     runpy.run_path("old_script.py")
    >>> patched = bucketlab.patch()
    >>> patched.undo()
    """
    return Patch()
