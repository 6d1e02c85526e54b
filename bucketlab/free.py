"""Binding as a function of the module, for classes that take it out of the class or put it on another one."""

from __future__ import annotations

from typing import Any

from bucketlab.module.bucketing import BucketingModule
from bucketlab.module.module import Module
from bucketlab.module.mutable import MutableModule


def bind(
    module: Any,
    data_shapes: Any,
    label_shapes: Any = None,
    for_training: bool = True,
    inputs_need_grad: bool = False,
    force_rebind: bool = False,
    shared_module: Any = None,
    grad_req: Any = "write",
    *,
    host: str = "cpu",
) -> None:
    """Bind a module as bucketlab does, whatever its own ``bind`` has become.

    Takes a Module, BucketingModule or MutableModule, or one of a subclass, and what their ``bind`` takes. So a
    class may have it as its method, with another executor group or without one of its own:

    >>> class Mine(Module):
    ...     bind = bind
    ...     executor_group_class = DataParallelExecutorGroup

    ``host="context"`` makes the host's copy of every parameter on the context that the parameter is bound on,
    where it is the CPU otherwise. Raises TypeError for any other kind of module.
    """
    kinds: tuple[Any, ...] = (Module, BucketingModule, MutableModule)
    for kind in kinds:
        if isinstance(module, kind):
            kind.bind(
                module,
                data_shapes,
                label_shapes,
                for_training,
                inputs_need_grad,
                force_rebind,
                shared_module,
                grad_req,
                host=host,
            )
            return
    raise TypeError(
        f"module is a {type(module).__name__}; bind() takes a bucketlab Module, BucketingModule or "
        f"MutableModule, or one of a subclass"
    )
