"""The update of all parameters of a bucket as a handful of engine calls, run from one C loop.

A step is: add up the contexts' gradients, one kernel per range of equal multipliers, copy the weights to the
other contexts, count. All of it is one :class:`~bucketlab._calls.Program`, so an interrupt finds either all
of it done or nothing. What has not changed since the last step (ranges, attributes) is not made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any

from bucketlab._calls import OperatorCall, Program
from bucketlab.training.exchange import Exchange, Scratch
from bucketlab.training.flat import FlatParameters
from bucketlab.training.kernels import Family, Kernel
from bucketlab.training.ranges import hulls, part
from bucketlab.training.states import FlatStates, Updater, check_state, copy_state

ROUTING = ("multi_precision", "param_dict", "aggregate_num")
"""Settings of an optimizer that decide which parameters can be fused at all."""

RATE = 2
"""Where settings begin that are no learning rate: that one may change with every step."""

ATTRIBUTES = ("clip_gradient",)
"""Settings that every kernel call takes as they are; beside them only ``rescale_grad``, which may follow each batch."""

RANGES = ("wd", "idx2name", "lr_mult", "wd_mult")
"""Settings that decide how far the range of one kernel call goes; the two dictionaries are last."""


class Assign:
    """A dictionary update as a call of a program: counters move with the weights, or not at all."""

    def __init__(self, target: dict[Any, Any]):
        self.target = target
        self.values: dict[Any, Any] = {}
        """What the next run writes."""
        self.ready = partial(target.update, self.values)


@dataclass
class Run:
    """A range that one kernel call updates: parameters of one hull that agree in all of ``traits``.

    Traits: learning rate multiplier (None: none), weight decay, learning rate before both multiplier and
    correction, update number.
    """

    hull: int
    start: int
    stop: int
    traits: tuple[Any, Any, Any, int]


class FusedStep:
    """The update of ``names`` from the gradients of the ``active`` contexts, by a fused family's optimizer.

    ``keys`` are those of each name's optimizer state. All names must have flat gradients.
    """

    def __init__(
        self,
        names: Sequence[str],
        keys: Sequence[tuple[Any, ...]],
        stores: Sequence[FlatParameters],
        active: Sequence[int],
        exchange: Exchange,
        family: Family,
        updater: Updater,
        flat_states: FlatStates,
        scratch: Scratch,
    ):
        self._keys = dict(zip(names, keys))
        self._position = {name: position for position, name in enumerate(names)}
        self._shapes = {name: stores[0].weights[name].shape for name in names}
        self._family, self._updater, self._states = family, updater, flat_states
        self._optimizer = updater.optimizer
        self._hulls = hulls(stores, names)
        self._sums: list[OperatorCall] = []
        self._totals: list[Any] = []
        for hull in self._hulls:
            calls, total = hull.sum_calls(active, exchange.order or "local", scratch)
            self._sums += calls
            self._totals.append(total)
        self._copies = [call for hull in self._hulls for call in hull.copy_calls()]
        self._read = attrgetter("lr_scheduler", "lr", *ROUTING, *family.watched, *ATTRIBUTES, *RANGES)
        self._routing = attrgetter(*ROUTING)(self._optimizer)
        self._count_on(exchange, [store.context.device_id for store in stores])
        self._settings: tuple[Any, ...] | None = None
        self._states_version = -1
        self._lr: Any = None
        self._even = self._rated = self._steady = False
        # What the kernels were chosen with, and what their calls send.
        self._kernels_scale = self._scale = self._optimizer.rescale_grad
        self._kernels: list[Kernel] = []
        self._runs: list[Run] = []
        self._calls: dict[tuple[int, int, int], tuple[str, OperatorCall]] = {}
        self.program = Program([])

    def _count_on(self, exchange: Exchange, devices: Sequence[int]) -> None:
        """Counters as mxnet keeps them: by device, and on device 0 alone when the kvstore updates."""
        counts = self._optimizer._all_index_update_counts
        devices = (0,) if exchange.update_on_kvstore else devices
        keys = list(self._keys.values())
        self._counters = [
            (Assign(counts.setdefault(device, {})), [of_name[k] for of_name in keys])
            for k, device in enumerate(devices)
        ]
        first, own = self._counters[0]
        # One key more than there are, because for a single key itemgetter would not give a tuple.
        self._counts_of = itemgetter(*own, own[0])
        self._counts, self._own_keys = first.target, own
        self._totals_counted = Assign(self._optimizer.__dict__)
        self._totals_counted.values["_index_update_count"] = counts[devices[-1]]

    def run(self) -> bool:
        """One step. Up to its last call it only prepares, so that it may be interrupted and done again.

        False, with nothing done, if the optimizer has changed in what decides which parameters are fused.
        """
        if not (self._goes_on() or self._prepared()):
            return False
        self.program.run()
        return True

    def _goes_on(self) -> bool:
        """Get ready for a step that has the settings of the last one and the next number; False for any other."""
        if not self._steady:
            return False
        try:
            before = self._counts_of(self._counts)
        except KeyError:
            return False
        count = before[0] + 1
        optimizer = self._optimizer
        if (
            before.count(before[0]) < len(before)
            or self._read(optimizer) != self._settings
            or self._updater.states.version != self._states_version
        ):
            return False
        scale = optimizer.rescale_grad
        if scale != self._scale:
            for run in self._runs:
                self._calls[run.hull, run.start, run.stop][1].replace("rescale_grad", scale)
            self._scale = scale
        for counter, keys in self._counters:
            counter.values.update(dict.fromkeys(keys, count))
        self._totals_counted.values["num_update"] = max(optimizer.num_update, count)
        return True

    def _prepared(self) -> bool:
        """Get ready for any step; False if other parameters are to be fused."""
        optimizer = self._optimizer
        self._steady = False
        rescaled = not (optimizer.rescale_grad == self._scale == self._kernels_scale)
        count, updates, counts = self._next_counts(optimizer)
        scheduler = optimizer.lr_scheduler
        lr = optimizer.lr
        if scheduler is not None:
            lr = None if count is None else scheduler(updates)
        settings = self._read(optimizer)
        known = self._settings
        # One learning rate and one update number for all, or neither of them matters.
        even = count is not None or (scheduler is None and not self._rated)
        changed = known is None or rescaled or settings[RATE:] != known[RATE:]
        if changed or not (even and self._even) or self._states_changed:
            if settings[RATE : RATE + len(ROUTING)] != self._routing:
                return False
            self._settings = None
            self._choose_kernels()
            same_ranges = known is not None and known[-len(RANGES) :] == settings[-len(RANGES) :]
            if not (same_ranges and even and self._even):
                self._arrange(lr, counts)
                self._even = count is not None or (scheduler is None and not self._rated)
            else:
                self._set_rates(lr, counts[0])
            self._make_program()
            self._settings, self._scale = (*settings[:-2], *map(dict, settings[-2:])), self._kernels_scale
        elif known is not None:
            if lr != self._lr or self._rated:
                self._set_rates(lr, counts[0])
            self._settings = (*settings[:RATE], *known[RATE:])
        self._lr = lr
        self._steady = self._even and count is not None and scheduler is None and not self._rated
        return True

    @property
    def _states_changed(self) -> bool:
        return self._updater.states.version != self._states_version

    def _next_counts(self, optimizer: Any) -> tuple[int | None, int, Sequence[int]]:
        """(update number if it is the same for all, the optimizer's, each parameter's) after this step.

        Of the last, only the first is there when all are the same.
        """
        try:
            before = self._counts_of(self._counts)
        except KeyError:
            before = tuple(self._counts.get(key, optimizer.begin_num_update) for key in self._own_keys)
        count = before[0] + 1
        even = before.count(before[0]) == len(before)
        after = [count] if even else [number + 1 for number in before[: len(self._own_keys)]]
        for counter, keys in self._counters:
            counter.values.update(dict.fromkeys(keys, count) if even else zip(keys, after))
        updates = max(optimizer.num_update, *after)
        self._totals_counted.values["num_update"] = updates
        return (count if even else None), updates, after

    def _set_rates(self, lr: Any, count: int) -> None:
        """The same runs at another learning rate, or another count that it depends on."""
        self._lr = None
        for run in self._runs:
            run.traits = (*run.traits[:2], lr, count)
        made = [self._prepare(run) for run in self._runs]
        if any(made):
            self._make_program()

    def _choose_kernels(self) -> None:
        self._kernels_scale = self._optimizer.rescale_grad
        self._kernels = [
            self._family.choose(self._optimizer, hull.segment.dtype, self._states.kept(hull.segment))
            for hull in self._hulls
        ]
        self._rated = any(kernel.rate is not None for kernel in self._kernels)
        if self._states_changed or any(
            kernel.states != self._states.count(hull.segment)
            for hull, kernel in zip(self._hulls, self._kernels)
        ):
            self._take_states()

    def _make_program(self) -> None:
        kernels = [self._calls[run.hull, run.start, run.stop][1] for run in self._runs]
        counters = [counter for counter, _ in self._counters]
        self.program = Program([*self._sums, *kernels, *self._copies, *counters, self._totals_counted])

    def _arrange(self, lr: Any, counts: Sequence[int]) -> None:
        """Sort the parameters into runs."""
        optimizer = self._optimizer
        if len(counts) == 1:
            counts = list(counts) * len(self._own_keys)
        rates = self._rates(lr, counts)
        multipliers = [self._multiplier(key) for key in self._own_keys]
        decays = optimizer._get_wds(self._own_keys)
        runs: list[Run] = []
        for number, (hull, kernel) in enumerate(zip(self._hulls, self._kernels)):
            for slot in hull.slots:
                at = self._position[slot.name]
                traits = (multipliers[at], decays[at], rates[at], counts[at] if kernel.rate else 0)
                last = runs[-1] if runs else None
                if last and (last.hull, last.stop, last.traits) == (number, slot.start, traits):
                    last.stop = slot.stop
                else:
                    runs.append(Run(number, slot.start, slot.stop, traits))
        self._runs = runs
        for run in runs:
            self._prepare(run)

    def _rates(self, lr: Any, counts: Sequence[int]) -> list[Any]:
        """Each parameter's learning rate. A scheduler sees the updates counted up to it, as in mxnet.

        Schedulers keep what they have seen, so each number must come in its turn.
        """
        scheduler = self._optimizer.lr_scheduler
        if lr is not None or scheduler is None:
            return [lr] * len(counts)
        updates = accumulate((self._optimizer.num_update, *counts), max)
        next(updates)
        return [scheduler(number) for number in updates]

    def _multiplier(self, key: Any) -> Any:
        optimizer = self._optimizer
        if key in optimizer.lr_mult:
            return optimizer.lr_mult[key]
        return optimizer.lr_mult.get(optimizer.idx2name[key]) if key in optimizer.idx2name else None

    def _prepare(self, run: Run) -> bool:
        """Give the kernel call of a run its present attributes, or make it; True if the program has to be made anew."""
        multiplier, wd, lr, count = run.traits
        kernel, hull = self._kernels[run.hull], self._hulls[run.hull]
        if multiplier is not None:
            lr = lr * multiplier
        if kernel.rate is not None:
            lr = kernel.rate(lr, count)
        operator, attributes = kernel.at(lr, wd)
        place = (run.hull, run.start, run.stop)
        known, call = self._calls.get(place, ("", None))
        if call is not None and known == operator:
            return call.set(**attributes)
        begin, end = run.start - hull.start, run.stop - hull.start
        weight = part(hull.weights[0], begin, end)
        states = self._states.buffers(hull.segment, kernel.states)
        inputs = [weight, part(self._totals[run.hull], begin, end)]
        inputs += [part(state, run.start, run.stop) for state in states[: kernel.inputs]]
        self._calls[place] = (operator, OperatorCall(operator, inputs, [weight], **attributes))
        return True

    def _take_states(self) -> None:
        """Make states that are missing, and take into the buffers what was put in the place of others."""
        held, synced = self._updater.states, self._updater.states_synced
        foreign = []
        for hull, kernel in zip(self._hulls, self._kernels):
            for slot in hull.slots:
                name, keys = slot.name, self._keys[slot.name]
                fresh, views = self._states.views(hull.segment, name, self._shapes[name], kernel)
                present = [held[key] for key in keys if key in held]
                replaced = present and present[0] is not self._states.packed[name]
                if replaced or not (present or fresh):
                    foreign.append((name, present[0] if present else None, views))
        for name, value, views in foreign:
            check_state(name, value, views)
        for _, value, views in foreign:
            copy_state(value, views)
        if foreign:
            # Whoever works on other arrays with the same states has to look where they are now.
            held.version += 1
        for name, keys in self._keys.items():
            for key in keys:
                held.keep(key, self._states.packed[name])
                synced[key] = True
        self._states_version = held.version
