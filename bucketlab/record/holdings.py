"""What a module holds by context and role, read fast enough for every structural event.

The sums are those of a ledger. It is fast because arrays that many buckets show are taken once, and because an
executor's blocks, which stay what they were at its bind, are read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from bucketlab.memory.addresses import places, pool_lengths, pool_places
from bucketlab.memory.ledger import ledger_of
from bucketlab.memory.proof import layout
from bucketlab.memory.protocol import HeldArray, HeldPool, collect
from bucketlab.memory.snapshot import take

__all__ = ["Holdings", "Named", "Reader"]

POOL = "pool"


class Named(NamedTuple):
    """An array as a person knows it."""

    name: str
    role: str
    bytes: int


@dataclass(frozen=True)
class Holdings:
    """Bytes by (context, role), each once, promised ones included; outputs count to the pool that holds them.

    ``arrays`` counts arrays that have a place of their own by what a person knows of them, and the context.
    """

    roles: dict[tuple[str, str], int]
    arrays: Counter[tuple[str, Named]]

    @property
    def total(self) -> int:
        return sum(self.roles.values())


class Reader:
    """Reads the holdings of modules, and remembers the blocks of executors that it has seen."""

    def __init__(self) -> None:
        self._blocks: WeakKeyDictionary[Any, tuple[int, dict[int, tuple[str, int]]]] = WeakKeyDictionary()

    def read(self, module: Any) -> Holdings:
        return self.of(*collect(module))

    def of(self, arrays: Sequence[HeldArray], pools: Sequence[HeldPool]) -> Holdings:
        """The same of arrays and pools that were collected before."""
        shown = take(_once([held for held in arrays if held.role != "output"]))
        roles = {(row.context, row.role): row.distinct for row in ledger_of(shown).roles}
        # Executors that were laid into an arena have their blocks in it, and it is among the arrays.
        executors = {id(p.executor): p.executor for p in pools if getattr(p.executor, "_arena", None) is None}
        for context, size in self._distinct(list(executors.values())).values():
            roles[context, POOL] = roles.get((context, POOL), 0) + size
        # Of what lies in one place, the largest. Where that is says nothing: promised memory has no address yet.
        largest: dict[tuple[str, int], Named] = {}
        for record in sorted(shown.records, key=attrgetter("bytes")):
            if record.role != POOL:
                largest[record.context, record.address] = Named(record.name, record.role, record.bytes)
        return Holdings(roles, Counter((context, named) for (context, _), named in largest.items()))

    def _distinct(self, executors: Sequence[Any]) -> dict[int, tuple[str, int]]:
        """Context and bytes of every block, by the object that owns it; none where pools cannot be read."""
        found: dict[int, tuple[str, int]] = {}
        for executor, length in zip(executors, pool_lengths(executors, layout())):
            known = self._blocks.get(executor)
            if known is None or known[0] != length:
                table, _ = pool_places([executor], layout())
                blocks = zip(table.context, table.block_bytes.tolist())
                known = self._blocks[executor] = (length, dict(zip(table.owner.tolist(), blocks)))
            found.update(known[1])
        return found


def _once(arrays: Sequence[HeldArray]) -> list[HeldArray]:
    """One array for each role and place in memory; sparse ones, which have several places, all of them."""
    table = places([held.array for held in arrays], layout())
    if len(table.of) != len(table) or not table.seen.all():
        return list(arrays)
    kinds = {role: i for i, role in enumerate(dict.fromkeys(held.role for held in arrays))}
    roles = np.array([kinds[held.role] for held in arrays], np.int64)
    columns = np.column_stack([table.block, table.offset, table.span_bytes, roles])
    _, first = np.unique(columns, axis=0, return_index=True)
    return [arrays[i] for i in sorted(first.tolist())]
