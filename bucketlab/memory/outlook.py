"""One run rehearsed, in one order of its buckets: what it holds when everything has settled."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bucketlab.errors import BucketlabError
from bucketlab.memory.amounts import Amount, added, at_least
from bucketlab.memory.besides import Besides, besides
from bucketlab.memory.kept import kept_amounts
from bucketlab.memory.planned import Bucket, Model
from bucketlab.memory.rehearsal import Drafts, Held, RehearsedGroup, RehearsedMemory, held

__all__ = ["Outlook", "Stage"]

ROUNDS = 4
"""How often all buckets run before a rehearsal gives up waiting for a round that binds nothing."""

TEMPORARY, OPERATORS, HEADS = "temporary", "operators", "head gradients"


@dataclass(frozen=True)
class Outlook:
    """``amounts`` are what a ledger will show; ``besides`` what the engine holds besides; ``new`` what each bucket
    added when it first came, in the order of the buckets. ``peak`` is the most that had memory at any step; ``binds``
    counts executor groups bound. ``settled`` is False where buckets go on taking the working memory from each other.
    """

    amounts: tuple[Amount, ...]
    besides: tuple[Amount, ...]
    new: tuple[int, ...]
    peak: int
    binds: int
    settled: bool

    @property
    def total(self) -> int:
        return at_least(self.amounts)

    @property
    def at_least(self) -> int:
        return self.total + at_least(self.besides)


class Stage:
    """Where runs of a model are rehearsed. Plans are made once, for all rehearsals."""

    group_class: type[RehearsedGroup] = RehearsedGroup

    def __init__(self, model: Model):
        self.model = model
        self._drafts = Drafts()
        self._groups: dict[Hashable, RehearsedGroup] = {}
        self._besides: dict[Any, Besides] = {}

    def rehearse(self, buckets: Sequence[Bucket]) -> Outlook:
        """Run the buckets in this order, again and again until nothing is bound any more."""
        memory = RehearsedMemory(self.model.contexts, self.model.working_memory)
        entered: set[Hashable] = set()
        new, before, peak, binds, rounds, quiet = [], 0, 0, 0, 0, False
        now = held(memory, ())
        while not quiet and rounds < ROUNDS:
            quiet, rounds = True, rounds + 1
            for bucket in buckets:
                fresh = self._run(bucket, memory, entered)
                quiet, binds = quiet and not fresh, binds + fresh
                if not fresh and rounds > 1:
                    continue
                now = held(memory, (self._groups[key] for key in entered))
                peak = max(peak, now.total_used)
                if rounds == 1:
                    new.append(now.total - before)
                    before = now.total
        kept = list(self._kept(memory))
        amounts = added((*kept, *self._held(now, memory, buckets)))
        beside = self._beside(now, buckets, at_least(one for one in kept if one.role == "kvstore"))
        return Outlook(amounts, beside, tuple(new), peak + at_least(kept), binds, quiet)

    def needs(self, bucket: Bucket) -> dict[int, Any]:
        """(requirements, draft) of each context, for a bucket that was rehearsed."""
        return self._groups[bucket.key].drafts_of[bucket.shapes.key]

    def rows(self, bucket: Bucket, i: int) -> int | None:
        """Rows that a context has of a bucket's batch; None where nothing counts rows."""
        parts = self._groups[bucket.key].parts_of[bucket.shapes.key]
        return None if not parts else parts[i].stop - parts[i].start

    def _run(self, bucket: Bucket, memory: RehearsedMemory, entered: set[Hashable]) -> bool:
        key = bucket.key
        group = self._groups.get(key)
        try:
            if group is None:
                group = self.group_class(self._drafts, memory, bucket.shapes, **self.model.arguments(key))
                self._groups[key] = group
                entered.add(key)
                group.run(bucket.shapes)
                return True
            if key not in entered:
                group.enter(memory)
                entered.add(key)
            return group.run(bucket.shapes)
        except BucketlabError as error:
            if key is None:
                raise
            raise type(error)(f"bucket {key!r}: {error}") from error

    def _kept(self, memory: RehearsedMemory) -> Iterable[Amount]:
        stores = [one.params.specs for one in memory.contexts]  # type: ignore[attr-defined]
        aux = tuple(memory.contexts[0].aux.values())
        model = self.model
        return kept_amounts(stores, model.context_names, aux, model.training, model.host)

    def _held(self, now: Held, memory: RehearsedMemory, buckets: Sequence[Bucket]) -> Iterable[Amount]:
        roles = self.roles(buckets)
        aux = {name for one in memory.contexts for name in one.aux}
        for array in now.arrays:
            role = "auxiliary" if array.name in aux else roles.get(array.name, "other")
            role = "input_gradient" if array.gradient else role
            if array.stype == "default":
                yield Amount.exactly(str(array.context), role, array.nbytes)
            else:
                yield Amount(str(array.context), role, 0, None, "sparse: as many entries as the data have")
        if not memory.blind:
            for context, size in now.blocks.items():
                yield Amount.exactly(context, "pool", size)
            return
        for i, context in enumerate(self.model.context_names):
            drafts = [self.needs(bucket)[i][1] for bucket in buckets]
            highs = [draft.high for draft in drafts]
            why = next(draft.why for draft in drafts if draft.why)
            shared = f"{why}; between the largest plan and all of them together" if len(drafts) > 1 else why
            yield Amount(
                context, "pool", max(draft.low for draft in drafts),
                None if None in highs else sum(high or 0 for high in highs), shared,
            )  # fmt: skip

    def roles(self, buckets: Iterable[Bucket]) -> dict[str, str]:
        """Roles of arguments that are no parameters, by name."""
        roles = dict.fromkeys(self.model.states, "state")
        for bucket in buckets:
            for role, descs in (("label", bucket.shapes.label or ()), ("data", bucket.shapes.data)):
                for desc in (one for part in descs for one in part) if bucket.shapes.per_context else descs:
                    roles[desc.name] = role
        return roles

    def besides_of(self, bucket: Bucket, i: int) -> Besides:
        """What the operators of one executor take."""
        group, needs = self._groups[bucket.key], self.needs(bucket)[i][0]
        key = (bucket.key, tuple((need.name, need.shape) for need in needs.inputs))
        if key not in self._besides:
            self._besides[key] = besides(group.symbol, needs, self.model.for_training)
        return self._besides[key]

    def _beside(self, now: Held, buckets: Sequence[Bucket], sums: int) -> tuple[Amount, ...]:
        found: list[Amount] = []
        # Adding up the gradients of several contexts is an operator too, on all of them at once.
        most, borrower, unknown = 3 * (sums + 64) if sums else 0, "the sum over contexts", dict[str, None]()
        for bucket in buckets:
            for i, context in enumerate(self.model.context_names):
                one = self.besides_of(bucket, i)
                if one.high != 0:
                    why = "the RNN operator keeps a buffer for each executor, with its weights as oneDNN packs them"
                    found.append(Amount(context, OPERATORS, one.low, one.high, why))
                unknown.update(dict.fromkeys(one.unknown))
                if (one.temporary or 0) > most:
                    most, borrower = one.temporary or 0, repr(one.borrower)
        found += [Amount.exactly(context, HEADS, size) for context, size in now.aside.items() if size]
        space = "operators borrow one space for temporaries, as large as the largest request"
        if unknown:
            found.append(Amount("cpu(0)", TEMPORARY, 0, None, f"{space}; not known for {', '.join(sorted(unknown))}"))
        elif most:
            reason = f"{space}; none asks for more than {borrower} reads and writes"
            found.append(Amount("cpu(0)", TEMPORARY, 0, most, reason))
        return added(found)
