"""What the dashboard takes of the training time, in a real kernel that sends its messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .report import Report

CASE = "print(__import__('json').dumps(__import__('benchmarks.dashboard_case', fromlist=['main']).main(**{given!r})))"
TESTS = Path(__file__).parents[1]


def run(rates: Sequence[float], rounds: int, seconds: float) -> Report:
    """Train for ``seconds`` without and with a dashboard by turns, so many times, at each rate of painting."""
    rows = []
    for rate in tqdm(rates, desc="dashboard", unit="rate", disable=None):
        found = _in_kernel({"rate": rate, "rounds": rounds, "seconds": seconds})
        rows.append(
            {
                "Hz": rate,
                "us alone": found["alone"] * 1e6,
                "us watched": found["watched"] * 1e6,
                "share": found["share"],
                "of processors": found["processor"],
                "paints a second": found["paints"],
            }
        )
    return Report(
        "dashboard",
        "The dashboard's share of training time",
        rows,
        {
            "Hz": "g", "us alone": ".0f", "us watched": ".0f", "share": "+.1%", "of processors": "+.1%",
            "paints a second": ".1f",
        },
        "A step of a bucketed LSTM on two contexts in a Jupyter kernel, the dashboard shown with all its views. share: "
        "median over the turns of watched / alone - 1, by the clock and by the processors' time.",
    )  # fmt: skip


def _in_kernel(given: dict[str, Any]) -> dict[str, Any]:
    """The result of ``dashboard_case.main(**given)`` in a kernel; raises RuntimeError with what that says otherwise."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", extra_arguments=["--HistoryManager.enabled=False"])
    said: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            said.append(content["text"])
        elif message["msg_type"] == "error":
            said.append("\n".join(content["traceback"]))

    try:
        code = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{CASE.format(given=given)}"
        reply = client.execute_interactive(code, output_hook=hear, timeout=None)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    if reply["content"]["status"] != "ok":
        raise RuntimeError("the kernel failed: " + "".join(said)[-2000:])
    return json.loads("".join(said).strip().splitlines()[-1])  # type: ignore[no-any-return]
