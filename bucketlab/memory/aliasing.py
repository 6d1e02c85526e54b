"""Which arrays are the same memory: found from where they lie, never by writing into them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any

from bucketlab._engine import mx
from bucketlab.memory.addresses import places
from bucketlab.memory.proof import layout
from bucketlab.memory.snapshot import ArrayRecord, Snapshot, snapshot

__all__ = [
    "AliasGroup",
    "AliasReport",
    "Apart",
    "PoolSharing",
    "aliases",
    "aliases_of",
    "same_memory",
    "shared_bytes",
]

_BOUND_ROLES = ("parameter", "gradient", "auxiliary", "data", "label", "state", "input_gradient", "other")


@dataclass(frozen=True)
class AliasGroup:
    """Arrays that have bytes in common. ``bytes`` counts each byte once, ``declared`` sums the members."""

    name: str
    context: str
    bytes: int
    declared: int
    members: tuple[ArrayRecord, ...]

    @property
    def saved(self) -> int:
        return self.declared - self.bytes

    @property
    def buckets(self) -> tuple[Hashable, ...]:
        return tuple(dict.fromkeys(record.bucket for record in self.members))

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(record.role for record in self.members))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(record.name for record in self.members))

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "context": self.context,
            "bytes": self.bytes,
            "declared": self.declared,
            "saved": self.saved,
            "members": [record.to_dict() for record in self.members],
        }


@dataclass(frozen=True)
class Apart:
    """Arrays of one context, role and name in several buckets that are not one memory, and why.

    ``groups`` gives the memory group in each of ``buckets``.
    """

    context: str
    role: str
    name: str
    buckets: tuple[Hashable, ...]
    groups: tuple[str, ...]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "context": self.context,
            "role": self.role,
            "name": self.name,
            "buckets": list(self.buckets),
            "groups": list(self.groups),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class PoolSharing:
    """The working pools on one context: bytes once, and ``declared`` as each bucket's pool lists them."""

    context: str
    blocks: int
    bytes: int
    declared: int

    @property
    def saved(self) -> int:
        return self.declared - self.bytes


@dataclass(frozen=True)
class AliasReport:
    """The groups with more than one array, and what could have been shared but is not."""

    records: tuple[ArrayRecord, ...]
    groups: tuple[AliasGroup, ...]
    apart: tuple[Apart, ...]
    pools: tuple[PoolSharing, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def saved(self) -> int:
        """Bytes more that the arrays would need if each had its own memory; pools are apart."""
        return sum(group.saved for group in self.groups)

    @property
    def buckets(self) -> tuple[Hashable, ...]:
        """In order of first appearance; None for what belongs to no bucket."""
        return tuple(dict.fromkeys(record.bucket for record in self.records))

    def to_dict(self) -> dict[str, Any]:
        return {
            "arrays": len(self.records),
            "saved": self.saved,
            "groups": [group.to_dict() for group in self.groups],
            "apart": [apart.to_dict() for apart in self.apart],
            "pools": [{**asdict(pool), "saved": pool.saved} for pool in self.pools],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        from bucketlab.views.text import aliases_text

        return aliases_text(self)

    def _repr_html_(self) -> str:
        from bucketlab.views.html import aliases_html

        return aliases_html(self)


def aliases(*sources: Any, **named: Any) -> AliasReport:
    """Which arrays of the sources are the same memory, across buckets, contexts and roles; and which are not,
    and why.

    >>> a = mx.nd.zeros((10, 4))
    >>> aliases([a, a[2:5]]).groups[0].names
    ('0', '1')
    """
    return aliases_of(snapshot(*sources, **named))


def aliases_of(shot: Snapshot) -> AliasReport:
    """The same from a snapshot taken before."""
    members: dict[str, list[ArrayRecord]] = defaultdict(list)
    for record in shot.records:
        members[record.group].append(record)
    groups, pools = [], defaultdict(list)
    for group in shot.groups:
        held = tuple(members[group.name])
        if held[0].role == "pool":
            pools[group.context].append(group)
        elif len(held) > 1:
            groups.append(AliasGroup(group.name, group.context, group.bytes, group.declared, held))
    return AliasReport(
        shot.records,
        tuple(groups),
        _apart(shot),
        tuple(
            PoolSharing(context, len(of), sum(g.bytes for g in of), sum(g.declared for g in of))
            for context, of in pools.items()
        ),
        shot.notes,
    )


def _apart(shot: Snapshot) -> tuple[Apart, ...]:
    """Arrays that buckets could share: of one name and role in one context, yet in more than one group."""
    alike: dict[tuple[int, str, str, str], dict[Hashable, ArrayRecord]] = defaultdict(dict)
    for record in shot.records:
        if record.role in _BOUND_ROLES and record.context_index >= 0:
            alike[record.context_index, record.context, record.role, record.name].setdefault(
                record.bucket, record
            )
    found = []
    for (_, context, role, name), by_bucket in alike.items():
        if len({record.group for record in by_bucket.values()}) > 1:
            found.append(
                Apart(
                    context,
                    role,
                    name,
                    tuple(by_bucket),
                    tuple(record.group for record in by_bucket.values()),
                    _reason(list(by_bucket.values())),
                )
            )
    return tuple(found)


def _reason(records: list[ArrayRecord]) -> str:
    first = records[0]
    storages = sorted({record.storage for record in records})
    if len(storages) > 1:
        return f"stored as {' and '.join(storages)}"
    if first.storage != "default":
        return f"{first.storage}: every bind makes its own {first.role}"
    dtypes = list(dict.fromkeys(record.dtype for record in records))
    if len(dtypes) > 1:
        return f"of types {' and '.join(dtypes)}"
    first_of_group: dict[str, ArrayRecord] = {}
    for record in records:
        first_of_group.setdefault(record.group, record)
    sizes = [record.bytes for record in first_of_group.values()]
    if sizes == sorted(sizes) and len(set(sizes)) > 1 and first.role in ("data", "label", "state"):
        return (
            "a later bucket needed more than was there, so it was allocated anew and the earlier kept its own"
        )
    if len({record.shape for record in records}) > 1:
        return "of other shapes"
    return "bound without sharing"


def same_memory(a: Any, b: Any) -> bool:
    """Whether two NDArrays are the very same bytes, so that writing all of one writes all of the other.

    Holds for reshapes, for equal views at an offset, for sparse arrays in all their parts, for arrays that
    are not allocated yet and for memory lent by numpy or DLPack. False for arrays that only overlap: see
    :func:`shared_bytes`. Writes nothing and waits for nothing. Raises TypeError for what is no NDArray,
    RuntimeError where memory cannot be seen.

    >>> a = mx.nd.zeros((10, 4))
    >>> same_memory(a, a.reshape((4, 10))), same_memory(a[2:5], a[2:5]), same_memory(a, a[2:5])
    (True, True, False)
    """
    one, other = _both(a, b)
    if one.owner == other.owner and one.nbytes == 0 == other.nbytes:
        return True
    if one.context != other.context or one.storage != other.storage or one.nbytes != other.nbytes:
        return False
    return one.nbytes > 0 and all(
        (p.block + p.offset, p.nbytes, p.allocated) == (q.block + q.offset, q.nbytes, q.allocated)
        for p, q in zip(one.spans, other.spans)
    )


def shared_bytes(a: Any, b: Any) -> int:
    """How many bytes two NDArrays have in common; errors as :func:`same_memory`.

    >>> a = mx.nd.zeros((10, 4))
    >>> shared_bytes(a[0:4], a[2:6])
    32
    """
    one, other = _both(a, b)
    if one.context != other.context:
        return 0
    common = 0
    for p in one.spans:
        for q in other.spans:
            if p.allocated == q.allocated and (p.allocated or p.block == q.block):
                begin = max(p.block + p.offset, q.block + q.offset)
                end = min(p.block + p.offset + p.nbytes, q.block + q.offset + q.nbytes)
                common += max(0, end - begin)
    return common


def _both(a: Any, b: Any) -> tuple[Any, Any]:
    for name, array in (("a", a), ("b", b)):
        if not isinstance(array, mx.nd.NDArray):
            raise TypeError(f"{name} is a {type(array).__name__}; give an mx.nd.NDArray")
    found = places([a, b], layout())
    if not found.seen.all():
        raise RuntimeError(
            f"cannot see where the arrays lie: {layout().reason or 'one of them is being changed'}"
        )
    return found[0], found[1]
