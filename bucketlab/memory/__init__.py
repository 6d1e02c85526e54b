"""Where every byte is: snapshots of a module's arrays, what they share, and the ledger of their memory."""

from __future__ import annotations

from bucketlab.memory.aliasing import AliasReport, aliases, same_memory, shared_bytes
from bucketlab.memory.ledger import Ledger, memory
from bucketlab.memory.protocol import HeldArray
from bucketlab.memory.snapshot import ArrayRecord, Snapshot, snapshot

__all__ = [
    "AliasReport",
    "ArrayRecord",
    "HeldArray",
    "Ledger",
    "Snapshot",
    "aliases",
    "memory",
    "same_memory",
    "shared_bytes",
    "snapshot",
]
