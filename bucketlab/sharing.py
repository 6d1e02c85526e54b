"""What executor groups that share have in common, and whose working memory the others borrow.

The engine plans an executor's working memory when it is bound. An executor bound with another one's pool takes blocks
from it and adds those that it lacks, for good. So the order in which buckets arrive decides how much memory there is in
the end, unless the hungriest one owns the pool. Here it does: when a hungrier one arrives it gets a pool of its own,
and the executors on the old one are let go; each is bound again, on the new pool, when its next batch comes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from bucketlab._engine import mx
from bucketlab._quiet import can_be_quiet, quiet
from bucketlab.binding import ContextMemory, Requirements, TriedAxes
from bucketlab.memory.arena import Arena, refuse_unless_proved

if TYPE_CHECKING:
    from bucketlab.bound import BoundShapes
    from bucketlab.executor_group import DataParallelExecutorGroup

ONE_TEMPORARY = {
    # One copy of the operators' temporary space instead of four that all grow to the largest.
    "MXNET_CPU_TEMP_COPY": "1",
}
MATCHING = {
    # Blocks are reused for entries of like size only: plans of shorter buckets then fit into the longest one's.
    "shared": {"NNVM_EXEC_MATCH_RANGE": "1"},
    # Nothing has to fit into anything: the smallest plan that the engine finds.
    "arena": {"NNVM_AUTO_SEARCH_MATCH_RANGE": "1"},
    # As mx.mod binds, for a forecast of what it would take.
    "mxnet": {},
}
_PLANNING = (*MATCHING["shared"], *MATCHING["arena"])

NO_BACKEND = {
    # oneDNN's backend finds nothing in a graph that trains, and takes a seventh of a bind to do so. Without it the
    # engine says at each bind that there is none.
    "MXNET_SUBGRAPH_BACKEND": "NONE",
}

SMALL_GRAPH = 100
"""Entries of a graph that takes no time to bind: the plan of its working memory is looked for in two ways."""

GROWTH_LOOKED_INTO = 0.02
"""Share of the pool by which an executor may enlarge it before we look whether it should own the pool."""


@contextmanager
def engine_settings(working_memory: str = "shared", backend: bool = True) -> Iterator[None]:
    """The engine's settings for the binds inside only; what the user has set stays. Without ``backend`` graphs are left
    as they are, and the engine is kept from saying so."""
    wanted = {**ONE_TEMPORARY, **MATCHING[working_memory]}
    if not backend and can_be_quiet():
        wanted.update(NO_BACKEND)
    ours = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in ours})
    try:
        with quiet() if "MXNET_SUBGRAPH_BACKEND" in ours else nullcontext():
            yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


@contextmanager
def least_plans() -> Iterator[None]:
    """Within the settings of ``working_memory="shared"``: each plan the smallest that the engine finds, whether or not
    others fit into it."""
    for name in MATCHING["shared"]:
        del os.environ[name]
    os.environ.update(MATCHING["arena"])
    try:
        yield
    finally:
        for name in MATCHING["arena"]:
            del os.environ[name]
        os.environ.update(MATCHING["shared"])


def plan_settings() -> tuple[str | None, ...]:
    """What decides how the engine plans working memory at this moment."""
    return tuple(os.environ.get(name) for name in _PLANNING)


class GroupMemory:
    """The arrays of each context, the groups that use them, and whose results lie in the working memory.

    ``ran`` is what ran last: backward passes and outputs of anything else are stale. ``fed`` are the labels that it was
    fed over several contexts, held until another batch runs. ``graded`` is what ran a backward pass last. ``ahead``:
    executors hold parameters that the host's copies do not show yet. ``told`` are layers that a warning has named
    already. ``tried`` are axes along which shapes may differ.
    """

    def __init__(self, contexts: Sequence[ContextMemory], working_memory: str = "shared"):
        self.contexts = list(contexts)
        self.working_memory = working_memory
        self.arenas = _arenas(self.contexts, working_memory)
        self._turn: BoundShapes | None = None
        self.groups: WeakSet[DataParallelExecutorGroup] = WeakSet()
        self.ran: BoundShapes | None = None
        self.ran_training = False
        self.fed: Any = None
        self.graded: BoundShapes | None = None
        self.ahead = False
        self.told: set[str] = set()
        self.tried = TriedAxes()
        self.unfilled: set[str] = set()
        self.outdated: list[DataParallelExecutorGroup] = []
        self._appetite = 0
        self._own_bytes: int | None = None
        self._settled = any(name in os.environ for name in _PLANNING)
        # Where the pool is planned to be the least: what it would be planned to fit others, and may come to at most.
        self._room: int | None = None
        # The shared pool when it was last looked at: how many blocks, how many bytes.
        self._looked_at: tuple[Sequence[int], int | None] = ((), None)

    @property
    def filled(self) -> set[str]:
        """Names of the parameters and auxiliary states that are here, but for those of a bind that was refused."""
        first = self.contexts[0]
        return {*first.params.weights, *first.aux} - self.unfilled

    @property
    def has_pool(self) -> bool:
        return any(memory.pool is not None for memory in self.contexts)

    def without_executors(self) -> GroupMemory:
        """The same parameters and auxiliary states, with inputs and working memory left behind."""
        kept = GroupMemory([ContextMemory(m.context, m.params, aux=m.aux) for m in self.contexts], self.working_memory)
        kept.unfilled = self.unfilled
        return kept

    def arrays(self, kind: str, name: str) -> list[Any]:
        """A parameter (or auxiliary state) on each context that has it."""
        tables = [memory.params.weights if kind == "parameter" else memory.aux for memory in self.contexts]
        return [table[name] for table in tables if name in table]

    def looks_hungrier(self, needs: Mapping[int, Requirements]) -> bool:
        """Whether these executors probably need more than the pool's owner: they take more input."""
        return _appetite(needs) > self._appetite

    def inputs_grow(self, needs: Mapping[int, Requirements]) -> bool:
        """Whether an input has to be replaced by a larger array: who is bound to the old one would keep it alive."""
        return any(
            array.stype == "default" and array.name in self.contexts[i].inputs
            and self.contexts[i].inputs[array.name].size < array.size
            for i, need in needs.items()
            for array in need.inputs
        )  # fmt: skip

    def owns_more(self, execs: Sequence[Any]) -> bool | None:
        """Whether executors with a pool of their own need more than the pool's owner; None where it cannot be read."""
        mine = self.pool_bytes(execs)
        return None if mine is None or self._own_bytes is None else mine > self._own_bytes

    def grew(self) -> bool:
        """Whether the shared pool has grown since the last look by enough to ask who should own it."""
        pools = [memory.pool for memory in self.contexts if memory.pool is not None]
        (lengths, before), now = self._looked_at, self.pool_lengths(pools)
        # Counting its blocks is quick, adding up their bytes is not: a pool of as many blocks as before is as it was.
        if now == lengths:
            return False
        after = self.pool_bytes(pools)
        self._looked_at = (now, after)
        return before is not None and after is not None and after - before > GROWTH_LOOKED_INTO * max(1, before)

    def pool_bytes(self, execs: Sequence[Any]) -> int | None:
        """Bytes of the executors' working pools, each block once; a rehearsal of this memory counts its own."""
        return pool_bytes(execs)

    def pool_lengths(self, execs: Sequence[Any]) -> list[int]:
        """Entries in each executor's pool; a rehearsal of this memory counts its own."""
        return pool_lengths(execs)

    def owners(self, bound: Callable[[bool], dict[int, Any]], small: bool) -> tuple[dict[int, Any], int | None]:
        """Executors with a pool of their own, and the bytes that it may come to when others add to it (None: any).

        ``bound(False)`` binds them. A plan that others fit into is not always the smallest, so for a ``small`` graph
        both are made. The smallest is taken until what others add makes it the larger one.
        """
        plain = bound(False)
        if not small or self._settled or plan_settings() != (*MATCHING["shared"].values(), None):
            return plain, None
        with least_plans():
            least = bound(False)
        room, taken = self.pool_bytes(list(plain.values())), self.pool_bytes(list(least.values()))
        return (plain, None) if room is None or taken is None or taken >= room else (least, room)

    def sharing_plans(self) -> AbstractContextManager[None]:
        """The settings for binds on the pool: those that it was planned with."""
        return nullcontext() if self._room is None else least_plans()

    def outgrew(self) -> bool:
        """Whether others have made the least pool larger than one that they fit into; from then on that is planned."""
        taken = self._looked_at[1]
        self._settled = self._settled or (self._room is not None and taken is not None and taken > self._room)
        return self._settled and self._room is not None

    def give_pool(self, execs: Mapping[int, Any], needs: Mapping[int, Requirements], room: int | None = None) -> None:
        """Make these executors the owners of the pool, and have all groups let go of those that use the old one.

        ``room`` is what :meth:`owners` says that the pool may come to.
        """
        self._room = room
        for i, executor in execs.items():
            self.contexts[i].pool = executor
        self._appetite = _appetite(needs)
        pools = [memory.pool for memory in self.contexts if memory.pool is not None]
        self._own_bytes = self.pool_bytes(list(execs.values()))
        every = self._own_bytes if len(pools) == len(execs) else self.pool_bytes(pools)
        self._looked_at = (self.pool_lengths(pools), every)
        for group in list(self.groups):
            group.let_go()

    def lay_into_arenas(self, execs: Mapping[int, Any], inputs_grow: bool) -> None:
        """Give executors that have not run yet their working memory in the arenas, which grow if they must."""
        small = {i: need for i, e in execs.items() if (need := self.arenas[i].needs(e)) > self.arenas[i].capacity}
        for i, need in small.items():
            self.arenas[i].grow(need)
        if small or inputs_grow:
            for group in list(self.groups):
                group.let_go()
        for i, executor in execs.items():
            self.arenas[i].lay(executor)

    def take_turn(self, bound: BoundShapes) -> None:
        """Before ``bound`` runs in an arena: wait for what another has under way there."""
        if self._turn is not bound:
            mx.nd.waitall()
            self._turn = bound

    def let_go_of_outdated(self, running: Any) -> None:
        """Groups that were running when the pool was made anew let go of the old one as soon as another runs."""
        waiting, self.outdated = self.outdated, []
        for group in waiting:
            if group is running:
                self.outdated.append(group)
            else:
                group.drop_executors()


def _arenas(contexts: Sequence[ContextMemory], working_memory: str) -> list[Arena]:
    if working_memory not in ("shared", "arena"):
        raise ValueError(f"working_memory is {working_memory!r}; choose 'shared' or 'arena'")
    if working_memory == "shared":
        return []
    refuse_unless_proved()
    others = [str(memory.context) for memory in contexts if memory.context.device_type != "cpu"]
    if others:
        raise ValueError(f"working_memory='arena' is for CPU contexts, and there are {', '.join(others)}; use 'shared'")
    return [Arena(memory.context) for memory in contexts]


def _appetite(needs: Mapping[int, Requirements]) -> int:
    """Bytes of input: what the engine's plan goes with, roughly, and known before it is made."""
    return sum(array.size * array.dtype.itemsize for need in needs.values() for array in need.inputs)


def pool_bytes(execs: Sequence[Any]) -> int | None:
    """Bytes of the executors' working pools as planned, each block once; None where they cannot be read."""
    from bucketlab.memory.addresses import pool_places
    from bucketlab.memory.proof import layout

    places, counts = pool_places(execs, layout())
    if None in counts:
        return None
    blocks = dict(zip(places.block.tolist(), places.block_bytes.tolist()))
    return sum(blocks.values())


def pool_lengths(execs: Sequence[Any]) -> list[int]:
    """Entries in each executor's pool, -1 where they cannot be read."""
    from bucketlab.memory import addresses
    from bucketlab.memory.proof import layout

    return addresses.pool_lengths(execs, layout())
