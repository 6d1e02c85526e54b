"""The parts of the dashboard: each turns plain data into HTML, and says in its own place when it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets
from markupsafe import Markup, escape

__all__ = ["Controls", "Panel", "state_html"]

_BUTTONS = (
    ("run", "Run", "play", "Go on training from a pause"),
    ("pause", "Pause", "pause", "Hold the training at the end of this step"),
    ("step", "Step", "step-forward", "Train one step and hold again"),
    ("stop", "Stop", "stop", "End the training at the end of this step; the module stays usable"),
)

_ENABLED = {
    "running": {"pause", "stop"},
    "pausing": {"run", "stop"},
    "paused": {"run", "step", "stop"},
    "stepping": {"run", "step", "stop"},
}

_STATES = {
    "idle": ("idle", "fit() starts the training"),
    "running": ("running", ""),
    "pausing": ("pausing", "at the end of this step"),
    "paused": ("paused", "Run goes on, Step trains one step"),
    "stepping": ("stepping", ""),
    "stopping": ("stopping", "at the end of this step"),
    "finished": ("finished", ""),
    "stopped": ("stopped", "at a step boundary; the module is as the last step left it"),
}


def state_html(state: str, error: BaseException | None = None) -> str:
    """Where the run is, in words; of a failure what was raised."""
    word, hint = _STATES.get(state, (state, ""))
    if state == "failed":
        hint = Markup("<b>{}</b>: {}").format(type(error).__name__, str(error)) if error is not None else ""
    return Markup('<p class="bl-state" role="status"><i class="{}"></i><b>{}</b> <span>{}</span></p>').format(
        state, word, hint
    )


class Panel:
    """A titled piece of HTML that is replaced only when it changed.

    ``render`` may raise anything: the panel then names the exception where the picture would be.
    """

    def __init__(self, title: str, empty: str = "", scroll: bool = False):
        self.title, self._scroll, self._body = title, scroll, ""
        self.widget = ipywidgets.HTML()
        self._put(f'<p class="bl-empty">{escape(empty)}</p>' if empty else "")

    def show(self, render: Callable[[], str]) -> bool:
        """Show what ``render()`` returns; tells whether that was new."""
        try:
            body = render()
        except Exception as fault:
            body = Markup(
                '<p class="bl-failed" role="alert">This view failed: <b>{}</b>: {}. The training goes on.</p>'
            ).format(type(fault).__name__, str(fault))
        return self._put(body)

    def _put(self, body: str) -> bool:
        if body == self._body and self.widget.value:
            return False
        self._body = body
        if self.title:
            inside = f'<div class="bl-scroll">{body}</div>' if self._scroll else body
            self.widget.value = f'<section class="bl-panel"><h3>{escape(self.title)}</h3>{inside}</section>'
        else:
            self.widget.value = str(body)
        return True


def _asks(action: Callable[[], Any]) -> Callable[[Any], None]:
    def clicked(_: Any) -> None:
        action()

    return clicked


class Controls:
    """Run, Pause, Step and Stop, each enabled only while it can do something, and the state in words."""

    def __init__(self, actions: Any):
        self.buttons: dict[str, ipywidgets.Button] = {}
        for name, label, icon, tooltip in _BUTTONS:
            button = ipywidgets.Button(
                description=label, icon=icon, tooltip=tooltip, disabled=True, layout={"width": "84px"}
            )
            button.on_click(_asks(getattr(actions, name)))
            self.buttons[name] = button
        self._state = Panel("")
        self.widget = ipywidgets.HBox([*self.buttons.values(), self._state.widget])
        self.widget.add_class("bl-controls")
        self.show("idle", None)

    def show(self, state: str, error: BaseException | None) -> None:
        for name, button in self.buttons.items():
            disabled = name not in _ENABLED.get(state, ())
            if button.disabled != disabled:
                button.disabled = disabled
        self._state.show(lambda: state_html(state, error))
