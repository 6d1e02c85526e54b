"""How contexts share gradients: what becomes of a ``kvstore`` argument.

'local' and 'device' are sums within this process: bucketlab does them itself, on flat buffers
and in mxnet's order; whatever else a kvstore may be (an instance, dist, compression) is used as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bucketlab._calls import OperatorCall
from bucketlab._engine import mx
from bucketlab.errors import last_line

IN_PROCESS = {
    "local": "local",
    "local_update_cpu": "local",
    "local_allreduce_cpu": "local",
    "device": "device",
    "local_allreduce_device": "device",
}
"""Names of kvstores that only sum within this process, and the order in which they do."""

NAMED_BY = ("local", "device", "nccl", "dist")
"""What the engine looks for in the name of a kvstore."""

LARGEST_ON_KVSTORE = 16 * 1024 * 1024
"""Elements: with a larger parameter mxnet's 'local' leaves the update to the module."""


@dataclass(frozen=True)
class Exchange:
    """What became of a kvstore argument.

    ``kvstore`` is the object (None: there is none). ``order`` ('local' or 'device') says how bucketlab sums
    itself; it is None where the kvstore must do it. ``update_on_kvstore`` decides how optimizer states are
    keyed: by parameter name, else by ``position * contexts + context``.
    """

    kvstore: Any
    order: str | None
    update_on_kvstore: bool
    contexts: int

    @property
    def workers(self) -> int:
        """Processes whose batches make up one update."""
        kind = self.kvstore.type if self.kvstore is not None else ""
        return self.kvstore.num_workers if "dist" in kind and "_sync" in kind else 1

    @property
    def remote(self) -> bool:
        """Whether weights are updated outside this process."""
        return self.update_on_kvstore and self.order is None and "dist" in self.kvstore.type

    def keys(self, name: str, position: int) -> tuple[Any, ...]:
        """The keys of a parameter's optimizer state; bucketlab's own is the first."""
        if self.update_on_kvstore:
            return (name,)
        return tuple(position * self.contexts + context for context in range(self.contexts))

    def index_names(self, names: Sequence[str], start: int = 0) -> dict[int, str]:
        """``param_idx2name`` for an optimizer."""
        if self.update_on_kvstore:
            return dict(enumerate(names, start))
        return {key: name for position, name in enumerate(names, start) for key in self.keys(name, position)}


def open_exchange(
    kvstore: Any,
    contexts: Sequence[Any],
    arg_params: Mapping[str, Any],
    compression_params: Mapping[str, Any] | None = None,
    update_on_kvstore: bool | None = None,
) -> Exchange:
    """Take a kvstore argument (None, a name, or an instance) the way mx.mod does.

    Where mx.mod would sum nothing (several contexts and kvstore=None) the gradients are summed all the same.
    Raises TypeError for any other kind of argument and ValueError for compression that cannot work.
    """
    count = len(contexts)
    wanted = bool(int(os.getenv("MXNET_UPDATE_ON_KVSTORE", "1")))
    if update_on_kvstore is not None:
        wanted = update_on_kvstore
    if kvstore is not None and not isinstance(kvstore, (str, mx.kvstore.KVStoreBase)):
        kind = type(kvstore).__name__
        raise TypeError(f"kvstore is a {kind}; expected None, a name such as 'local', or a KVStore")
    if isinstance(kvstore, str):
        _check_name(kvstore)
    on_cpu = all(context.device_type.startswith("cpu") for context in contexts)
    if kvstore is None and (count == 1 or on_cpu):
        return Exchange(None, "local", False, count)
    if isinstance(kvstore, str) and count == 1 and "dist" not in kvstore:
        return Exchange(None, "local", False, count)
    if isinstance(kvstore, str) and compression_params and IN_PROCESS.get(kvstore) == "local":
        raise ValueError(
            f"compression_params do not work with kvstore={kvstore!r}; use 'device' or a dist one, or leave "
            f"compression_params out"
        )
    store = kvstore
    if not isinstance(store, mx.kvstore.KVStoreBase):
        try:
            store = mx.kvstore.create(kvstore or "device")
        except mx.base.MXNetError as error:
            raise ValueError(f"kvstore {kvstore!r} cannot be had: {last_line(error)}") from None
    update = wanted and store.is_capable(mx.kvstore.KVStoreBase.OPTIMIZER)
    if kvstore == "local" and max(np.prod(value.shape) for value in arg_params.values()) > LARGEST_ON_KVSTORE:
        update = False
    if compression_params:
        try:
            store.set_gradient_compression(dict(compression_params))
        except (mx.base.MXNetError, ValueError) as error:
            raise ValueError(
                f"compression_params is {dict(compression_params)!r}, which kvstore {store.type!r} does not take: "
                f"{last_line(error)}"
            ) from None
    plain = isinstance(kvstore, str) and not compression_params and on_cpu
    return Exchange(store, IN_PROCESS.get(kvstore) if plain else None, bool(update), count)


def _check_name(name: str) -> None:
    """Refuse a name in which the engine would find nothing that it knows, and make 'local' of it."""
    registered = sorted(mx.kvstore.KVStoreBase.kv_registry)
    if name.lower() not in registered and not any(part in name.lower() for part in NAMED_BY):
        raise ValueError(
            f"kvstore is {name!r}; choose 'local', 'device', 'nccl', 'dist_sync', 'dist_device_sync', 'dist_async', "
            f"{', '.join(map(repr, registered))}, or None"
        )


class Scratch:
    """Arrays that sums are built in: like a given one, made when first asked for, the same one ever after."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, int], tuple[Any, Any]] = {}

    def like(self, array: Any, number: int = 0) -> Any:
        """The ``number``-th scratch array for ``array``."""
        key = (id(array), number)
        if key not in self._arrays:
            self._arrays[key] = (array, mx.nd.zeros_like(array))
        return self._arrays[key][1]

    def arrays(self) -> list[Any]:
        """Those that there are by now."""
        return [array for _, array in list(self._arrays.values())]

    def clear(self) -> None:
        """Let go of the memory."""
        self._arrays.clear()


def summing(terms: Sequence[Any], order: str, total: Any, part: Any) -> list[OperatorCall]:
    """Calls that leave the sum of at least two arrays in ``total``, to the same bits as mxnet's kvstore.

    'device' adds one after another. 'local' adds to the first the sum of the next four, then the sum of the
    four after those, and so on; ``part`` (a function that gives an array) is needed from seven terms on.
    """
    if order == "device":
        return _chain(terms, total)
    calls: list[OperatorCall] = []
    done = terms[0]
    for start in range(1, len(terms), 4):
        group = terms[start : start + 4]
        if len(group) > 1:
            aside = total if start == 1 else part()
            calls += _chain(group, aside)
            group = [aside]
        calls.append(OperatorCall("elemwise_add", [done, group[0]], [total]))
        done = total
    return calls


def _chain(terms: Sequence[Any], total: Any) -> list[OperatorCall]:
    calls = [OperatorCall("elemwise_add", [terms[0], terms[1]], [total])]
    return calls + [OperatorCall("elemwise_add", [total, term], [total]) for term in terms[2:]]
