"""Settings that every test shares."""

from __future__ import annotations

import os

import hypothesis
import pytest

# The machine's cores are for the contexts; the notebooks' kernels inherit all of these.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")

# No deadline, here or for making examples: a machine that is busy with something else is not a failure.
hypothesis.settings.register_profile(
    "bucketlab",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("bucketlab")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.notebook)
