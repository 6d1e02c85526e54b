"""The same run under mx.mod's way of sharing, for comparison.

There the default bucket owns the working memory for good, and whoever comes later adds the blocks that it lacks; an
input that grows is made anew while executors keep the old one; every parameter, gradient and state is an array of its
own, and without an updating kvstore every context has states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bucketlab.binding import Requirements
from bucketlab.memory.amounts import Amount
from bucketlab.memory.kept import separate_amounts
from bucketlab.memory.outlook import Stage
from bucketlab.memory.planned import Model
from bucketlab.memory.rehearsal import RehearsedGroup, RehearsedMemory

__all__ = ["TheirStage"]


class TheirGroup(RehearsedGroup):
    """Shares as mx.mod does: who came first owns the working memory."""

    def _executors(self, needs: Mapping[int, Requirements]) -> dict[int, Any]:
        memory = self._memory
        first = not memory.has_pool
        execs = {i: self._bind_one(i, need, shared=not first) for i, need in needs.items()}
        if first:
            for i, executor in execs.items():
                memory.contexts[i].pool = executor
        return execs


class TheirStage(Stage):
    """Where runs are rehearsed as mx.mod would do them."""

    group_class = TheirGroup

    def __init__(self, model: Model):
        super().__init__(replace(model, working_memory="mxnet"))

    def _kept(self, memory: RehearsedMemory) -> Iterable[Amount]:
        stores = [one.params.specs for one in memory.contexts]  # type: ignore[attr-defined]
        aux = tuple(memory.contexts[0].aux.values())
        return separate_amounts(stores, self.model.context_names, aux, self.model.training)
