"""Updates that have no fused form: by mxnet's own Updater or through a real kvstore, one by one.

They are many engine calls with Python in between. So that an interrupt does not leave half of the parameters
updated, signal handlers of the main thread wait until the step is over (:func:`uninterrupted`).
"""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from bucketlab._calls import Program
from bucketlab._engine import mx
from bucketlab.training.exchange import Exchange, Scratch
from bucketlab.training.flat import FlatParameters, view
from bucketlab.training.ranges import flat_names, hulls
from bucketlab.training.states import Updater


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back every Python signal handler (Ctrl-C above all) until the block is over, then call those due.

    Python runs handlers in the main thread only; in any other thread there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    due: list[tuple[int, Any]] = []
    installed = {int(number): signal.getsignal(number) for number in signal.valid_signals()}
    handlers = {number: handler for number, handler in installed.items() if callable(handler)}
    with ExitStack() as afterwards:
        try:
            for number in handlers:
                signal.signal(number, lambda signum, frame: due.append((signum, frame)))
            yield
        finally:
            try:
                _restore(handlers)
            except BaseException:
                _restore(handlers)
                raise
            for number, frame in reversed(due):
                afterwards.callback(handlers[number], number, frame)


def _restore(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


class LocalStep:
    """The update of ``names`` by ``updater``: sums, the first context's weights, copies.

    The updater is called for all names at once, as mxnet does without a kvstore (optimizers may take several
    in one call), or for one after another, as mxnet's kvstore does.
    """

    def __init__(
        self,
        names: Sequence[str],
        keys: Sequence[tuple[Any, ...]],
        stores: Sequence[FlatParameters],
        active: Sequence[int],
        exchange: Exchange,
        updater: Updater,
        scratch: Scratch,
    ):
        self._keys, self._stores, self._active = tuple(keys), tuple(stores), tuple(active)
        self._exchange, self._updater = exchange, updater
        self._weights = [stores[0].weights[name] for name in names]
        sums, copies = [], []
        totals: dict[str, Any] = {}
        flat = flat_names(stores, names)
        for hull in hulls(stores, [name for name in names if name in flat]):
            calls, total = hull.sum_calls(active, exchange.order or "local", scratch)
            sums += calls
            copies += hull.copy_calls()
            for slot in hull.slots:
                shape = stores[0].weights[slot.name].shape
                begin, end = hull.segment.spans[slot.name]
                totals[slot.name] = view(total, (begin - hull.start, end - hull.start), shape)
        self._totals = [totals.get(name) for name in names]
        self._own = [name for name in names if name not in flat]
        self._names = tuple(names)
        self._sums, self._copies = Program(sums), Program(copies)

    def run(self) -> None:
        """One step."""
        self._sums.run()
        grads = [
            self._sum_of(name) if total is None else total for name, total in zip(self._names, self._totals)
        ]
        if self._exchange.update_on_kvstore:
            for keys, grad, weight in zip(self._keys, grads, self._weights):
                self._updater(keys[0], grad, weight)
        else:
            self._updater([keys[0] for keys in self._keys], grads, self._weights)
            self._mirror()
        self._copies.run()
        for name in self._own:
            for store in self._stores[1:]:
                self._stores[0].weights[name].copyto(store.weights[name])

    def _sum_of(self, name: str) -> Any:
        """The sum of gradients that have arrays of their own (row_sparse)."""
        terms = [self._stores[context].grads[name] for context in self._active]
        home = self._stores[0].weights[name].context
        return terms[0] if len(terms) == 1 else mx.nd.add_n(*[term.as_in_context(home) for term in terms])

    def _mirror(self) -> None:
        """Count and show for the other contexts what mxnet, which updates each by itself, has for them."""
        states, synced, optimizer = self._updater.states, self._updater.states_synced, self._updater.optimizer
        for context, store in enumerate(self._stores[1:], 1):
            optimizer._set_current_context(store.context.device_id)
            for keys in self._keys:
                optimizer._update_count(keys[context])
                states.keep(keys[context], states[keys[0]])
                synced[keys[context]] = True


class KVStoreStep:
    """The update of ``names`` through a kvstore, call by call as mx.mod does it."""

    def __init__(
        self,
        names: Sequence[str],
        keys: Sequence[tuple[Any, ...]],
        positions: Sequence[int],
        stores: Sequence[FlatParameters],
        active: Sequence[int],
        exchange: Exchange,
        updater: Updater,
    ):
        self._names, self._keys, self._positions = tuple(names), tuple(keys), tuple(positions)
        self._stores, self._active = tuple(stores), frozenset(active)
        self._exchange, self._updater = exchange, updater

    def run(self) -> None:
        """One step."""
        kvstore, stores = self._exchange.kvstore, self._stores
        sums: list[list[Any]] = [[] for _ in stores]
        for name, position in zip(self._names, self._positions):
            weights = [store.weights[name] for store in stores]
            grads = [self._grad(name, context) for context in range(len(stores))]
            out = weights if self._exchange.update_on_kvstore else grads
            with errors_of(self._updater):
                if grads[0].stype == "default" and weights[0].stype == "default":
                    kvstore.pushpull(name, grads, out=out, priority=-position)
                else:
                    kvstore.push(name, grads, priority=-position)
                    # A kvstore gives row_sparse weights row by row only, when a batch asks for them.
                    if out is grads:
                        kvstore.pull(name, out=out, priority=-position, ignore_sparse="dist" in kvstore.type)
                    elif out[0].stype == "default":
                        kvstore.pull(name, out=out, priority=-position)
            for context, grad in enumerate(grads):
                sums[context].append(grad)
        if not self._exchange.update_on_kvstore:
            for context, store in enumerate(stores):
                indices = [keys[context] for keys in self._keys]
                self._updater(indices, sums[context], [store.weights[name] for name in self._names])

    def _grad(self, name: str, context: int) -> Any:
        """A context's gradient; zeros, and never left out, for one that rested: kvstores fix their number of
        terms when they first see a name."""
        grad = self._stores[context].grads[name]
        if context in self._active:
            return grad
        return mx.nd.zeros(grad.shape, ctx=grad.context, dtype=grad.dtype, stype=grad.stype)


@contextmanager
def errors_of(updater: Updater) -> Iterator[None]:
    """Raise what goes wrong in the updater while a kvstore calls it, where Python would only print it."""
    updater.in_callback = True
    try:
        yield
    finally:
        updater.in_callback = False
        failure, updater.failure = updater.failure, None
    if failure is not None:
        raise failure


def initialize(
    exchange: Exchange,
    updater: Updater,
    names: Sequence[str],
    values: Mapping[str, Any],
    stores: Sequence[FlatParameters],
) -> None:
    """Tell a kvstore about parameters and their first values; the contexts take these from it."""
    kvstore: Any = exchange.kvstore
    for name in names:
        weights = [store.weights[name] for store in stores]
        by_init = not exchange.update_on_kvstore or values[name].stype != "default"
        try:
            if by_init and hasattr(kvstore, "init"):
                kvstore.init(name, values[name])
            else:
                kvstore.broadcast(name, values[name], out=weights)
        except mx.base.MXNetError as error:
            if "duplicate init" not in str(error):
                raise
            _take_over(exchange, updater, name, values[name], stores[0])
        _holders(kvstore)[name] = weakref.ref(stores[0])


def _holders(kvstore: Any) -> dict[str, Any]:
    """Whose parameters a kvstore holds, by name; kept with the kvstore, which may outlive modules."""
    return vars(kvstore).setdefault("_bucketlab_holders", {})


def _nobody() -> None:
    """The holder of a name that no module of ours has told."""


def _take_over(exchange: Exchange, updater: Updater, name: str, value: Any, store: FlatParameters) -> None:
    """Give a name that a kvstore knows from an earlier optimizer its present value."""
    holders = _holders(exchange.kvstore)
    if holders.get(name, _nobody)() not in (None, store):
        # Modules hold on to one another in circles; one that nobody has any more is no holder.
        gc.collect()
    if holders.get(name, _nobody)() not in (None, store):
        raise ValueError(
            f"kvstore {exchange.kvstore.type!r} holds parameter {name!r} of another module, which would be trained by "
            f"both; give each module a kvstore of its own, or share the parameters with bind(shared_module=...)"
        )
    if exchange.update_on_kvstore:
        assign(exchange, updater, name, value)


def install(exchange: Exchange, updater: Updater) -> None:
    """Give a kvstore the optimizer: the updater itself where it runs in this process."""
    kvstore: Any = exchange.kvstore
    if not exchange.update_on_kvstore:
        return
    if exchange.remote or not hasattr(kvstore, "_set_updater"):
        kvstore.set_optimizer(updater.optimizer)
    else:
        kvstore._set_updater(updater)


def assign(exchange: Exchange, updater: Updater, name: str, value: Any) -> None:
    """Replace a weight that a kvstore of this process holds."""
    kvstore: Any = exchange.kvstore
    updater.assigning = True
    try:
        with errors_of(updater):
            kvstore.push(name, [value])
    finally:
        updater.assigning = False
