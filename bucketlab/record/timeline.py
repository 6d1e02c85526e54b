"""Why did memory grow, and at which batch: binds, reshapes and first uses with the bytes that each added."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bucketlab.errors import NotReadyError
from bucketlab.memory.diff import ByteChange
from bucketlab.memory.ledger import REST
from bucketlab.memory.protocol import collect
from bucketlab.record.attach import attached
from bucketlab.record.holdings import Holdings, Reader

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Growth", "Timeline", "growth_of", "timeline"]

_ARRAYS_NAMED = 5
_OF_ALL = ("optimizer", "kvstore", "host")
_OF_INPUTS = ("data", "label", "state", "other", REST)


@dataclass(frozen=True)
class Growth:
    """What one event did to memory: bytes, each counted once, that there are or that the engine has promised.

    ``kind``: "bind", "reshape", "bound again" (executors that had been let go of), "first use" (of executors, with what
    the optimizer then made) or "release". ``step`` is the training step that needed it, 0 before the first, None where
    nobody watched. ``changes`` are by (context, role), outputs within the working pool that holds them; ``arrays``
    names the largest that came, grew or went.
    """

    step: int | None
    kind: str
    bucket: Hashable
    before: int
    after: int
    changes: tuple[ByteChange, ...]
    arrays: tuple[str, ...]

    @property
    def added(self) -> int:
        return self.after - self.before

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "kind": self.kind,
            "bucket": self.bucket,
            "before": self.before,
            "after": self.after,
            "changes": [{"label": list(c.label), "before": c.before, "after": c.after} for c in self.changes],
            "arrays": list(self.arrays),
        }


@dataclass(frozen=True)
class Timeline:
    """Events in order, from ``start`` bytes on. ``switches`` counts changes of bucket; by themselves they add none."""

    start: int
    events: tuple[Growth, ...]
    switches: int
    notes: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        return self.events[-1].after if self.events else self.start

    @property
    def largest(self) -> Growth | None:
        """The event that added most; None where none added anything."""
        most = max(self.events, key=lambda event: event.added, default=None)
        return most if most is not None and most.added > 0 else None

    def plot(self) -> Figure:
        """Bytes after each event, as a matplotlib figure."""
        from bucketlab.views.timeline import timeline_figure

        return timeline_figure(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "end": self.end,
            "switches": self.switches,
            "events": [event.to_dict() for event in self.events],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        from bucketlab.views.timeline import timeline_text

        return timeline_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.timeline import timeline_html

        return timeline_html(self)


def timeline(source: Any) -> Timeline:
    """How the memory of a run came about: of a Recorder, or of a module, by the recorder (or Lab) that watches it.

    For a module that nobody watched, what each bucket added in the order in which they were bound, without steps.
    Raises NotReadyError for a module that is not bound and was not watched.

    >>> recorder = bl.Recorder(mod)
    >>> mod.fit(train, num_epoch=1)
    >>> bl.timeline(mod)
    """
    own = getattr(source, "timeline", None)
    if callable(own):
        found: Timeline = own()
        return found
    recorder = getattr(source, "recorder", None)
    if recorder is not None:
        return timeline(recorder)
    for observer in attached(source):
        watcher = getattr(observer, "__self__", None)
        if callable(getattr(watcher, "timeline", None)):
            return timeline(watcher)
    if not getattr(source, "binded", True):
        raise NotReadyError("nothing is bound yet: attach a Recorder to the module, then train it")
    return _by_bucket(source)


def growth_of(step: int | None, kind: str, bucket: Hashable, before: Holdings, after: Holdings) -> Growth:
    """One event, from what was held before and after it."""
    changes = _without_shifts(
        ByteChange(label, before.roles.get(label, 0), after.roles.get(label, 0))
        for label in dict.fromkeys((*before.roles, *after.roles))
        if before.roles.get(label, 0) != after.roles.get(label, 0)
    )
    arrays = _named(before, after) if changes else ()
    return Growth(step, kind, bucket, before.total, after.total, changes, arrays)


def _without_shifts(changes: Iterable[ByteChange]) -> tuple[ByteChange, ...]:
    """Without what only goes from one role to another: of an input's array each bucket shows as much as it needs."""
    found = list(changes)
    net: dict[str, int] = {}
    for change in found:
        context, role = change.label
        if role in _OF_INPUTS:
            net[context] = net.get(context, 0) + change.added
    return tuple(change for change in found if change.label[1] not in _OF_INPUTS or net[change.label[0]])


def _named(before: Holdings, after: Holdings) -> tuple[str, ...]:
    """The largest arrays behind a change, each name once. What was only made anew, as large as before, is none."""
    sizes: dict[str, int] = {}
    for sign, changed in (("+", after.arrays - before.arrays), ("-", before.arrays - after.arrays)):
        for _, (name, role, size) in changed:
            label = f"{sign}{name} ({role.replace('_', ' ')})"
            sizes[label] = max(sizes.get(label, 0), size)
    return tuple(sorted(sizes, key=lambda label: (-sizes[label], label))[:_ARRAYS_NAMED])


def _by_bucket(module: Any) -> Timeline:
    arrays, pools = collect(module)
    of_buckets = (*(held.bucket for held in arrays), *(pool.bucket for pool in pools))
    keys = dict.fromkeys(bucket for bucket in of_buckets if bucket is not None)
    reader = Reader()
    before = reader.of([held for held in arrays if held.role in _OF_ALL], [])
    start, events = before.total, []
    taken: set[Hashable] = set()
    for key in keys or (None,):
        taken.add(key)
        after = reader.of(
            [held for held in arrays if held.role in _OF_ALL or held.bucket in taken],
            [pool for pool in pools if pool.bucket in taken],
        )
        events.append(growth_of(None, "bind", key, before, after))
        before = after
    note = "nobody watched: what each bucket added in the order in which they were bound; steps are not known"
    return Timeline(start, tuple(events), 0, (note,))
