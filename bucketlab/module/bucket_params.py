"""Setting the parameters of all buckets at once: the current one's first, then what only others have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bucketlab.module.module import KINDS, Module
from bucketlab.module.values import fill
from bucketlab.requests import as_params, check_params


def initialise(
    current: Module,
    others: Sequence[Module],
    givens: Mapping[str, Any],
    initializer: Any,
    allow_missing: bool,
    allow_extra: bool,
) -> None:
    """As Module.init_params, for the current bucket and those that share with it. All is checked before any is written.

    What only other buckets have is set where a value is given for it, or where nothing is given at all.
    """
    givens = {kind: as_params(kind, given) for kind, given in givens.items()}
    beside = _beside(current, others)
    mine = _without(givens, beside)
    hosts = [(current, current._checked(mine, initializer, allow_missing, allow_extra))]
    for module, names in beside:
        own = module._own_hosts()
        theirs = {
            kind: {name: own[kind][name] for name in names[kind] if givens[kind] is None or name in givens[kind]}
            for kind in KINDS
        }
        _check(theirs, givens)
        hosts.append((module, theirs))
    fill([(chosen, module.symbol.attr_dict()) for module, chosen in hosts], givens, initializer)
    for module, chosen in hosts:
        if module is current or any(chosen.values()):
            module._put(chosen, initializer)
        module._params_dirty = False
    current._put_elsewhere(mine)


def assign(current: Module, others: Sequence[Module], givens: Mapping[str, Any], allow_extra: bool) -> None:
    """As Module.set_params with ``allow_missing``: what is not given stays. All is checked before any is written."""
    givens = {kind: as_params(kind, given) for kind, given in givens.items()}
    beside = _beside(current, others)
    mine = _without(givens, beside)
    plan = []
    for module, names in beside:
        own = module._own_hosts()
        theirs = {kind: {n: own[kind][n] for n in names[kind] if n in (givens[kind] or {})} for kind in KINDS}
        _check(theirs, givens)
        if any(theirs.values()):
            plan.append((module, {kind: {name: givens[kind][name] for name in theirs[kind]} for kind in KINDS}))
    parameters, auxiliary = KINDS
    current.set_params(mine[parameters], mine[auxiliary], allow_missing=True, allow_extra=allow_extra)
    for module, values in plan:
        module.set_params(values[parameters], values[auxiliary], allow_missing=True)


def _beside(current: Module, others: Iterable[Module]) -> list[tuple[Module, dict[str, list[str]]]]:
    """The other buckets with the names, by kind, that neither the current one nor one before them has."""
    known = {kind: {*current._known_inputs(kind), *own} for kind, own in current._own_hosts().items()}
    found = []
    for module in others:
        names = {kind: [n for n in own if n not in known[kind]] for kind, own in module._own_hosts().items()}
        for kind in KINDS:
            known[kind].update(names[kind])
        found.append((module, names))
    return found


def _without(givens: Mapping[str, Any], beside: Iterable[tuple[Module, Mapping[str, Sequence[str]]]]) -> dict[str, Any]:
    """What is given, but for what only other buckets have."""
    elsewhere = {kind: {name for _, names in beside for name in names[kind]} for kind in KINDS}
    return {
        kind: given if given is None else {name: v for name, v in given.items() if name not in elsewhere[kind]}
        for kind, given in givens.items()
    }


def _check(hosts: Mapping[str, Mapping[str, Any]], givens: Mapping[str, Any]) -> None:
    for kind, own in hosts.items():
        check_params(kind, {name: givens[kind][name] for name in own if givens[kind] is not None}, own, False)
