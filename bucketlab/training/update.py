"""One optimizer step for a bucket: which of its parameters go which way, and all that is kept between steps.

An :class:`Update` is made once, by ``init_optimizer``, and shared by all buckets and borrowing modules. Each
set of parameters that is ever stepped together gets a plan: fused ones in one program of engine calls, the
others through mxnet's Updater or a kvstore.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from bucketlab.errors import DataError, NotReadyError, ShapeError
from bucketlab.training.exchange import Exchange, Scratch, open_exchange
from bucketlab.training.flat import FlatParameters
from bucketlab.training.fused import FusedStep
from bucketlab.training.kernels import Family, family_of, fits
from bucketlab.training.plain import (
    KVStoreStep,
    LocalStep,
    assign,
    errors_of,
    initialize,
    install,
    uninterrupted,
)
from bucketlab.training.ranges import flat_names
from bucketlab.training.states import FlatStates, Updater, state_arrays

DECAYED = ("_weight", "_gamma")
_version = attrgetter("version")


class Plan(NamedTuple):
    """What one step of certain names consists of. ``unpulled`` are weights that only the kvstore has afterwards."""

    fused: FusedStep | None
    plain: tuple[LocalStep | KVStoreStep, ...]
    unpulled: tuple[str, ...] = ()

    def run(self) -> bool:
        """One step; False, with nothing done, if the plan no longer holds."""
        if not self.plain:
            return self.fused is None or self.fused.run()
        with uninterrupted():
            if self.fused is not None and not self.fused.run():
                return False
            for step in self.plain:
                step.run()
        return True


class Update:
    """The optimizer of a module, applied to the parameters of one or several contexts.

    >>> update = Update.create(stores, param_names, optimizer, "local", arg_params)
    >>> update.step(param_names)
    >>> update.save("states.bin")

    ``stores`` holds one FlatParameters per context; ``param_names`` are in the order of their states.
    """

    def __init__(
        self,
        stores: Sequence[FlatParameters],
        param_names: Sequence[str],
        optimizer: Any,
        exchange: Exchange,
        arg_params: Mapping[str, Any] | None = None,
    ):
        self._stores = tuple(stores)
        self._names = list(param_names)
        self._positions = {name: position for position, name in enumerate(self._names)}
        self._exchange = exchange
        self._scratch = Scratch()
        self._flat_states = FlatStates()
        self._plans: dict[Any, Plan] = {}
        self._last: tuple[Any, Any, Plan | None] = (None, None, None)
        self._versions = self._store_versions()
        contexts = [store.context for store in stores]
        self.updater = Updater(optimizer, exchange, self._names, stores[0].weights, contexts)
        self._planned_for = optimizer
        self.unpulled: set[str] = set()
        """Row_sparse weights that the kvstore has updated and no context has pulled any rows of since."""
        if exchange.kvstore is not None:
            install(exchange, self.updater)
            self._introduce(self._names, arg_params or {})

    @classmethod
    def create(
        cls,
        stores: Sequence[FlatParameters],
        param_names: Sequence[str],
        optimizer: Any,
        kvstore: Any = "local",
        arg_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
        compression_params: Mapping[str, Any] | None = None,
    ) -> Update:
        """Make one; ``kvstore`` is None, a name, a KVStore, or the Exchange that one of these has become.

        ``update_on_kvstore`` overrides mxnet's choice. ``arg_params`` are the values a kvstore starts with.
        """
        exchange = kvstore
        if not isinstance(exchange, Exchange):
            weights = arg_params or stores[0].weights
            contexts = [store.context for store in stores]
            exchange = open_exchange(kvstore, contexts, weights, compression_params, update_on_kvstore)
        return cls(stores, param_names, optimizer, exchange, arg_params)

    @property
    def optimizer(self) -> Any:
        """The optimizer in use; loading states may have replaced it."""
        return self.updater.optimizer

    @property
    def kvstore(self) -> Any:
        """The KVStore, or None where mx.mod has none."""
        return self._exchange.kvstore

    @property
    def update_on_kvstore(self) -> bool:
        """What mx.mod has under this name: states are keyed by parameter name."""
        return self._exchange.update_on_kvstore

    @property
    def exchange(self) -> Exchange:
        """How contexts share gradients."""
        return self._exchange

    def add_names(
        self, names: Sequence[str], arg_params: Mapping[str, Any] | None = None, symbol: Any = None
    ) -> None:
        """Take on parameters that a further bucket brings; known names are passed over.

        Multipliers come from the attributes of ``symbol``, and only weights and gammas decay, as in the first
        bucket.
        """
        new = [name for name in dict.fromkeys(names) if name not in self._positions]
        if not new:
            return
        start = len(self._names)
        self._names.extend(new)
        self._positions.update({name: start + offset for offset, name in enumerate(new)})
        optimizer = self.optimizer
        optimizer.idx2name.update(self._exchange.index_names(new, start))
        if optimizer.sym_info:
            attributes = symbol.attr_dict() if symbol is not None else {}
            for name in new:
                own = attributes.get(name, {})
                if not name.endswith(DECAYED):
                    optimizer.wd_mult.setdefault(name, 0.0)
                if "__lr_mult__" in own:
                    optimizer.lr_mult[name] = float(own["__lr_mult__"])
                if "__wd_mult__" in own:
                    optimizer.wd_mult[name] = float(own["__wd_mult__"])
        self._drop_plans()
        if self.kvstore is not None:
            self._introduce(new, arg_params or {})

    def on(self, stores: Sequence[FlatParameters]) -> Update:
        """This optimizer with its states, which go by name, at work on other arrays; for the same arrays, this object.

        Raises ShapeError for a parameter of another shape, or for another number of contexts.
        """
        if all(mine is other for mine, other in zip(self._stores, stores)) and len(stores) <= len(self._stores):
            return self
        if len(stores) != len(self._stores):
            raise ShapeError(
                f"the optimizer works on {len(self._stores)} context(s), and the parameters are on {len(stores)}; it "
                f"can be borrowed for as many only"
            )
        for name, weight in stores[0].weights.items():
            known = self._stores[0].weights.get(name)
            if known is not None and known.shape != weight.shape:
                raise ShapeError(
                    f"parameter {name!r} has shape {weight.shape}, and the optimizer's states are for {known.shape}"
                )
        other = copy.copy(self)
        other._stores = tuple(stores)
        other._scratch, other._flat_states = Scratch(), FlatStates()
        other._plans, other._last = {}, (None, None, None)
        other._versions = other._store_versions()
        return other

    @property
    def contexts(self) -> int:
        """On how many contexts the parameters are."""
        return len(self._stores)

    def step(self, names: tuple[str, ...], active: tuple[int, ...] | None = None) -> None:
        """One optimizer step for these parameters; those without a gradient are passed over.

        ``active`` are the contexts that ran: the gradients of others are old and count as zero.
        """
        if self.updater.optimizer is not self._planned_for or self._versions != self._store_versions():
            self._forget_plans()
        last = self._last
        # A module hands in the same tuple every time: to know it again is cheaper than to find its plan by many names.
        plan = last[2] if last[0] is names and last[1] == active else self._plans.get((names, active))
        while plan is None or not plan.run():
            plan = self._plans[names, active] = self._plan(names, active)
        if plan is not last[2]:
            self._last = (names, active, plan)
        if plan.unpulled:
            self.unpulled.update(plan.unpulled)

    def plan(self, names: tuple[str, ...], active: tuple[int, ...] | None = None) -> Plan:
        """The plan of a step, to look into: how many engine calls it takes, what is fused."""
        return self._plans.get((names, active)) or self._plan(names, active)

    def save(self, fname: str) -> None:
        """Write the optimizer states to a file that mx.mod can load."""
        self._refuse_remote("save")
        content = self.updater.get_states()
        with open(fname, "wb") as file:
            file.write(content)

    def load(self, fname: str) -> None:
        """Read optimizer states that this class or mx.mod has saved."""
        self._refuse_remote("load")
        with open(fname, "rb") as file:
            content = file.read()
        try:
            self.updater.set_states(content)
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError) as error:
            # What unpickling raises for bytes that are something else.
            raise ValueError(f"{fname!r} holds no optimizer states: {error}") from error

    def pull_rows(self, row_ids: Mapping[str, Any]) -> None:
        """Bring these rows of row_sparse weights from the kvstore to every context, before a forward pass."""
        held = self._on_kvstore
        for name, rows in row_ids.items():
            if name not in self._positions:
                raise DataError(f"row ids are given for {name!r}, which is not among the parameters")
            weights = [store.weights[name] for store in self._stores]
            if weights[0].stype != "row_sparse":
                warnings.warn(f"{name!r} is not row_sparse; its row ids have no use", stacklevel=3)
            elif name not in held or not self.update_on_kvstore:
                warnings.warn(
                    f"{name!r} is not updated in a kvstore: every context has all of its rows", stacklevel=3
                )
            else:
                self.kvstore.row_sparse_pull(name, weights, row_ids=rows, priority=-self._positions[name])
                self.unpulled.discard(name)

    def set_weight(self, name: str, value: Any) -> None:
        """Tell a kvstore that keeps weights of its own that this one has been set; no other need know."""
        if name in self._on_kvstore and self.update_on_kvstore and not self._exchange.remote:
            assign(self._exchange, self.updater, name, value)

    def held(self) -> Iterator[tuple[str, str, int, Any]]:
        """(role, name, context index, array) of every array kept between steps: states and sums."""
        seen: set[int] = set()
        keys = {key: name for name in self._names for key in self._keys(name)}
        for key, value in list(self.updater.states.items()):
            arrays = state_arrays(value)
            for number, array in enumerate(arrays):
                if id(array) not in seen:
                    seen.add(id(array))
                    name = keys.get(key, str(key))
                    yield "optimizer", name if len(arrays) == 1 else f"{name}[{number}]", 0, array
        for number, array in enumerate(self._scratch.arrays()):
            yield "kvstore", f"sum of gradients {number}", 0, array

    def release_buffers(self) -> None:
        """Let go of what is made again when needed: plans and the arrays that gradients are summed in."""
        self._drop_plans()
        self._scratch.clear()

    def _keys(self, name: str) -> tuple[Any, ...]:
        return self._exchange.keys(name, self._positions[name])

    def _store_versions(self) -> list[int]:
        return list(map(_version, self._stores))

    def _drop_plans(self) -> None:
        self._plans.clear()
        self._last = (None, None, None)

    def _forget_plans(self) -> None:
        if self.updater.optimizer is not self._planned_for:
            self._planned_for = self.updater.optimizer
            self._flat_states = FlatStates()
        self._drop_plans()
        self._versions = self._store_versions()

    def _plan(self, names: tuple[str, ...], active: tuple[int, ...] | None) -> Plan:
        count = len(self._stores)
        ran = tuple(range(count)) if active is None else tuple(sorted(active))
        if not ran or not set(ran) <= set(range(count)):
            raise ValueError(f"active is {active}; expected at least one context, from 0 to {count - 1}")
        unknown = [name for name in names if name not in self._positions]
        if unknown:
            raise NotReadyError(f"the optimizer does not know the parameters {unknown}; call add_names first")
        # In one order in every bucket: some optimizers change with each parameter that they are given.
        names = tuple(sorted((n for n in names if n in self._stores[0].grads), key=self._positions.__getitem__))
        elsewhere = self._on_kvstore
        through_kvstore = [name for name in names if name in elsewhere]
        here = [name for name in names if name not in elsewhere]
        family = family_of(self.optimizer)
        fused = self._fusable(here, family)
        local = [name for name in here if name not in fused]
        shared = (self._stores, ran, self._exchange)
        steps: list[LocalStep | KVStoreStep] = []
        if local:
            keys = [self._keys(name) for name in local]
            steps.append(LocalStep(local, keys, *shared, self.updater, self._scratch))
        if through_kvstore:
            keys = [self._keys(name) for name in through_kvstore]
            positions = [self._positions[name] for name in through_kvstore]
            steps.append(KVStoreStep(through_kvstore, keys, positions, *shared, self.updater))
        fused_step = None
        if fused and family is not None:
            members = [name for name in here if name in fused]
            keys = [self._keys(name) for name in members]
            fused_step = FusedStep(
                members, keys, *shared, family, self.updater, self._flat_states, self._scratch
            )
        sparse = [name for name in through_kvstore if self._stores[0].weights[name].stype != "default"]
        return Plan(fused_step, tuple(steps), tuple(sparse) if self.update_on_kvstore else ())

    def _fusable(self, names: Sequence[str], family: Family | None) -> set[str]:
        """Those that one kernel over a flat buffer updates to the same bits as mx.mod.

        Without a kvstore mxnet hands the optimizer some parameters at a time (of one dtype), and a sparse one
        among them changes the operator for all of these: they stay together.
        """
        if family is None:
            return set()
        flat = flat_names(self._stores, names)
        weights = self._stores[0].weights
        size = 1 if self.update_on_kvstore else max(1, self.optimizer.aggregate_num)
        by_dtype: dict[np.dtype, list[str]] = {}
        for name in names:
            by_dtype.setdefault(np.dtype(weights[name].dtype), []).append(name)
        fused: set[str] = set()
        for dtype, members in by_dtype.items():
            for start in range(0, len(members), size):
                group = members[start : start + size]
                fit = fits(family, self.optimizer, dtype)
                if fit and flat.issuperset(group):
                    fused.update(group)
        return fused

    @property
    def _on_kvstore(self) -> set[str]:
        """Parameters that only the kvstore can update: all of them, or the row_sparse ones."""
        if self.kvstore is None:
            return set()
        if self._exchange.order is None:
            return set(self._names)
        if not self.update_on_kvstore:
            return set()
        weights = self._stores[0].weights
        return {name for name in self._names if name in weights and weights[name].stype != "default"}

    def _introduce(self, names: Sequence[str], values: Mapping[str, Any]) -> None:
        held = self._on_kvstore
        wanted = [name for name in names if name in held]
        own = self._stores[0].weights
        with errors_of(self.updater):
            initialize(
                self._exchange, self.updater, wanted, {n: values.get(n, own[n]) for n in wanted}, self._stores
            )

    def _refuse_remote(self, what: str) -> None:
        if self._exchange.remote:
            raise NotReadyError(
                f"cannot {what} optimizer states: with kvstore {self.kvstore.type!r} they live on servers; "
                f"set MXNET_UPDATE_ON_KVSTORE=0 to keep them in the workers"
            )
