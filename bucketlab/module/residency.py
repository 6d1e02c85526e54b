"""Which buckets stay bound: a limit under which the least used ones are let go, to be bound again when they come.

An unrolled graph keeps about a quarter of a megabyte of process memory for each time step, whatever its arrays take.
With many buckets that is most of the memory, and no sharing lessens it: only fewer bound buckets do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from bucketlab.errors import BucketError
from bucketlab.memory.process import heap_bytes


class Residency:
    """Counts bound buckets and the heap that binding them took, least recently used first.

    ``buckets`` is how many may be bound, ``heap`` how many bytes of process heap they may take together, as measured
    around each bind. None means no limit.
    """

    def __init__(self, buckets: int | None = None, heap: int | None = None):
        for name, limit in (("buckets", buckets), ("heap", heap)):
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
                raise BucketError(f"the limit {name} is {limit!r}; give a whole number of at least 1, or None")
        self.buckets = buckets
        self.heap = heap
        self._bytes: OrderedDict[Hashable, int] = OrderedDict()

    @property
    def limited(self) -> bool:
        return self.buckets is not None or self.heap is not None

    def under(self, buckets: int | None, heap: int | None) -> Residency:
        """The same buckets under another limit."""
        other = Residency(buckets, heap)
        other._bytes = self._bytes
        return other

    def __contains__(self, key: Hashable) -> bool:
        return key in self._bytes

    @contextmanager
    def binding(self, key: Hashable) -> Iterator[None]:
        """Around the bind of a bucket: it counts as used last, with the heap that the bind took."""
        before = heap_bytes() or 0
        yield
        self._bytes[key] = max(0, (heap_bytes() or 0) - before)
        self._bytes.move_to_end(key)

    def used(self, key: Hashable) -> None:
        """A bucket has become current."""
        self._bytes.move_to_end(key)

    def gone(self, key: Hashable) -> None:
        """A bucket is not bound any more."""
        self._bytes.pop(key, None)

    def to_let_go(self) -> list[Hashable]:
        """The least used buckets beyond the limit; the one used last is never among them."""
        kept, total = len(self._bytes), sum(self._bytes.values())
        victims = []
        for key, heap in list(self._bytes.items())[:-1]:
            fits = (self.buckets is None or kept <= self.buckets) and (self.heap is None or total <= self.heap)
            if fits:
                break
            victims.append(key)
            kept, total = kept - 1, total - heap
        return victims
