"""What an error carries that came up while a batch ran: its shapes, its bucket, and what takes the most memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bucketlab.errors import BucketlabError
from bucketlab.shapes import BatchShapes

__all__ = ["Failure", "tell"]

_ARRAYS = 5


@dataclass(frozen=True)
class Failure:
    """The attribute ``failure`` of an exception. ``shapes`` are (name, shape) of the batch, of a list of batches all of
    them; ``largest`` are (name, role, context, shape, bytes), ``working`` bytes of working memory by context.

    ``epoch`` and ``nbatch`` are those of ``fit``, None elsewhere. Operators run after they were called for, so an
    error of one may come up with a later batch.
    """

    bucket: Hashable
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    contexts: tuple[str, ...]
    largest: tuple[tuple[str, str, str, tuple[int, ...], int], ...]
    working: tuple[tuple[str, int], ...]
    epoch: int | None = None
    nbatch: int | None = None

    def __str__(self) -> str:
        batch = ", ".join(f"{name} {shape}" for name, shape in self.shapes) or "a batch that does not say its shapes"
        of = "" if self.bucket is None else f"bucket {self.bucket!r}, "
        when = "" if self.nbatch is None else f"epoch {self.epoch}, batch {self.nbatch}, "
        text = f"{when}{of}{batch} on {', '.join(self.contexts)}"
        if self.largest:
            arrays = (
                f"{name} ({role.replace('_', ' ')}, {context}) {shape} {size:,} bytes"
                for name, role, context, shape, size in self.largest
            )
            text += f"; largest arrays: {', '.join(arrays)}"
        if self.working:
            text += f"; working memory: {', '.join(f'{size:,} bytes on {context}' for context, size in self.working)}"
        return text


def tell(
    error: BaseException, module: Any, batch: Any = None, epoch: int | None = None, nbatch: int | None = None
) -> None:
    """Give ``error`` its ``failure``; what an inner module told already is completed.

    ``batch``: what ran or was to be bound, a batch, a list of them or BatchShapes; else what the module is bound to.
    The same is said in a note of the error, before Python 3.11 at the end of its message. Our own refusals say what
    they are about themselves, and get the attribute only, without arrays. Never raises.
    """
    try:
        known = getattr(error, "failure", None)
        own = isinstance(error, BucketlabError)
        found = known or getattr(error.__cause__, "failure", None) or _found(module, batch, arrays=not own)
        if known is not None and not own and getattr(module, "_buckets", None):
            # One bucket told of its own arrays; here are all of them.
            found = replace(found, **dict(zip(("largest", "working"), _arrays(module))))
        found = replace(
            found,
            bucket=found.bucket if found.bucket is not None else _bucket(module, batch),
            shapes=found.shapes or _shapes(batch),
            epoch=found.epoch if found.epoch is not None else epoch,
            nbatch=found.nbatch if found.nbatch is not None else nbatch,
        )
        error.failure = found  # type: ignore[attr-defined]
        if not own:
            _say(error, known, found)
    except Exception:
        # The error that is on its way says more than one of telling about it.
        return


def _say(error: BaseException, known: Failure | None, found: Failure) -> None:
    if hasattr(error, "add_note"):
        notes = getattr(error, "__notes__", [])
        if known is not None and str(known) in notes:
            notes[notes.index(str(known))] = str(found)
        else:
            error.add_note(str(found))
        return
    message = str(error.args[0]) if error.args else ""
    message = message if known is None else message.replace(f"\n{known}", "")
    error.args = (f"{message}\n{found}", *error.args[1:])


def _found(module: Any, batch: Any, arrays: bool) -> Failure:
    from bucketlab.record.current import module_contexts

    largest, working = _arrays(module) if arrays else ((), ())
    return Failure(_bucket(module, batch), _shapes(batch) or _bound(module), module_contexts(module), largest, working)


def _bound(module: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    if not getattr(module, "binded", False):
        return ()
    described = (*_flat_descriptions(module.data_shapes), *_flat_descriptions(module.label_shapes))
    return tuple((desc[0], tuple(desc[1])) for desc in described)


def _bucket(module: Any, batch: Any) -> Hashable:
    key: Hashable = getattr(batch, "bucket_key", None)
    return key if key is not None else getattr(module, "_curr_bucket_key", None)


def _shapes(batch: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of a batch's arrays, told by its descriptions where it has some."""
    found: list[tuple[str, tuple[int, ...]]] = []
    if isinstance(batch, BatchShapes):
        every = _flat_descriptions(batch.data_list), _flat_descriptions(batch.label_list)
        return tuple((desc.name, tuple(desc.shape)) for descs in every for desc in descs)
    for one in batch if isinstance(batch, list) else [batch]:
        for kind in ("data", "label"):
            arrays = list(_flat(getattr(one, kind, None)))
            described = list(_flat_descriptions(getattr(one, f"provide_{kind}", None)))
            for i, array in enumerate(arrays):
                name = described[i][0] if i < len(described) else kind if len(arrays) == 1 else f"{kind}[{i}]"
                found.append((name, tuple(array.shape)))
    return tuple(found)


def _flat(arrays: Any) -> Sequence[Any]:
    if arrays is None:
        return ()
    several = arrays if isinstance(arrays, (list, tuple)) else [arrays]
    return [one for part in several for one in (part if isinstance(part, (list, tuple)) else [part]) if one is not None]


def _flat_descriptions(described: Any) -> Sequence[Any]:
    if not described:
        return ()
    nested = not isinstance(described[0][0], str) if described[0] else True
    return [one for part in described for one in part or ()] if nested else list(described)


def _arrays(module: Any) -> tuple[Any, Any]:
    """The largest arrays, each memory once, and the working memory. Nothing is allocated or waited for."""
    from bucketlab.memory import memory

    if not getattr(module, "binded", False):
        return (), ()
    book = memory(module)
    seen: set[str] = set()
    largest = []
    for record in sorted(book.snapshot.records, key=lambda one: -one.bytes):
        if record.role != "pool" and record.group not in seen:
            seen.add(record.group)
            largest.append((record.name, record.role, record.context, record.shape, record.bytes))
            if len(largest) == _ARRAYS:
                break
    working = tuple((context, book.of(context, "pool") + book.of(context, "output")) for context in book.contexts)
    return tuple(largest), tuple((context, size) for context, size in working if size)
