"""Files of a BucketingModule: parameters, the key and symbol of every bucket, the optimizer's state.

``PREFIX.buckets`` lists the keys. Integer keys are written as mx.mod writes them, so either reads the other's files;
strings, tuples and other literals are written as names of entries, in order.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Mapping
from typing import Any
from urllib.parse import quote

import numpy as np

from bucketlab._engine import mx
from bucketlab.errors import BucketError, NotReadyError
from bucketlab.module.base import read_arrays, read_params, read_symbol


def symbol_file(prefix: str, key: Hashable) -> str:
    """The file of one bucket's symbol; what a file name cannot hold is percent-encoded."""
    return f"{prefix}-{quote(str(key), safe=' (),.[]{}+=@~')}-symbol.json"


def _is_int32(key: Hashable) -> bool:
    return isinstance(key, (int, np.integer)) and not isinstance(key, bool) and -(2**31) <= int(key) < 2**31


def _check_keys(keys: list[Hashable]) -> None:
    for key in keys:
        try:
            same = ast.literal_eval(repr(key)) == key
        except (ValueError, SyntaxError):
            same = False
        if not same and not _is_int32(key):
            raise BucketError(
                f"bucket key {key!r} cannot be written to a checkpoint; use ints, strings, or tuples of them as keys"
            )
    files = [symbol_file("", key) for key in keys]
    if len(set(files)) < len(files):
        raise BucketError(f"bucket keys {keys!r} would share a file; use keys whose text differs")


def _plain(key: Any) -> Any:
    """A key that is found under the same hash: named tuples are tuples."""
    return tuple(map(_plain, key)) if isinstance(key, tuple) else key


def save(module: Any, prefix: str, epoch: int, save_optimizer_states: bool = False) -> None:
    """Write ``module`` to files that start with ``prefix``."""
    if not module._buckets and not module.binded:
        raise NotReadyError("the module has no bucket to save: call bind(data_shapes, label_shapes) first")
    # The default bucket's, too, where a program has deleted its entry: load begins with it.
    keys = [_plain(key) for key in dict.fromkeys([*module._buckets, module._default_bucket_key])]
    _check_keys(keys)
    if save_optimizer_states:
        module._require("save_checkpoint()", optimizer=True)
    module.save_params(f"{prefix}-{epoch:04d}.params")
    for key in keys:
        module._generate(key)[0].save(symbol_file(prefix, key), remove_amp_cast=False)
    if all(map(_is_int32, keys)):
        mx.nd.save(f"{prefix}.buckets", mx.nd.array([int(key) for key in keys], dtype=np.int32))
    else:
        mx.nd.save(f"{prefix}.buckets", {repr(key): mx.nd.array([i]) for i, key in enumerate(keys)})
    if save_optimizer_states:
        module._curr_module.save_optimizer_states(f"{prefix}-{epoch:04d}.states")


def read_keys(prefix: str) -> list[Hashable]:
    """The bucket keys of a checkpoint."""
    stored = read_arrays(f"{prefix}.buckets")
    if isinstance(stored, dict):
        ordered = sorted(stored, key=lambda text: float(stored[text].asscalar()))
        return [ast.literal_eval(text) for text in ordered]
    return [int(key) for key in stored[0].asnumpy()]


def load(cls: Any, prefix: str, epoch: int, sym_gen: Any, default_bucket_key: Hashable, **kwargs: Any) -> Any:
    """A module of class ``cls`` from the files that start with ``prefix``."""
    if sym_gen is None:
        raise ValueError("sym_gen is None; load needs the function that makes a bucket's symbol")
    if default_bucket_key is None:
        raise BucketError("default_bucket_key is None; give the key of the bucket that is bound first")
    symbols = {key: read_symbol(symbol_file(prefix, key)) for key in read_keys(prefix)}
    arg_params, aux_params = read_params(f"{prefix}-{epoch:04d}.params")
    return assemble(cls, symbols, sym_gen, default_bucket_key, arg_params, aux_params, **kwargs)


def assemble(
    cls: Any,
    symbols: Mapping[Hashable, Any] | None,
    sym_gen: Any,
    default_bucket_key: Hashable,
    arg_params: Any,
    aux_params: Any,
    **kwargs: Any,
) -> Any:
    """A module of class ``cls`` with these symbols and parameters, ready to bind."""
    for name, value in (
        ("sym_dict", symbols),
        ("sym_gen", sym_gen),
        ("default_bucket_key", default_bucket_key),
        ("arg_params", arg_params),
        ("aux_params", aux_params),
    ):
        if value is None:
            raise ValueError(f"{name} is None; it is needed to put a BucketingModule together")
    assert symbols is not None
    module = cls(sym_gen, default_bucket_key, **kwargs)
    for key, symbol in symbols.items():
        _, data_names, label_names = module._generate(key)
        module._generated[key] = (symbol, data_names, label_names)
        module._buckets[key] = module._module_on(symbol, data_names, label_names)
    if default_bucket_key not in module._buckets:
        raise BucketError(
            f"default_bucket_key is {default_bucket_key!r}, which is not among the saved buckets {list(symbols)}"
        )
    default = module._buckets[default_bucket_key]
    default._arg_params, default._aux_params = arg_params, aux_params
    # Other buckets, also those that are still to come, may have parameters that the default one lacks.
    default._of_others = frozenset({*arg_params, *aux_params}.difference(default._param_names, default._aux_names))
    default.params_initialized = module.params_initialized = True
    module._curr_module = default
    return module
