"""The executor groups of a run, rehearsed: the same cuts, the same sharing, on memory that is only promised.

A :class:`RehearsedGroup` is a real executor group that binds to nothing. Who owns the working memory, who lets go of it
and when an input is replaced is decided by the code that decides it in the run; only how the engine hands out blocks is
written here once more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from bucketlab import binding
from bucketlab.binding import ArrayNeed, ContextMemory, Requirements
from bucketlab.bound import BoundTable
from bucketlab.executor_group import DataParallelExecutorGroup
from bucketlab.memory.arena import ALIGNMENT
from bucketlab.memory.dry import Draft, dry_bind
from bucketlab.shapes import BatchShapes
from bucketlab.sharing import GroupMemory, plan_settings
from bucketlab.training.flat import FlatParameters, ParamSpec

__all__ = ["Block", "Drafts", "Promise", "PromisedParameters", "RehearsedGroup", "RehearsedMemory"]

class Block:
    """A block of working memory, known by its identity. The engine gives it memory when it is first ``used``."""

    __slots__ = ("context", "nbytes", "used")

    def __init__(self, context: str, nbytes: int):
        self.context, self.nbytes, self.used = context, nbytes, False


class Promise:
    """Stands for an array in all that sharing looks at."""

    def __init__(self, need: ArrayNeed | ParamSpec, stype: str | None = None, gradient: bool = False):
        self.name = need.name
        self.gradient = gradient
        self.shape = need.shape
        self.size = need.size
        self.dtype = np.dtype(need.dtype)
        self.stype = need.stype if stype is None else stype
        self.context = need.context

    @property
    def nbytes(self) -> int:
        """Bytes of all elements; a sparse array has fewer, and indices beside them."""
        return self.size * self.dtype.itemsize


@dataclass(eq=False)
class PromisedExecutor:
    """``blocks`` are those of its plan; ``pool`` those that it keeps alive, with what others added to it."""

    blocks: list[Block]
    pool: list[Block]
    arrays: list[Promise]
    aside: int

    # What a group looks at in an executor that it binds.
    _monitor_callback = None


class PromisedParameters(FlatParameters):
    """Parameters with the checks of the real ones, and no memory."""

    def ensure(self, specs: Sequence[ParamSpec]) -> None:
        for spec in specs:
            known = self._specs.get(spec.name)
            if known is not None:
                self._check(known, spec)
            if known is None or (spec.trains and not known.trains):
                self._specs[spec.name] = spec
                self.weights[spec.name] = Promise(spec)
                if spec.trains:
                    self.grads[spec.name] = Promise(spec, spec.grad_stype, gradient=True)

    @property
    def specs(self) -> tuple[ParamSpec, ...]:
        return tuple(self._specs.values())


class PromisedArena:
    """The sizes of an arena."""

    def __init__(self, context: Any):
        self.context, self.capacity = str(context), 0
        self.block = Block(self.context, 0)

    def needs(self, executor: PromisedExecutor) -> int:
        return sum(_padded(block.nbytes) for block in executor.blocks)

    def grow(self, nbytes: int) -> None:
        self.capacity = _padded(nbytes)
        self.block = Block(self.context, self.capacity + ALIGNMENT)

    def lay(self, executor: PromisedExecutor) -> None:
        executor.blocks = executor.pool = [self.block]


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class RehearsedMemory(GroupMemory):
    """What groups have in common, without memory. ``blind``: some plan could not be read, so no sizes are known."""

    def __init__(self, contexts: Sequence[Any], working_memory: str = "shared"):
        super().__init__([ContextMemory(context, PromisedParameters(context)) for context in contexts])
        self.working_memory = working_memory
        if working_memory == "arena":
            self.arenas = [PromisedArena(context) for context in contexts]  # type: ignore[misc]
        self.blind = False

    def pool_bytes(self, execs: Sequence[Any]) -> int | None:
        return None if self.blind else _bytes(block for executor in execs for block in executor.pool)

    def pool_lengths(self, execs: Sequence[Any]) -> list[int]:
        return [len(executor.pool) for executor in execs]


def _bytes(blocks: Iterable[Block]) -> int:
    return sum(block.nbytes for block in {id(block): block for block in blocks}.values())


class Drafts:
    """Plans of executors by what decides them, each made once. Contexts of one kind plan alike."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[Any, str, Draft]] = {}

    def get(self, group: RehearsedGroup, i: int, needs: Requirements) -> Draft:
        context, homes = group.contexts[i], group.group2ctxs[i]
        key: list[Any] = [id(group.symbol), group.for_training, group._memory.working_memory, plan_settings()]
        key += [context.device_type, None if homes is None else (context.device_id, str(sorted(homes.items())))]
        every: tuple[Any, ...] = (*needs.params, *needs.inputs, *needs.aux)
        key += [(need.name, need.shape, need.dtype.str, need.stype) for need in every]
        key += sorted(group.grad_req.items())
        known = self._made.get(tuple(key))
        if known is None:
            made = dry_bind(group.symbol, context, needs, group.grad_req, homes)
            # The symbol is held, so that no other one comes to be known by its id.
            known = self._made[tuple(key)] = (group.symbol, str(context), made)
        return known[2].on(known[1], str(context))


class RehearsedGroup(DataParallelExecutorGroup):
    """An executor group that binds nothing. ``enter`` puts it into another memory, with nothing bound."""

    def __init__(self, drafts: Drafts, memory: RehearsedMemory, shapes: BatchShapes, **arguments: Any):
        self._drafts = drafts
        self._known_needs: dict[Any, Requirements] = {}
        self.drafts_of: dict[Any, dict[int, tuple[Requirements, Draft]]] = {}
        self.parts_of: dict[Any, Sequence[slice] | None] = {}
        contexts = [one.context for one in memory.contexts]
        giver: Any = SimpleNamespace(contexts=contexts, _memory=memory)
        super().__init__(
            contexts=contexts,
            data_shapes=shapes.data_list,
            label_shapes=shapes.label_list,
            shared_group=giver,
            **arguments,
        )

    def enter(self, memory: RehearsedMemory) -> None:
        self.__dict__.pop("_bound", None)
        self._bounds, self._parts, self._memory = BoundTable(), {}, memory
        self._sums = [{} for _ in memory.contexts]
        memory.groups.add(self)

    def run(self, shapes: BatchShapes) -> bool:
        """A batch of these shapes; whether anything had to be bound for it."""
        bound = self.__dict__.get("_bound")
        fresh = False
        if bound is None or bound.shapes.key != shapes.key:
            fresh = shapes.key not in self._bounds
            self.bind_exec(shapes, None)
            bound = self._bound
        if self._memory.outdated:
            self._memory.let_go_of_outdated(self)
        self._memory.ran = bound
        for i in bound.active:
            for block in bound.execs[i].blocks:
                block.used = True
        return fresh

    def bound_executors(self) -> Iterator[tuple[int, PromisedExecutor]]:
        current = self.__dict__.get("_bound")
        for bound in {id(b): b for b in (*self._bounds.values(), current) if b is not None}.values():
            yield from enumerate(bound.execs)

    # What a real group does with memory, and this one without

    def _bind(self, shapes: BatchShapes) -> Any:
        self._binding: dict[int, tuple[Requirements, Draft]] = self.drafts_of.setdefault(shapes.key, {})
        bound = super()._bind(shapes)
        self.parts_of[shapes.key] = bound.parts
        return bound

    def _known_requirements(self, *_: Any) -> None:
        """No engine is there to check what they would leave unchecked."""

    def _requirements(self, i: int, data: Sequence[Any], label: Sequence[Any]) -> Requirements:
        key = (i, *((d.name, d.shape, np.dtype(d.dtype).str) for d in (*data, *label)))
        if key not in self._known_needs:
            self._known_needs[key] = super()._requirements(i, data, label)
        return self._known_needs[key]

    def _bind_one(self, i: int, need: Requirements, shared: bool) -> PromisedExecutor:
        memory = self._memory.contexts[i]
        memory.params.ensure(need.params)
        arrays = [_shared(memory.inputs, one) for one in need.inputs]
        for one in need.input_grads:
            if self.grad_req[one.name] == "add":
                arrays.append(self._sums[i].setdefault(one, Promise(one, gradient=True)))
            else:
                arrays.append(_shared(memory.input_grads, one, gradient=True))
        for one in need.aux:
            memory.aux.setdefault(one.name, Promise(one))
        draft = self._drafts.get(self, i, need)
        self._binding[i] = (need, draft)
        if draft.blocks is None:
            self._memory.blind = True  # type: ignore[attr-defined]
            return PromisedExecutor([], [], arrays, draft.aside)
        pool = memory.pool.pool if shared else None
        blocks = hand_out(draft.blocks, pool)
        return PromisedExecutor(blocks, list(blocks), arrays, draft.aside)

    def _use(self, bound: Any) -> None:
        self._bound, self._shapes = bound, bound.shapes

    def _warn_if_uneven(self, *_: Any) -> None:
        """The real bind warns."""


def _shared(arrays: dict[str, Any], need: ArrayNeed, gradient: bool = False) -> Promise:
    known: Promise | None = arrays.get(need.name)
    if known is None or not binding.holds(known, need):
        known = arrays[need.name] = Promise(need, gradient=gradient)
    return known


def hand_out(wanted: Iterable[tuple[str, int]], pool: list[Block] | None) -> list[Block]:
    """Blocks for an executor as the engine gives them: from a pool, which gets those that it lacks, or new ones.

    The largest is served first, each by the smallest block of its context that is large enough and not yet taken.
    """
    free: dict[str, list[tuple[int, int, Block]]] = {}
    for number, block in enumerate(pool or ()):
        free.setdefault(block.context, []).append((block.nbytes, number, block))
    for of_context in free.values():
        of_context.sort(key=lambda entry: entry[:2])
    taken = []
    for context, nbytes in sorted(wanted, key=lambda one: -one[1]):
        here = free.get(context, [])
        at = bisect_left(here, (nbytes,))
        if at < len(here):
            taken.append(here.pop(at)[2])
            continue
        made = Block(context, nbytes)
        taken.append(made)
        if pool is not None:
            pool.append(made)
    return taken


@dataclass(frozen=True)
class Held:
    """What a rehearsal holds at one moment: bytes of working memory by context, and arrays that are no parameters.

    ``used`` is the part of ``blocks`` that has memory by then; ``aside`` are bytes that executors made at their bind.
    """

    blocks: Mapping[str, int]
    used: Mapping[str, int]
    aside: Mapping[str, int]
    arrays: tuple[Promise, ...]

    @property
    def total(self) -> int:
        return sum(self.blocks.values()) + sum(array.nbytes for array in self.arrays)

    @property
    def total_used(self) -> int:
        return sum(self.used.values()) + sum(array.nbytes for array in self.arrays)


def held(memory: RehearsedMemory, groups: Iterable[RehearsedGroup]) -> Held:
    """All that is alive: what the memory keeps, and what executors keep of what it had before."""
    names, groups = [str(one.context) for one in memory.contexts], list(groups)
    executors = {id(executor): (i, executor) for group in groups for i, executor in group.bound_executors()}
    executors.update((id(one.pool), (i, one.pool)) for i, one in enumerate(memory.contexts) if one.pool is not None)
    blocks = {id(block): block for _, executor in executors.values() for block in (*executor.blocks, *executor.pool)}
    blocks.update((id(arena.block), arena.block) for arena in memory.arenas)  # type: ignore[attr-defined]
    arrays = {id(array): array for _, executor in executors.values() for array in executor.arrays}
    arrays.update((id(array), array) for group in groups for sums in group._sums for array in sums.values())
    for one in memory.contexts:
        for array in (*one.inputs.values(), *one.input_grads.values(), *one.aux.values()):
            arrays.setdefault(id(array), array)
    sums, used, aside = (dict.fromkeys(names, 0) for _ in range(3))
    for block in blocks.values():
        sums[block.context] = sums.get(block.context, 0) + block.nbytes
        used[block.context] = used.get(block.context, 0) + block.nbytes * block.used
    for i, executor in executors.values():
        aside[names[i]] += executor.aside
    return Held(sums, used, aside, tuple(arrays.values()))
