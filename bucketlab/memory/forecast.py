"""What a run will take, before anything runs: every byte by bucket, context and role, with sharing.

Parameters, gradients, inputs, states and sums follow from shapes and types. Working memory is learnt by binding to
arrays that are never allocated (:mod:`bucketlab.memory.dry`), and its sharing by rehearsing the run
(:mod:`bucketlab.memory.rehearsal`). What operators take besides is an interval (:mod:`bucketlab.memory.besides`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations
from typing import TYPE_CHECKING, Any

from bucketlab.errors import BudgetError
from bucketlab.memory.amounts import Amount, added, at_least, at_most
from bucketlab.memory.outlook import OPERATORS, Outlook, Stage
from bucketlab.memory.planned import Bucket, make_bucket, read_batches, read_model
from bucketlab.memory.search import largest_within
from bucketlab.memory.shape_rule import ShapeRule, ShapesOf
from bucketlab.slicing import divisor
from bucketlab.views.tables import byte_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bucketlab.memory.ledger import Ledger

__all__ = ["BucketForecast", "Comparison", "ContextForecast", "Forecast", "forecast"]

_ALL_ORDERS_UP_TO = 4
_BINDS_IN_ALL = 600


@dataclass(frozen=True)
class ContextForecast:
    """One bucket on one context: the bytes of every role as if it were alone there.

    The role "pool" is the working memory, of which the outputs show ``outputs`` bytes; "operators" are their own
    buffers.
    """

    context: str
    rows: int | None
    amounts: tuple[Amount, ...]
    outputs: int

    def of(self, role: str) -> int:
        """Bytes of a role, at least."""
        return at_least(amount for amount in self.amounts if amount.role == role)


@dataclass(frozen=True)
class BucketForecast:
    """One bucket. ``alone`` are the bytes of arrays and working memory that a run of it alone takes, all contexts and
    the optimizer included; ``new`` what it adds when it first comes, in the order given (less than 0: it frees more
    than it takes).
    """

    bucket: Hashable
    rows: int | None
    contexts: tuple[ContextForecast, ...]
    alone: int
    new: int


@dataclass(frozen=True)
class Forecast:
    """What a run will take. All figures are bytes.

    ``amounts`` are the whole run's by context and role, each byte once, as ``memory(module)`` will show them (there
    "pool" and "output" apart, here together). ``besides`` is what the engine holds that no array shows.
    ``total`` is when every bucket has come and been met again, in the order given; ``peak`` the most on the way.
    """

    buckets: tuple[BucketForecast, ...]
    amounts: tuple[Amount, ...]
    besides: tuple[Amount, ...]
    order: tuple[Hashable, ...]
    total: int
    peak: int
    best_order: tuple[Hashable, ...]
    best_total: int
    orders_tried: int
    working_memory: str
    notes: tuple[str, ...]
    _office: _Office = field(repr=False, compare=False)

    @property
    def exact(self) -> bool:
        """Whether ``total`` is exact: no plan that cannot be read, nothing sparse, no kvstore of its own."""
        return all(amount.exact for amount in self.amounts)

    @property
    def at_least(self) -> int:
        """``total`` and what operators are certain to hold besides."""
        return self.total + at_least(self.besides)

    @property
    def at_most(self) -> int | None:
        """The same with the upper end of all that is uncertain; None where no bound is known."""
        return at_most((*self.amounts, *self.besides))

    @property
    def default_bucket_key(self) -> Hashable:
        """The bucket that should be the default: first in the best order."""
        return self.best_order[0]

    @property
    def hungriest(self) -> BucketForecast:
        """The bucket that takes most when it runs alone: what no sharing can go below."""
        return max(self.buckets, key=lambda bucket: bucket.alone)

    def of(self, context: str | None = None, role: str | None = None) -> int:
        """Bytes, at least, of a context, a role, or a role on a context."""
        return at_least(a for a in self.amounts if context in (None, a.context) and role in (None, a.role))

    def __getitem__(self, bucket: Hashable) -> BucketForecast:
        for found in self.buckets:
            if found.bucket == bucket:
                return found
        raise KeyError(f"there is no bucket {bucket!r} in the forecast; it has {list(self.order)}")

    def bytes_of(self, bucket_key: Any, rows: int) -> int:
        """Bytes, at least, that a run of one bucket alone takes with so many rows a batch, all contexts together.

        A byte cost for ``Budget.bytes``: any key is taken whose shapes follow from those of the forecast. Plans are
        made once for each size of a slice, each as long as a bind takes.

        >>> plan = bl.data.plan_buckets(lengths, budget=Budget.bytes(2 * 10**9, forecast.bytes_of))
        """
        return self._office.bytes_of(bucket_key, rows)

    def largest_batch(self, limit_bytes: int, bucket_key: Any = None, step: int | None = None) -> int:
        """The most rows a batch may have so that the run stays within so many bytes, all contexts together.

        For one bucket alone if ``bucket_key`` is given, else for all of them with the same rows, in the best order.
        A multiple of ``step``; by default of what the contexts divide where the split is exact, else of 1. Raises
        BudgetError where the smallest batch takes more.
        """
        return self._office.largest_batch(limit_bytes, bucket_key, step)

    def under_mxnet(self) -> Forecast:
        """The same run as mx.mod would share it, in the order given and in its best one."""
        return self._office.under_mxnet()

    def compare(self, run: Any) -> Comparison:
        """This forecast beside what a run holds: a module, or the ledger of one."""
        return compare(self, run)

    def plot(self) -> Figure:
        """Bars: each bucket alone, and all of them with sharing, as a matplotlib figure."""
        from bucketlab.views.forecast import forecast_figure

        return forecast_figure(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "exact": self.exact,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "peak": self.peak,
            "order": list(self.order),
            "best_order": list(self.best_order),
            "best_total": self.best_total,
            "orders_tried": self.orders_tried,
            "default_bucket_key": self.default_bucket_key,
            "working_memory": self.working_memory,
            "amounts": [amount.to_dict() for amount in self.amounts],
            "besides": [amount.to_dict() for amount in self.besides],
            "buckets": [
                {
                    "bucket": bucket.bucket,
                    "rows": bucket.rows,
                    "alone": bucket.alone,
                    "new": bucket.new,
                    "contexts": [
                        {
                            "context": one.context,
                            "rows": one.rows,
                            "outputs": one.outputs,
                            "amounts": [amount.to_dict() for amount in one.amounts],
                        }
                        for one in bucket.contexts
                    ],
                }
                for bucket in self.buckets
            ],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        from bucketlab.views.forecast import forecast_text

        return forecast_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.forecast import forecast_html

        return forecast_html(self)


def forecast(
    model: Any,
    batches: Any = None,
    contexts: Any = None,
    *,
    workloads: Sequence[float] | None = None,
    optimizer: Any = None,
    kvstore: Any = "local",
    split: str | None = None,
    working_memory: str | None = None,
    default_bucket_key: Hashable = None,
    for_training: bool | None = None,
    inputs_need_grad: bool | None = None,
    grad_req: Any = None,
    fixed_param_names: Sequence[str] | None = None,
    state_names: Sequence[str] | None = None,
    group2ctxs: Any = None,
    shapes_of: ShapesOf | None = None,
) -> Forecast:
    """What a run will take, before anything runs; nothing is run and no array of it is allocated.

    ``model``: a Module or BucketingModule, bound or not, a ``sym_gen``, or a Symbol. ``batches``: an iterator with
    ``shapes()`` such as BucketIter, a BucketPlan, a mapping of key to (data_shapes, label_shapes) in the order in which
    buckets come, batches, or for a single symbol one such pair; without them, the buckets that are bound.
    ``contexts``: a number of CPU contexts, one or a list; by default the module's, or as many as the plan is for.

    ``optimizer`` is a name, (name, settings) or an instance, by default the module's, else "sgd"; ``kvstore`` goes with
    it. The others are as in BucketingModule and its bind, by default as the module has them. ``shapes_of(key, rows)``
    gives (data_shapes, label_shapes) where they do not follow from those of the batches.

    It takes one bind for each different slice of a batch. Raises TypeError for a model that is none of these, and as a
    bind does for shapes that do not fit, naming the bucket.

    >>> bl.forecast(bl.models.lstm_lm(vocab=500), train, contexts=2, optimizer=("sgd", {"momentum": 0.9}))
    """
    found = read_model(
        model, batches, contexts, workloads, optimizer, kvstore,
        split=split, working_memory=working_memory, default_key=default_bucket_key, for_training=for_training,
        inputs_need_grad=inputs_need_grad, grad_req=grad_req, group2ctxs=group2ctxs,
        fixed=None if fixed_param_names is None else tuple(fixed_param_names),
        states=None if state_names is None else tuple(state_names),
    )  # fmt: skip
    buckets = read_batches(batches, found)
    notes = []
    if getattr(batches, "last", None) == "short":
        notes.append("the iterator's last batches may have fewer rows (last='short'); what they add is not in here")
    return _Office(Stage(found), buckets, ShapeRule(buckets, shapes_of), notes).forecast()


class _Office:
    """Makes a forecast, and answers what it is asked afterwards."""

    def __init__(self, stage: Stage, buckets: Sequence[Bucket], rule: ShapeRule, notes: Sequence[str]):
        self.model, self.stage, self.buckets, self.rule = stage.model, stage, list(buckets), rule
        self.notes = tuple(notes)
        self._costs: dict[tuple[Any, int], int] = {}
        self._best: tuple[Bucket, ...] = ()

    def forecast(self) -> Forecast:
        given = self.stage.rehearse(self.buckets)
        alone = [self.stage.rehearse([bucket]) for bucket in self.buckets]
        self._best, best, tried = self._search(given, [one.total for one in alone])
        notes = list(self.notes)
        if not given.settled:
            notes.append("buckets go on taking the working memory from each other; the total is that of the last round")
        return Forecast(
            buckets=tuple(map(self._bucket, self.buckets, alone, given.new)),
            amounts=given.amounts,
            besides=given.besides,
            order=tuple(dict.fromkeys(bucket.key for bucket in self.buckets)),
            total=given.total,
            peak=given.peak,
            best_order=tuple(dict.fromkeys(bucket.key for bucket in self._best)),
            best_total=best.total,
            orders_tried=tried,
            working_memory=self.model.working_memory,
            notes=tuple(notes),
            _office=self,
        )

    def _bucket(self, bucket: Bucket, alone: Outlook, new: int) -> BucketForecast:
        contexts = []
        for i, (needs, draft) in sorted(self.stage.needs(bucket).items()):
            context, roles = self.model.context_names[i], self.stage.roles([bucket])
            found = [Amount.exactly(context, "parameter", _size(spec)) for spec in needs.params]
            found += [Amount.exactly(context, "gradient", _size(spec)) for spec in needs.params if spec.trains]
            found += [Amount.exactly(context, "auxiliary", _size(need)) for need in needs.aux]
            found += [Amount.exactly(context, roles.get(need.name, "other"), _size(need)) for need in needs.inputs]
            found += [Amount.exactly(context, "input_gradient", _size(need)) for need in needs.input_grads]
            found.append(Amount(context, "pool", draft.low, draft.high, draft.why))
            own = self.stage.besides_of(bucket, i)
            if own.high != 0:
                found.append(Amount(context, OPERATORS, own.low, own.high))
            rows = self.stage.rows(bucket, i)
            contexts.append(ContextForecast(context, rows, added(found), draft.outputs))
        return BucketForecast(bucket.key, bucket.rows, tuple(contexts), alone.total, new)

    def _search(self, given: Outlook, alone: Sequence[int]) -> tuple[tuple[Bucket, ...], Outlook, int]:
        """The order that ends with the fewest bytes, of those tried; then with the lowest peak and the fewest binds."""
        best, order, tried = given, tuple(self.buckets), 1
        for candidate in self._orders(alone):
            if candidate == tuple(self.buckets):
                continue
            outlook = self.stage.rehearse(candidate)
            tried += 1
            if (outlook.total, outlook.peak, outlook.binds) < (best.total, best.peak, best.binds):
                best, order = outlook, candidate
            if best.total <= max(alone):
                # Nothing can be below what one bucket takes when it is alone.
                break
        return order, best, tried

    def _orders(self, alone: Sequence[int]) -> Iterator[tuple[Bucket, ...]]:
        """By falling hunger first; then all orders of few buckets, and of many each other one before the rest."""
        size = dict(zip(map(id, self.buckets), alone))
        falling = tuple(sorted(self.buckets, key=lambda bucket: -size[id(bucket)]))
        yield falling
        if len(falling) <= _ALL_ORDERS_UP_TO:
            yield from islice(permutations(falling), 1, None)
            return
        yield tuple(sorted(self.buckets, key=lambda bucket: -(bucket.rows or 0)))
        for first in falling[1 : 1 + _BINDS_IN_ALL // len(falling) ** 2]:
            yield (first, *(bucket for bucket in falling if bucket is not first))

    def under_mxnet(self) -> Forecast:
        from bucketlab.memory.theirs import TheirStage

        return _Office(TheirStage(self.model), self.buckets, self.rule, self.notes).forecast()

    def bytes_of(self, key: Any, rows: int) -> int:
        if (key, rows) not in self._costs:
            bucket = make_bucket(self.model, key, *self.rule.shapes(key, rows))
            self._costs[key, rows] = self.stage.rehearse([bucket]).at_least
        return self._costs[key, rows]

    def largest_batch(self, limit: int, key: Any, step: int | None) -> int:
        if isinstance(limit, bool) or limit < 1:
            raise BudgetError(f"limit_bytes is {limit!r}; give a whole number of bytes of at least 1")
        step = step or (divisor(self.model.workload) if self.model.split == "exact" else 1)
        keys = [key] if key is not None else list(dict.fromkeys(bucket.key for bucket in self._best))
        one = len(keys) == 1

        def cost(steps: int) -> int:
            if one:
                return self.bytes_of(keys[0], steps * step)
            shapes = [(each, *self.rule.shapes(each, steps * step)) for each in keys]
            return self.stage.rehearse([make_bucket(self.model, *shape) for shape in shapes]).at_least

        rows = [bucket.rows for bucket in self.buckets if bucket.key in keys and bucket.rows]
        most = largest_within(cost, limit, max(1, min(rows, default=1) // step))
        if not most:
            whose = f"bucket {keys[0]!r} alone" if one and keys[0] is not None else "the run"
            raise BudgetError(
                f"a batch of {step} row(s) does not fit: {whose} would take {byte_size(cost(1))} at least on "
                f"{', '.join(self.model.context_names)}, and limit_bytes is {byte_size(limit)}"
            )
        return most * step


def _size(need: Any) -> int:
    size: int = need.size * need.dtype.itemsize
    return size


@dataclass(frozen=True)
class Comparison:
    """A forecast beside a run: (context, role, forecast, run) in bytes. Working memory counts with its outputs."""

    rows: tuple[tuple[str, str, Amount, int], ...]

    @property
    def off(self) -> float:
        """The sum of all differences as a share of what the run holds; intervals differ by what lies outside."""
        run = sum(size for *_, size in self.rows)
        return sum(_outside(amount, size) for _, _, amount, size in self.rows) / max(1, run)

    def __repr__(self) -> str:
        from bucketlab.views.forecast import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.forecast import comparison_html

        return comparison_html(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "off": self.off,
            "rows": [
                {"context": context, "role": role, "low": amount.low, "high": amount.high, "run": size}
                for context, role, amount, size in self.rows
            ],
        }


def _outside(amount: Amount, size: int) -> int:
    above = 0 if amount.high is None else size - amount.high
    return max(amount.low - size, above, 0)


def compare(expected: Forecast, run: Any) -> Comparison:
    """A forecast beside what a run holds; see :class:`Comparison`."""
    from bucketlab.memory.ledger import Ledger, memory

    book: Ledger = run if isinstance(run, Ledger) else memory(run)
    held: dict[tuple[str, str], int] = {}
    for row in book.roles:
        where = (row.context, "pool" if row.role == "output" else row.role)
        held[where] = held.get(where, 0) + row.distinct
    found: Mapping[tuple[str, str], Amount] = {(a.context, a.role): a for a in expected.amounts}
    keys = dict.fromkeys((*found, *held))
    rows = [(*key, found.get(key, Amount.exactly(*key, 0)), held.get(key, 0)) for key in keys]
    return Comparison(tuple(row for row in rows if row[3] or row[2].high != 0))
