"""The only place that imports mxnet: repairs what it needs of numpy, and says what stands in its way.

MXNet is retired: 1.9.1 is its last release, so what it needs is known and never changes again.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import warnings
from typing import Any

from bucketlab.errors import EngineError

__all__ = ["mx"]

VERSION = "1.9.1"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 9), (3, 12)

# numpy 1.20 deprecated these names for built-in types and 1.24 removed them; mxnet reads some at its import.
REMOVED_FROM_NUMPY = {kind.__name__: kind for kind in (bool, int, float, complex, object, str)}

_MISSING_LIBRARY = re.compile(r"(?P<name>lib[\w.+-]*\.so[.\d]*): cannot open shared object file")


def _load() -> Any:
    """Import mxnet and return it, or raise an :class:`EngineError` that says what to do."""
    _check_python(sys.version_info[:2])
    _repair_numpy()
    _provide_distutils()
    # Read at every bind, so it also serves where mxnet is already there.
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
    had_failed = _forget_failed_import()
    try:
        with warnings.catch_warnings():
            # Its own deprecations are of no use to anybody, and fatal under `python -W error`.
            warnings.simplefilter("ignore")
            module: Any = importlib.import_module("mxnet")
    except Exception as error:
        raise EngineError(_explain(error, had_failed)) from error
    found = getattr(module, "__version__", None)
    if found != VERSION:
        raise EngineError(_other_version(found, _place(module)))
    if had_failed:
        warnings.warn(
            "mxnet had been imported before bucketlab and had failed; it was taken out of sys.modules and "
            "imported again, which worked. Write `from bucketlab import mx` instead of `import mxnet as mx`, "
            "or import bucketlab first.",
            RuntimeWarning,
            stacklevel=2,
        )
    return module


def _check_python(version: tuple[int, ...]) -> None:
    if OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        return
    here = ".".join(map(str, version))
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST_PYTHON, NEWEST_PYTHON))
    text = f"bucketlab runs on Python {oldest} to {newest}, and this is Python {here}"
    if version > NEWEST_PYTHON:
        text += f": mxnet {VERSION} needs numpy below 2, which has no build for it"
    raise EngineError(
        f"{text}. Make an environment with one of these, for example: python{newest} -m venv .venv"
    )


def _repair_numpy() -> None:
    import numpy as np

    if int(np.__version__.split(".")[0]) >= 2:
        raise EngineError(
            f"mxnet {VERSION} needs numpy 1.23 to 1.26, and this is numpy {np.__version__}. "
            'Run: pip install "numpy>=1.23,<2"  (then restart Python or the notebook kernel)'
        )
    # vars(), not hasattr(): asking numpy for a name that it has deprecated or removed makes it warn.
    for name in REMOVED_FROM_NUMPY.keys() - vars(np).keys():
        setattr(np, name, REMOVED_FROM_NUMPY[name])


def _provide_distutils() -> None:
    """Python 3.12 has none; setuptools brings one, by a .pth file that not every kind of install reads."""
    if importlib.util.find_spec("distutils") is None and importlib.util.find_spec("setuptools") is not None:
        importlib.import_module("setuptools")


def _forget_failed_import() -> bool:
    """Whether an import of mxnet failed earlier in this process; if so, its remains are gone now.

    Python drops `mxnet` itself when its import fails, but keeps the submodules that were done by then. A
    second import would build on them, half old and half new.
    """
    names = [name for name in sys.modules if name == "mxnet" or name.startswith("mxnet.")]
    # `mod` comes late in mxnet/__init__.py: a module without it is a ruin, or another thread is still at it.
    done = sys.modules.get("mxnet")
    busy = getattr(getattr(done, "__spec__", None), "_initializing", False)
    if not names or busy or hasattr(done, "mod"):
        return False
    for name in names:
        del sys.modules[name]
    return True


def _explain(error: Exception, had_failed: bool) -> str:
    """What stands in the way of ``import mxnet``, and what to do about it."""
    missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
    library = _MISSING_LIBRARY.search(str(error))
    found = _installed_version()
    if missing == "mxnet":
        text = f"mxnet is not installed. Run: pip install mxnet=={VERSION}"
    elif missing.split(".")[0] == "distutils":
        text = _no_distutils()
    elif library:
        text = (
            f"mxnet is installed, but the shared library {library['name']} that it needs is not. "
            "On Debian or Ubuntu run, as root: apt-get install libgomp1 libquadmath0"
        )
    elif found not in (None, VERSION):
        text = _other_version(found, "this environment")
    else:
        import numpy as np

        text = (
            f"mxnet {found or ''} could not be imported: {type(error).__name__}: {error}. It is known to "
            "work with numpy 1.23 to 1.26 on Python 3.9 to 3.12; here are "
            f"numpy {np.__version__} and Python {sys.version.split()[0]}"
        )
    if had_failed:
        text += (
            " (It had been imported before bucketlab and had failed then, too: once this is mended, restart "
            "Python or the notebook kernel, and import bucketlab first.)"
        )
    return text


def _no_distutils() -> str:
    text = f"mxnet {VERSION} needs distutils, which Python {sys.version.split()[0]} does not have"
    if importlib.util.find_spec("setuptools") is None:
        return f"{text}; setuptools brings it. Run: pip install setuptools"
    setting = os.environ.get("SETUPTOOLS_USE_DISTUTILS")
    if setting is not None:
        return f"{text}, and SETUPTOOLS_USE_DISTUTILS={setting} keeps setuptools from bringing it: unset that"
    return f"{text}, and neither has the setuptools that is installed. Run: pip install --upgrade setuptools"


def _place(module: Any) -> str:
    return getattr(module, "__file__", None) or ", ".join(getattr(module, "__path__", ["an unknown place"]))


def _other_version(found: str | None, place: str) -> str:
    what = f"mxnet {found}" if found else "a package called mxnet, of no version,"
    return f"bucketlab needs mxnet {VERSION}, and found {what} in {place}. Run: pip install mxnet=={VERSION}"


def _installed_version() -> str | None:
    try:
        return importlib.metadata.version("mxnet")
    except importlib.metadata.PackageNotFoundError:
        return None


mx: Any = _load()
