"""A bucket plan under sliders: the picture and the totals move with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import ipywidgets
from markupsafe import Markup

from bucketlab.data.arguments import check_contexts, context_names
from bucketlab.data.batching import Budget
from bucketlab.data.compare import compare
from bucketlab.data.keys import Key, key_size
from bucketlab.data.lengths import Cost, Counted, count
from bucketlab.data.plan import BucketPlan
from bucketlab.data.planner import plan_buckets
from bucketlab.errors import BucketlabError, DataError
from bucketlab.views.plans import comparison_html, plan_html, plan_text, totals_html
from bucketlab.views.tables import byte_size, number
from bucketlab.widgets.panels import Panel
from bucketlab.widgets.style import STYLE

__all__ = ["PlanExplorer"]

# How far the sliders go by themselves; what a caller asks for moves their ends.
_BUCKETS, _CONTEXTS, _WORK, _TOKENS, _ROWS = 32, 4, 6, 1 << 17, 4096
_TITLE = Markup('<p class="bl-lab-title"><b>Bucket plan</b> <span>{} sequences, {} tokens</span></p>')
_ALERT = Markup('<p class="bl-failed" role="alert">{}</p>')
_REFUSED = "There is no such plan: {}. Below is the last one that there is."


class Choice(NamedTuple):
    """Where the sliders stand: buckets at most, what a batch may take, the work of each context."""

    k: int
    amount: int
    workloads: tuple[int, ...]


class PlanExplorer:
    """Sliders for the number of buckets, the budget of a batch, contexts and workloads, over the plan they make.

    Takes what ``plan_buckets`` takes; as the last expression of a cell it shows itself. Every move plans anew,
    exactly. :attr:`plan` is what is shown, ready for ``BucketIter`` and ``prebind``; where the sliders ask for what
    cannot be, the reason is shown, and the last plan stays. Raises what ``plan_buckets`` raises, and DataError for
    workloads that are not whole numbers.

    >>> explorer = bl.PlanExplorer(text.lengths, k=6, budget=512, contexts=2)
    >>> train = bl.data.BucketIter(text, explorer.plan)
    """

    def __init__(
        self,
        lengths: Any,
        k: int = 8,
        budget: Budget | int | None = None,
        contexts: int | Sequence[Any] | None = None,
        workloads: Sequence[float] | None = None,
        cost: Cost = None,
    ):
        self._lengths, self._cost = lengths, cost
        self._counted = count(lengths)
        self._budget = Budget.of(budget)
        self._names = () if contexts is None else context_names(contexts)
        start = Choice(k, self._budget.amount, _whole(check_contexts(contexts, workloads, None)))
        self._plan_of = lru_cache(maxsize=128)(self._make)
        self._stands, self._refusal = start, ""
        self._plan_of(start)
        self._held = False
        self._make_widgets(start)
        self._move_to(start)

    # What there is to see

    @property
    def plan(self) -> BucketPlan:
        """The plan that is shown."""
        return self._plan_of(self._stands)

    @property
    def refusal(self) -> str:
        """Why there is no plan where the sliders stand; empty where there is one."""
        return self._refusal

    def set(
        self,
        *,
        k: int | None = None,
        budget: int | None = None,
        contexts: int | None = None,
        workloads: Sequence[float] | None = None,
    ) -> BucketPlan:
        """Move sliders as a hand does, and return the plan. Raises as the constructor does, and moves nothing then.

        ``budget`` is an amount, of the kind that the explorer was made with.
        """
        now = self._choice()
        work = now.workloads
        if contexts is not None or workloads is not None:
            work = _whole(check_contexts(contexts, workloads, None))
        choice = Choice(now.k if k is None else k, now.amount if budget is None else budget, work)
        self._plan_of(choice)
        self._move_to(choice)
        return self.plan

    def __repr__(self) -> str:
        said = [_REFUSED.format(self._refusal)] if self._refusal else []
        return "\n".join([*said, plan_text(self.plan)])

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = self.widget._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        # For places that have no widgets, or do not run this notebook's kernel.
        data["text/html"], data["text/plain"] = plan_html(self.plan), repr(self)
        return bundle

    # Planning

    def _make(self, choice: Choice) -> BucketPlan:
        return plan_buckets(
            self._lengths,
            choice.k,
            replace(self._budget, amount=choice.amount),
            self._context_names(len(choice.workloads)),
            choice.workloads,
            self._cost,
        )

    def _context_names(self, number: int) -> list[str]:
        return [self._names[i] if i < len(self._names) else f"context {i}" for i in range(number)]

    def _choice(self) -> Choice:
        """What the sliders say."""
        work = self._work_sliders[: self._contexts.value]
        return Choice(self._k.value, self._amount.value, tuple(slider.value for slider in work))

    # Showing it

    def _make_widgets(self, start: Choice) -> None:
        different = len(self._counted.values)
        self._k = _slider("buckets, at most", 1, min(_BUCKETS, different), "How many buckets there may be")
        self._amount = ipywidgets.SelectionSlider(
            description="a batch, at most", tooltip="What one batch may take", options=[("", start.amount)], **_LOOK
        )
        self._contexts = _slider("contexts", 1, _CONTEXTS, "How many contexts share each batch")
        self._work_sliders: list[ipywidgets.IntSlider] = []
        self._work = ipywidgets.HBox(layout={"flex_flow": "row wrap"})
        for slider in (self._k, self._amount, self._contexts):
            self._follow(slider)
        self._totals, self._notice, self._picture, self._rules = Panel(""), Panel(""), Panel(""), Panel("")
        title = ipywidgets.HTML(_TITLE.format(f"{self._counted.sequences:,}", f"{self._counted.tokens:,}"))
        sliders = ipywidgets.HBox([self._k, self._amount, self._contexts], layout={"flex_flow": "row wrap"})
        parts = [ipywidgets.HTML(STYLE), title, sliders, self._work, self._totals.widget, self._notice.widget]
        parts.append(self._picture.widget)
        self._others = ipywidgets.Accordion([self._rules.widget], titles=("The same under other systems' rules",))
        self._others.observe(lambda _: self._show_rules(), "selected_index")
        if self._counted.dimensions == 1:
            parts.append(self._others)
        self.widget = ipywidgets.VBox(parts)
        self.widget.add_class("bl-lab")

    def _follow(self, slider: Any) -> None:
        # A chain of pairs takes seconds, single lengths milliseconds: those are planned while the slider still moves.
        slider.continuous_update = self._counted.dimensions == 1
        slider.observe(self._moved, "value")

    def _move_to(self, choice: Choice) -> None:
        with self._holding():
            self._k.max = max(self._k.max, choice.k)
            self._k.value = choice.k
            amounts = _amounts(self._counted, replace(self._budget, amount=choice.amount))
            self._amount.options = [(_amount_text(self._budget.kind, amount), amount) for amount in amounts]
            self._amount.value = choice.amount
            self._contexts.max = max(self._contexts.max, len(choice.workloads))
            self._contexts.value = len(choice.workloads)
            self._offer_work()
            for slider, work in zip(self._work_sliders, choice.workloads):
                slider.max = max(slider.max, work)
                slider.value = work
        self._show()

    def _offer_work(self) -> None:
        """A slider for the work of each context; a single one does all there is."""
        number = self._contexts.value
        for name in self._context_names(number)[len(self._work_sliders) :]:
            slider = _slider(f"work of {name}", 1, _WORK, "Its share of each batch, beside the others'")
            self._follow(slider)
            self._work_sliders.append(slider)
        self._work.children = self._work_sliders[:number] if number > 1 else []

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Several sliders move as one: what they say meanwhile is nobody's wish."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _moved(self, _: Any) -> None:
        if self._held:
            return
        with self._holding():
            self._offer_work()
        self._show()

    def _show(self) -> None:
        choice = self._choice()
        try:
            self._plan_of(choice)
            self._stands, self._refusal = choice, ""
        except BucketlabError as error:
            self._refusal = str(error)
        self._notice.show(lambda: _ALERT.format(_REFUSED.format(self._refusal)) if self._refusal else "")
        self._totals.show(lambda: totals_html(self.plan))
        self._picture.show(lambda: plan_html(self.plan))
        self._show_rules()

    def _show_rules(self) -> None:
        """Other systems' rules take longer than the plan, so they are asked only while somebody looks."""
        if self._others.selected_index is None:
            return
        k, plan = self._stands.k, self.plan
        self._rules.show(
            lambda: comparison_html(compare(self._lengths, k, plan.budget, plan.contexts, plan.workloads))
        )


_LOOK: dict[str, Any] = {
    "style": {"description_width": "120px"},
    "layout": {"width": "325px", "margin": "0 8px 0 0"},
}


def _slider(name: str, low: int, high: int, tooltip: str) -> ipywidgets.IntSlider:
    return ipywidgets.IntSlider(low, low, high, description=name, tooltip=tooltip, **_LOOK)


def _whole(workloads: Sequence[float]) -> tuple[int, ...]:
    if any(work != int(work) for work in workloads):
        raise DataError(f"workloads are {list(workloads)}; the sliders take whole numbers, such as [3, 2] for [1.5, 1]")
    return tuple(int(work) for work in workloads)


def _amounts(counted: Counted, budget: Budget) -> list[int]:
    """Budgets that a slider offers: round ones in steps of about a half, and the one that was asked for."""
    longest: Key = tuple(counted.values.max(axis=0).tolist()) if counted.dimensions == 2 else int(counted.values[-1])
    if budget.kind == "bytes" and budget.bytes_of is not None:
        low = max(int(budget.bytes_of(longest, 1)), 1)
        high = low * 100
        marks = [digit * 10**n for n in range(len(str(high))) for digit in (1, 2, 3, 5, 7)]
    else:
        low = key_size(longest) if budget.kind == "tokens" else 1
        high = min(counted.tokens, _TOKENS) if budget.kind == "tokens" else min(counted.sequences, _ROWS)
        marks = [mark for n in range(high.bit_length()) for mark in (1 << n, (3 << n) // 2)]
    return sorted({budget.amount, *(mark for mark in marks if low <= mark <= high)})


def _amount_text(kind: str, amount: int) -> str:
    return byte_size(amount) if kind == "bytes" else number(amount, kind[:-1])
