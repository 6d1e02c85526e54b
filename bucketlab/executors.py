"""Binding a symbol to arrays that are there already, and asking it what binding must know.

mxnet's ``Symbol.bind`` copies the symbol and lists its arguments over and over. Each of these walks the whole graph,
which for an unrolled one takes milliseconds; here each is done once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from bucketlab._engine import mx

_LIB = mx.base._LIB
_REQUESTS = {"null": 0, "write": 1, "add": 3}


_DECLARATIONS = tuple(f"$__{name}__".encode() for name in ("dtype", "storage_type", "ctx_group"))


def declarations(symbol: Any) -> dict[str, dict[str, str]]:
    """``symbol.attr_dict()``, or nothing where no variable declares a type, a storage or a context group.

    Most do not, and of a long graph all attributes of all operators take a while to be read.
    """
    pairs = ctypes.POINTER(ctypes.c_char_p)()
    count = ctypes.c_uint()
    mx.base.check_call(_LIB.MXSymbolListAttr(symbol.handle, ctypes.byref(count), ctypes.byref(pairs)))
    told = pairs[: 2 * count.value] if count.value else []
    found = any(key.endswith(_DECLARATIONS) for key in told[::2])
    return symbol.attr_dict() if found else {}


def bind(
    symbol: Any,
    context: Any,
    arguments: Mapping[str, Any],
    gradients: Mapping[str, Any],
    requests: Mapping[str, str],
    auxiliary: Mapping[str, Any],
    homes: Mapping[str, Any] | None = None,
    pool: Any = None,
) -> Any:
    """An ``mx.executor.Executor`` on these arrays; ``arguments`` and ``auxiliary`` are in the symbol's own order.

    ``pool`` is an executor whose working memory it borrows. The symbol is held, not copied. Raises MXNetError where the
    arrays do not fit it.
    """
    names, homes = list(arguments), dict(homes or {})
    grads = [gradients.get(name) for name in names]
    handle = mx.base.ExecutorHandle()
    mx.base.check_call(
        _LIB.MXExecutorBindEX(
            symbol.handle,
            ctypes.c_int(context.device_typeid),
            ctypes.c_int(context.device_id),
            ctypes.c_uint(len(homes)),
            mx.base.c_str_array(list(homes)),
            _integers([home.device_typeid for home in homes.values()]),
            _integers([home.device_id for home in homes.values()]),
            ctypes.c_uint(len(names)),
            _handles(list(arguments.values())),
            _handles(grads),
            _integers([_REQUESTS[requests[name]] for name in names]),
            ctypes.c_uint(len(auxiliary)),
            _handles(list(auxiliary.values())),
            mx.base.ExecutorHandle() if pool is None else pool.handle,
            ctypes.byref(handle),
        )
    )
    executor = mx.executor.Executor(handle, None, context, dict(requests), homes or None)
    executor._symbol = symbol
    executor.arg_arrays, executor._arg_dict = list(arguments.values()), dict(arguments)
    executor.grad_arrays, executor._grad_dict = grads, dict(zip(names, grads))
    executor.aux_arrays, executor._aux_dict = list(auxiliary.values()), dict(auxiliary)
    return executor


def _handles(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*[None if array is None else array.handle for array in arrays])


def _integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)
