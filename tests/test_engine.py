"""What `import bucketlab` does, in good order and with each thing that may be wrong, in fresh processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bucketlab
from environments import TRAIN

# Put before the other finders, it hides mxnet as if it were not installed.
HIDE = """
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "mxnet":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""


def python(
    code: str, *options: str, path: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter, away from the checkout, ``path`` before everything installed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=120)


def refusal(code: str, path: Path | None = None, **variables: str) -> str:
    """The message of the EngineError that importing bucketlab after ``code`` ends with."""
    report = """
try:
    import bucketlab
except ImportError as error:
    print(type(error).__module__, type(error).__name__)
    print(error)
"""
    done = python("import sys\n" + code + report, path=path, **variables)
    assert done.returncode == 0, done.stderr
    kind, _, message = done.stdout.partition("\n")
    assert kind == "bucketlab.errors EngineError"
    return message.strip()


def package(folder: Path, name: str, text: str) -> Path:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text)
    return folder


@pytest.mark.slow
def test_training_prints_nothing_but_its_own_lines() -> None:
    done = python(TRAIN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "accuracy True\n", "")


def test_numpy_gets_the_names_it_lacks_and_nothing_else_is_changed() -> None:
    code = """
import os
import numpy as np
class Own: pass
np.object = Own
import bucketlab
print(np.object is Own, [getattr(np, n).__name__ for n in ("bool", "int", "float", "complex", "str")])
print(os.environ["MXNET_SUBGRAPH_VERBOSE"])
"""
    done = python(code, "-W", "error", MXNET_SUBGRAPH_VERBOSE="1")
    assert done.stdout == "True ['bool', 'int', 'float', 'complex', 'str']\n1\n", done.stderr


@pytest.mark.slow
def test_mxnet_that_was_imported_well_before_is_the_one_that_is_used() -> None:
    code = """
import numpy as np
for kind in (bool, int, float, complex, object, str):
    setattr(np, kind.__name__, kind)
import mxnet
import warnings
warnings.simplefilter("error")
import bucketlab
print(bucketlab.mx is mxnet)
"""
    done = python(code)
    assert done.stdout == "True\n", done.stderr


def test_recovers_from_an_import_of_mxnet_that_failed_before_and_says_so() -> None:
    code = """
import sys, warnings
import numpy as np
others = np.__getattr__
def as_in_numpy_1_24(name):
    if name == "bool":
        raise AttributeError(name)
    return others(name)
np.__getattr__ = as_in_numpy_1_24
try:
    import mxnet
except AttributeError as error:
    print(error, "mxnet.ndarray" in sys.modules)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always", RuntimeWarning)
    import bucketlab
print([str(t.message) for t in told if t.category is RuntimeWarning])
import mxnet
print(bucketlab.mx is mxnet)
"""
    done = python(code + TRAIN)
    first, told, same, trained = done.stdout.splitlines()
    assert (first, same, trained) == ("bool True", "True", "accuracy True"), done.stderr
    assert told.count("imported again, which worked") == 1 and "from bucketlab import mx" in told


@pytest.mark.slow
def test_remains_that_stand_for_mxnet_itself_are_replaced() -> None:
    code = "import sys, types; sys.modules['mxnet'] = types.ModuleType('mxnet')\n"
    done = python(code + TRAIN, "-W", "ignore")
    assert done.stdout == "accuracy True\n", done.stderr


def test_an_import_that_fails_again_says_to_restart(tmp_path: Path) -> None:
    package(tmp_path, "mxnet", "from . import base\nraise AttributeError('something else')")
    (tmp_path / "mxnet" / "base.py").touch()
    message = refusal("try:\n    import mxnet\nexcept AttributeError:\n    pass", path=tmp_path)
    assert "AttributeError: something else" in message
    assert "restart Python or the notebook kernel, and import bucketlab first" in message


def test_numpy_2_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    message = refusal("", path=package(tmp_path, "numpy", "__version__ = '2.1.3'"))
    assert message.startswith("mxnet 1.9.1 needs numpy 1.23 to 1.26, and this is numpy 2.1.3.")
    assert 'pip install "numpy>=1.23,<2"' in message


@pytest.mark.parametrize("number", ["3.8", "3.13", "4.0"])
def test_python_outside_its_range_is_refused(number: str) -> None:
    major, minor = number.split(".")
    message = refusal(f"sys.version_info = ({major}, {minor}, 0, 'final', 0)")
    assert message.startswith(f"bucketlab runs on Python 3.9 to 3.12, and this is Python {number}")
    assert "python3.12 -m venv .venv" in message
    assert ("numpy below 2" in message) == (number != "3.8")


def test_missing_mxnet_names_the_command() -> None:
    assert refusal(HIDE) == "mxnet is not installed. Run: pip install mxnet==1.9.1"


@pytest.mark.parametrize("library", ["libgomp.so.1", "libquadmath.so.0"])
def test_missing_shared_library_names_debians_packages(library: str, tmp_path: Path) -> None:
    fake = f"raise OSError('{library}: cannot open shared object file: No such file or directory')"
    message = refusal("", path=package(tmp_path, "mxnet", fake))
    assert f"shared library {library}" in message
    assert "apt-get install libgomp1 libquadmath0" in message


def test_another_version_is_refused_and_placed(tmp_path: Path) -> None:
    message = refusal("", path=package(tmp_path, "mxnet", "mod, __version__ = None, '2.0.0'"))
    assert message.startswith("bucketlab needs mxnet 1.9.1, and found mxnet 2.0.0 in ")
    assert str(tmp_path) in message and "pip install mxnet==1.9.1" in message


def test_a_folder_called_mxnet_is_not_mxnet(tmp_path: Path) -> None:
    package(tmp_path, "mxnet", "")
    message = refusal("", path=tmp_path)
    assert "found a package called mxnet, of no version" in message and str(tmp_path) in message


def test_anything_else_tells_the_error_and_what_is_known_to_work(tmp_path: Path) -> None:
    message = refusal("", path=package(tmp_path, "mxnet", "raise KeyError('surprise')"))
    assert "KeyError: 'surprise'" in message and "numpy 1.23 to 1.26 on Python 3.9 to 3.12" in message


def distutils_user(folder: Path) -> Path:
    uses = "from distutils.version import StrictVersion\nmod, __version__ = None, '1.9.1'"
    return package(folder, "mxnet", uses)


@pytest.mark.slow
def test_setuptools_stands_in_where_python_has_no_distutils() -> None:
    # The variable's value is what it is by default in every setuptools that runs on Python 3.12.
    done = python("import sys; sys.modules['distutils'] = None\n" + TRAIN, SETUPTOOLS_USE_DISTUTILS="local")
    assert done.stdout == "accuracy True\n", done.stderr


def test_no_distutils_at_all_names_the_command(tmp_path: Path) -> None:
    blocked = 'sys.modules["distutils"] = sys.modules["setuptools"] = None'
    message = refusal(blocked, path=distutils_user(tmp_path))
    assert "needs distutils" in message and message.endswith("Run: pip install setuptools")


def test_setuptools_that_is_told_to_keep_away_is_named(tmp_path: Path) -> None:
    blocked = """
import setuptools
for name in {"distutils"} | {name for name in sys.modules if name.startswith("distutils.")}:
    sys.modules[name] = None
"""
    message = refusal(blocked, path=distutils_user(tmp_path), SETUPTOOLS_USE_DISTUTILS="stdlib")
    assert message.endswith("SETUPTOOLS_USE_DISTUTILS=stdlib keeps setuptools from bringing it: unset that")


def test_no_other_file_imports_mxnet() -> None:
    sources = Path(bucketlab.__file__).parent.rglob("*.py")
    importing = [
        source.name
        for source in sources
        if re.search(r"^\s*(import|from) mxnet\b", source.read_text(), re.MULTILINE)
    ]
    assert importing == []
