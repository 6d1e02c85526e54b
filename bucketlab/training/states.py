"""Optimizer states: mxnet's Updater, with the states of fused parameters as views of flat buffers."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from bucketlab._engine import mx
from bucketlab.errors import DataError, ShapeError
from bucketlab.training.exchange import Exchange
from bucketlab.training.flat import Segment, view
from bucketlab.training.kernels import Kernel, family_of


def _counted(method: Any) -> Any:
    def changing(self: States, *args: Any, **kwargs: Any) -> Any:
        self.version += 1
        return method(self, *args, **kwargs)

    return changing


def _same(key: Any) -> Any:
    return key


class States(dict):
    """Optimizer state by key, as programs expect it; ``version`` tells whether it was changed since.

    mxnet keys states by a parameter's number or by its name, as the case may be. Here either finds what is kept
    under the other: ``other(key)`` tells that.
    """

    def __init__(self, values: Mapping[Any, Any], version: int = 0, other: Callable[[Any], Any] = _same):
        super().__init__(values)
        self.version = version
        self._other = other

    def _kept(self, key: Any) -> Any:
        """The key under which the state of ``key`` is kept, if it is."""
        if dict.__contains__(self, key):
            return key
        other = self._other(key)
        return other if dict.__contains__(self, other) else key

    def __contains__(self, key: Any) -> bool:
        return dict.__contains__(self, self._kept(key))

    def __missing__(self, key: Any) -> Any:
        other = self._kept(key)
        if other == key:
            raise KeyError(key)
        return self[other]

    def get(self, key: Any, default: Any = None) -> Any:
        return dict.get(self, self._kept(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.version += 1
        self.keep(key, value)

    def __delitem__(self, key: Any) -> None:
        self.version += 1
        dict.__delitem__(self, self._kept(key))

    clear = _counted(dict.clear)
    pop = _counted(dict.pop)
    popitem = _counted(dict.popitem)
    setdefault = _counted(dict.setdefault)
    update = _counted(dict.update)

    def keep(self, key: Any, value: Any) -> None:
        """Put a value in without that being a change."""
        dict.__setitem__(self, self._kept(key), value)


class Updater(mx.optimizer.Updater):
    """What mx.mod has as ``_updater``: the optimizer, and its ``states`` by key.

    ``translate`` turns the keys of states that are set from outside (a file) into those in use here.
    Inside a kvstore's callback, where Python errors would be dropped, they are kept in ``failure`` instead.
    """

    def __init__(
        self,
        optimizer: Any,
        exchange: Exchange,
        names: list[str],
        weights: Mapping[str, Any],
        contexts: Sequence[Any],
    ):
        super().__init__(optimizer)
        self._exchange = exchange
        self._names = names
        self._weights = weights
        self._contexts = contexts
        self.in_callback = False
        self.assigning = False
        self.failure: BaseException | None = None

    @property
    def states(self) -> Any:
        """State by key; NDArray, tuple of NDArray, or None, as the optimizer made it."""
        return self._states

    @states.setter
    def states(self, values: Mapping[Any, Any]) -> None:
        before = getattr(self, "_states", None)
        self._states = States(values, before.version + 1 if before is not None else 0, self._other_key)

    def _other_key(self, key: Any) -> Any:
        """The name for a parameter's number, and the first number for its name; other keys are their own."""
        if not isinstance(key, int):
            per_name = 1 if self._exchange.update_on_kvstore else self._exchange.contexts
            return self._names.index(key) * per_name if key in self._names else key
        position = key if self._exchange.update_on_kvstore else key // self._exchange.contexts
        return self._names[position] if 0 <= position < len(self._names) else key

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        if not self.in_callback:
            super().__call__(index, grad, weight)
            return
        try:
            if self.assigning:
                grad.copyto(weight)
            else:
                super().__call__(index, grad, weight)
        except BaseException as error:
            self.failure = self.failure or error

    def set_states(self, states: bytes) -> None:
        """Take states that ``get_states`` of this class or of mxnet's own has given; keys are translated.

        Raises DataError for what is no dict of states, ShapeError for states of other parameters.
        """
        content, told = _unpickled(states)
        optimizer = self.optimizer  # type: ignore[has-type]
        if isinstance(content, tuple) and len(content) == 2:
            content, optimizer = content
        if not isinstance(content, Mapping):
            raise DataError(f"the optimizer states are {type(content).__name__}; expected a dict by parameter")
        taken = self._translated(content, told)
        self.optimizer = optimizer
        self.states = taken
        here = (key for name in self._names if name in taken for key in self._keys(name))
        self.states_synced = dict.fromkeys([*taken, *here], False)

    def _keys(self, name: str) -> tuple[Any, ...]:
        return self._exchange.keys(name, self._names.index(name))

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """All states, pickled as mxnet's Updater does: one per key, each an array of its own.

        Where keys are numbers, the names that they count follow in a second pickle, which mxnet does not read: another
        module may number its parameters in another order.
        """
        content = {
            key: self._detached(key, value)
            for kept, value in self.states.items()
            for key in (self._keys(kept) if kept in self._names else (kept,))
        }
        pickled = pickle.dumps((content, self.optimizer) if dump_optimizer else content)
        if self._exchange.update_on_kvstore:
            return pickled
        return pickled + pickle.dumps({"names": list(self._names), "contexts": self._exchange.contexts})

    def _detached(self, key: Any, value: Any) -> Any:
        context = None
        if not self._exchange.update_on_kvstore and isinstance(key, int):
            context = self._contexts[key % self._exchange.contexts]
        return _mapped(lambda array: array.copyto(context or array.context), value)

    def _translated(self, content: Mapping[Any, Any], told: Mapping[str, Any] | None = None) -> dict[Any, Any]:
        """Content whose numbers are those in use here; names stay names, also those that a later bucket may bring.

        ``told`` says which names the numbers count, over how many contexts; without it they count those here.
        """
        numbers = sorted(key for key in content if isinstance(key, int))
        result = {key: value for key, value in content.items() if not isinstance(key, int)}
        if told is not None:
            names, contexts = told["names"], told["contexts"]
        else:
            names, contexts = self._names, self._contexts_in(numbers, content)
        for number in reversed(numbers):
            result[names[number // contexts]] = content[number]
        if told is not None:
            self._check_told(result)
        for name in self._names:
            if name in result and name not in content and not self._exchange.update_on_kvstore:
                result.update(dict.fromkeys(self._keys(name), result.pop(name)))
        return result

    def _check_told(self, states: Mapping[Any, Any]) -> None:
        """Refuse states, by name, of which none is a parameter's here, or one does not fit its own."""
        known = [name for name in states if name in self._names]
        if states and not known:
            raise ShapeError(
                f"the optimizer states are of parameters {sorted(map(str, states))}, and none of these is among "
                f"{self._names}; they come from another model"
            )
        for name in known:
            if not self._fits(self._names.index(name), states[name], exactly=False):
                raise ShapeError(
                    f"the optimizer state of parameter {name!r} has arrays of shapes "
                    f"{[array.shape for array in state_arrays(states[name])]}, and the parameter has shape "
                    f"{self._weights[name].shape}; it comes from another model"
                )

    def _contexts_in(self, numbers: Sequence[int], content: Mapping[Any, Any]) -> int:
        """How many contexts the numbers were counted over: that of this module, or one."""
        here = self._exchange.contexts
        groups = {number // here for number in numbers}
        complete = set(numbers) == {group * here + k for group in groups for k in range(here)}
        for exactly in (True, False):
            # One context first: the fewer numbers a parameter has, the more parameters have states.
            for contexts in (1, here) if complete else (1,):
                if all(self._fits(number // contexts, content[number], exactly) for number in numbers):
                    return contexts
        raise ShapeError(
            f"the optimizer states are of parameters number {numbers} and do not fit the {len(self._names)} "
            f"parameters here; they come from another model, or were saved over another number of contexts"
        )

    def _fits(self, position: int, value: Any, exactly: bool) -> bool:
        """Whether a state can be this parameter's; only optimizers that we know must keep its own shape."""
        if not 0 <= position < len(self._names):
            return False
        shape = self._weights[self._names[position]].shape
        if not exactly and family_of(self.optimizer) is None:
            return True
        return all(array.shape == shape for array in state_arrays(value))


def _unpickled(states: bytes) -> tuple[Any, Mapping[str, Any] | None]:
    """The content, and what a second pickle says of its numbers if there is one."""
    stream = io.BytesIO(states)
    content = pickle.load(stream)
    try:
        told = pickle.load(stream)
    except Exception:
        told = None
    return content, told if isinstance(told, dict) and told.keys() >= {"names", "contexts"} else None


class FlatStates:
    """The state arrays of fused parameters: for a segment as many flat buffers as its kernel has states.

    ``packed`` is each parameter's state in the form in which the optimizer keeps it, of views of the buffers.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[Segment, list[Any]]] = {}
        self._views: dict[str, tuple[Any, ...]] = {}
        self.packed: dict[str, Any] = {}

    def kept(self, segment: Segment) -> bool | None:
        """Whether there are state arrays for this segment; None if none have been asked for yet."""
        entry = self._buffers.get(id(segment))
        return None if entry is None else bool(entry[1])

    def count(self, segment: Segment) -> int:
        """How many state buffers a segment has; -1 if none have been asked for yet."""
        entry = self._buffers.get(id(segment))
        return -1 if entry is None else len(entry[1])

    def buffers(self, segment: Segment, count: int) -> list[Any]:
        """The ``count`` buffers of a segment, made of zeros if need be."""
        _, arrays = self._buffers.setdefault(id(segment), (segment, []))
        while len(arrays) < count:
            arrays.append(mx.nd.zeros_like(segment.weight))
        return arrays[:count]

    def views(
        self, segment: Segment, name: str, shape: tuple[int, ...], kernel: Kernel
    ) -> tuple[bool, tuple[Any, ...]]:
        """(whether they are new, the state arrays) of one parameter."""
        known = self._views.get(name)
        if known is not None and len(known) == kernel.states:
            return False, known
        buffers = self.buffers(segment, kernel.states)
        self._views[name] = tuple(view(buffer, segment.spans[name], shape) for buffer in buffers)
        self.packed[name] = kernel.packed(self._views[name])
        return True, self._views[name]


def state_arrays(value: Any) -> list[Any]:
    """Every NDArray in an optimizer state, depth first."""
    found: list[Any] = []
    _mapped(found.append, value)
    return found


def check_state(name: str, value: Any, views: tuple[Any, ...]) -> None:
    """Raise ShapeError if a state from outside does not have the arrays that are kept; None always does."""
    given = [array.shape for array in state_arrays(value)]
    kept = [array.shape for array in views]
    if given and given != kept:
        raise ShapeError(
            f"the optimizer state of parameter {name!r} has arrays of shapes {given}, and this optimizer "
            f"keeps {kept}; it comes from another optimizer or another model"
        )


def copy_state(value: Any, views: tuple[Any, ...]) -> None:
    """Copy a state from outside into a parameter's views; None is a state of zeros."""
    arrays = state_arrays(value)
    for place, target in enumerate(views):
        if not arrays:
            target[:] = 0
        elif arrays[place] is not target:
            arrays[place].copyto(target)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, mx.nd.NDArray):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(function, item) for item in value)
    return value
