"""Replication slots and their confirmed flush positions (src/backend/replication/slot.c)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from logicalrep.standin.faults import SlotProgress
from logicalrep.standin.protocol import ServerError

MAX_SLOTS: Final = 1000
"""Maximum number of slots; the value of the setting max_replication_slots."""

_VALID_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")


class Slot(msgspec.Struct):
    """A logical replication slot of the plugin pgoutput."""

    name: str
    """Name of the slot."""
    database: str
    """Name of the database that the slot belongs to."""
    confirmed_flush_lsn: int
    """LSN that the client has acknowledged. Transactions that ended at or before this LSN are not sent."""
    temporary: bool = False
    """Whether the slot is dropped when the connection that created it ends."""
    two_phase: bool = False
    """Whether two_phase is enabled: transactions are sent when they are prepared, not when they commit."""
    failover: bool = False
    """Value of the slot's failover flag, which has no effect in a stand-in server."""
    owner_pid: int = 0
    """Process ID of the connection that created the slot."""
    active_pid: int | None = None
    """Process ID of the connection that streams from the slot, or None."""
    is_lost: bool = False
    """Whether the server has invalidated the slot."""
    progress: SlotProgress = msgspec.field(default_factory=SlotProgress)
    """How far the slot's stream has been sent. Faults affect only messages that were not sent before."""


class Slots:
    """Replication slots of a stand-in server. Not thread-safe: use only in the event loop's thread."""

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._released = asyncio.Condition()

    def __iter__(self) -> Iterator[Slot]:
        return iter(tuple(self._slots.values()))

    def create(self, slot: Slot) -> None:
        """Add a slot.

        Raises:
            ServerError: The name is taken or not valid, or all slots are in use.
        """
        _check_name(slot.name)
        if slot.name in self._slots:
            raise ServerError("42710", f'replication slot "{slot.name}" already exists')
        if len(self._slots) >= MAX_SLOTS:
            raise ServerError("53400", "all replication slots are in use", "Drop an unused slot.")
        self._slots[slot.name] = slot

    def get(self, name: str) -> Slot:
        """Return the slot with this name.

        Raises:
            ServerError: There is no such slot.
        """
        if name not in self._slots:
            raise ServerError("42704", f'replication slot "{name}" does not exist')
        return self._slots[name]

    def acquire(self, name: str, pid: int, database: str) -> Slot:
        """Return the slot of this name and mark it as active for the connection `pid`.

        Raises:
            ServerError: The slot does not exist, is active, or belongs to another database.
        """
        slot = self._get_inactive(name)
        if slot.database != database:
            raise ServerError("55000", f'replication slot "{name}" was not created in this database')
        slot.active_pid = pid
        return slot

    async def release(self, slot: Slot) -> None:
        """Mark a slot as inactive."""
        slot.active_pid = None
        async with self._released:
            self._released.notify_all()

    def drop(self, name: str) -> None:
        """Drop a slot.

        Raises:
            ServerError: The slot does not exist or is active.
        """
        del self._slots[self._get_inactive(name).name]

    async def drop_when_idle(self, name: str) -> None:
        """Wait until a slot is inactive, then drop it (DROP_REPLICATION_SLOT … WAIT).

        Raises:
            ServerError: There is no such slot.
        """
        self.get(name)
        async with self._released:
            await self._released.wait_for(lambda: self.get(name).active_pid is None)
        self.drop(name)

    def drop_temporary(self, pid: int) -> None:
        """Drop the temporary slots of a connection that has ended."""
        for slot in self:
            if slot.temporary and slot.owner_pid == pid:
                del self._slots[slot.name]

    def _get_inactive(self, name: str) -> Slot:
        slot = self.get(name)
        if slot.active_pid is not None:
            raise ServerError("55006", f'replication slot "{name}" is active for PID {slot.active_pid}')
        return slot


def _check_name(name: str) -> None:
    """Check that a name is valid for a slot (ReplicationSlotValidateName)."""
    if len(name.encode("utf-8", "surrogateescape")) > 63:
        raise ServerError("42622", f'replication slot name "{name}" is too long')
    if not name:
        raise ServerError("42602", f'replication slot name "{name}" is too short')
    if _VALID_NAME.fullmatch(name) is None:
        raise ServerError(
            "42602",
            f'replication slot name "{name}" contains invalid character',
            "Replication slot names may only contain lower case letters, numbers, and the underscore "
            "character.",
        )
