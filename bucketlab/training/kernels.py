"""Which optimizers are one elementwise operator, and with which attributes mxnet itself would call it.

Such an operator gives every element the same bits whether it runs over one parameter or over a flat buffer
of many. That, and mxnet's own choice of operator and of attribute text, is why a fused update equals the
per-parameter one exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from bucketlab._engine import mx

Call = tuple[str, dict[str, Any]]
"""The name of an operator and its attributes."""

SMALLEST_EXACT = 1e-12
"""Below this, 19 decimals no longer name a float32 exactly."""


@dataclass(frozen=True)
class Kernel:
    """One operator for an optimizer in its present setting.

    ``at(lr, wd)`` names the operator and all its attributes; ``rate(lr, count)`` is the learning rate at a
    parameter's update number ``count`` (None: it does not depend on it). ``states`` arrays are kept, by
    mxnet's optimizer as a tuple, or as one array if ``bare``; the operator takes the first ``inputs`` of them
    after weight and gradient (None: all).
    """

    states: int
    at: Callable[[float, float], Call]
    bare: bool = False
    rate: Callable[[float, int], float] | None = None
    inputs: int | None = None

    def packed(self, arrays: tuple[Any, ...]) -> Any:
        """State arrays in the form in which mxnet's optimizer keeps them."""
        if not arrays:
            return None
        return arrays[0] if self.bare else arrays


@dataclass(frozen=True)
class Family:
    """An optimizer class that has a fused form: its settings that are ``watched``, and how it takes a kernel.

    ``choose(optimizer, dtype, kept)``: ``kept`` says whether state arrays exist (None: not decided yet).
    """

    optimizer: Any
    watched: tuple[str, ...]
    choose: Callable[[Any, np.dtype, bool | None], Kernel]
    dtypes: tuple[str, ...] = ("float16", "float32", "float64")


def family_of(optimizer: Any) -> Family | None:
    """The family whose behaviour the optimizer has to the letter; None for all others.

    A subclass that overrides any method has another behaviour, and so has gluon's ``param_dict``.
    """
    for family in FAMILIES:
        if isinstance(optimizer, family.optimizer):
            return family if _unchanged(optimizer, family.optimizer) and not optimizer.param_dict else None
    return None


def fits(family: Family, optimizer: Any, dtype: np.dtype) -> bool:
    """Whether parameters of this dtype take the fused form."""
    return dtype.name in family.dtypes and not (optimizer.multi_precision and dtype == np.float16)


def _unchanged(optimizer: Any, known: Any) -> bool:
    own, kind = vars(optimizer), type(optimizer)
    return all(
        name.startswith("__") or (getattr(kind, name, None) is getattr(known, name) and name not in own)
        for base in known.__mro__[:-1]
        for name, value in vars(base).items()
        if callable(value) or isinstance(value, (property, staticmethod))
    )


def exact_text(value: float) -> str | None:
    """Decimals that the engine's parser of single numbers reads as exactly the float32 nearest to ``value``.

    That parser is off by one unit for about one number in eight, the parser of lists never; written out to
    19 decimals with no exponent, both read a float32 right. None where 19 decimals do not suffice.
    """
    nearest = float(np.float32(value))
    if nearest and not SMALLEST_EXACT <= abs(nearest) < 2**24:
        return None
    return f"{nearest:.19f}"


def _single(operator: str, attributes: dict[str, Any]) -> Callable[[float, float], Call]:
    return lambda lr, wd: (operator, {**attributes, "lr": lr, "wd": wd})


def _listed(operator: str, attributes: dict[str, Any]) -> Callable[[float, float], Call]:
    return lambda lr, wd: (operator, {**attributes, "num_weights": 1, "lrs": [lr], "wds": [wd]})


def _common(optimizer: Any, **more: Any) -> dict[str, Any]:
    attributes = {"rescale_grad": optimizer.rescale_grad, **more}
    if optimizer.clip_gradient:
        attributes["clip_gradient"] = optimizer.clip_gradient
    return attributes


def _momentum(optimizer: Any) -> dict[str, Any]:
    return {"momentum": optimizer.momentum} if optimizer.momentum > 0 else {}


def _sgd(optimizer: Any, dtype: np.dtype, kept: bool | None) -> Kernel:
    attributes = _common(optimizer, **_momentum(optimizer))
    states = int(bool(kept) or optimizer.momentum != 0.0)
    if optimizer.momentum <= 0:
        # Not sgd_update, which associates otherwise when wd is not 0.
        return Kernel(states, _listed("multi_sgd_update", attributes), bare=True, inputs=0)
    listed = _listed("multi_sgd_mom_update", attributes)

    def at(lr: float, wd: float) -> Call:
        # mxnet takes the list operator. The single one does the same arithmetic, faster over a flat buffer.
        exact_lr, exact_wd = exact_text(lr), exact_text(wd)
        if exact_lr is None or exact_wd is None or dtype != np.float32:
            return listed(lr, wd)
        return "sgd_mom_update", {**attributes, "lr": exact_lr, "wd": exact_wd}

    return Kernel(states, at, bare=True)


def _nag(optimizer: Any, dtype: np.dtype, kept: bool | None) -> Kernel:
    attributes = _common(optimizer, **_momentum(optimizer))
    if optimizer.momentum != 0.0 if kept is None else kept:
        return Kernel(1, _single("nag_mom_update", attributes), bare=True)
    return Kernel(0, _single("sgd_update", _common(optimizer)))


def _signum(optimizer: Any, dtype: np.dtype, kept: bool | None) -> Kernel:
    attributes = _common(optimizer)
    if optimizer.wd_lh:
        attributes["wd_lh"] = optimizer.wd_lh
    if optimizer.momentum != 0.0 if kept is None else kept:
        return Kernel(1, _single("signum_update", {**attributes, **_momentum(optimizer)}), bare=True)
    return Kernel(0, _single("signsgd_update", attributes))


def _adam(optimizer: Any, dtype: np.dtype, kept: bool | None) -> Kernel:
    beta1, beta2 = optimizer.beta1, optimizer.beta2

    def rate(lr: float, count: int) -> float:
        return lr * (math.sqrt(1.0 - beta2**count) / (1.0 - beta1**count))

    attributes = _common(optimizer, beta1=beta1, beta2=beta2, epsilon=optimizer.epsilon)
    return Kernel(2, _single("adam_update", attributes), rate=rate)


def _rmsprop(optimizer: Any, dtype: np.dtype, kept: bool | None) -> Kernel:
    attributes = _common(optimizer, gamma1=optimizer.gamma1, epsilon=optimizer.epsilon)
    if optimizer.clip_weights:
        attributes["clip_weights"] = optimizer.clip_weights
    if optimizer.centered:
        return Kernel(3, _single("rmspropalex_update", {**attributes, "gamma2": optimizer.gamma2}))
    return Kernel(1, _single("rmsprop_update", attributes))


def _ftrl(optimizer: Any, dtype: np.dtype, kept: bool | None) -> Kernel:
    attributes = _common(optimizer, lamda1=optimizer.lamda1, beta=optimizer.beta)
    return Kernel(2, _single("ftrl_update", attributes))


# rmsprop and ftrl keep float32 states whatever the weights are, so no other weights fit their operators.
FAMILIES = (
    Family(mx.optimizer.SGD, ("momentum",), _sgd),
    Family(mx.optimizer.NAG, ("momentum",), _nag),
    Family(mx.optimizer.Signum, ("momentum", "wd_lh"), _signum),
    Family(mx.optimizer.Adam, ("beta1", "beta2", "epsilon"), _adam),
    Family(
        mx.optimizer.RMSProp,
        ("gamma1", "gamma2", "epsilon", "centered", "clip_weights"),
        _rmsprop,
        dtypes=("float32",),
    ),
    Family(mx.optimizer.Ftrl, ("lamda1", "beta"), _ftrl, dtypes=("float32",)),
)
