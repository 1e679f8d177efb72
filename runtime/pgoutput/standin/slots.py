"""Replication slots, and how far their clients have confirmed (src/backend/replication/slot.c)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from pgoutput.standin.faults import Progress
from pgoutput.standin.protocol import Refused

MAX_SLOTS: Final = 1000
"""As max_replication_slots says."""

_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")


class Slot(msgspec.Struct):
    """A logical slot of pgoutput."""

    name: str
    database: str
    confirmed_flush_lsn: int
    """What ended up to here is not sent again."""
    temporary: bool = False
    two_phase: bool = False
    failover: bool = False
    owner_pid: int = 0
    """The connection that a temporary slot ends with."""
    active_pid: int | None = None
    """The connection that streams from it."""
    progress: Progress = msgspec.field(default_factory=Progress)


class Slots:
    """The slots of a stand-in. All of it happens in the thread of its event loop."""

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._released = asyncio.Condition()

    def __iter__(self) -> Iterator[Slot]:
        return iter(tuple(self._slots.values()))

    def create(self, slot: Slot) -> None:
        """Add a slot.

        Raises:
            Refused: There is one of that name, the name is not one for slots, or there are too many.
        """
        _check_name(slot.name)
        if slot.name in self._slots:
            raise Refused("42710", f'replication slot "{slot.name}" already exists')
        if len(self._slots) >= MAX_SLOTS:
            raise Refused("53400", "all replication slots are in use", "Free one.")
        self._slots[slot.name] = slot

    def find(self, name: str) -> Slot:
        """The slot of a name.

        Raises:
            Refused: There is none.
        """
        if name not in self._slots:
            raise Refused("42704", f'replication slot "{name}" does not exist')
        return self._slots[name]

    def acquire(self, name: str, pid: int, database: str) -> Slot:
        """The slot of a name, for a connection that will stream from it.

        Raises:
            Refused: There is none, it is in use, or it belongs to another database.
        """
        slot = self._idle(name)
        if slot.database != database:
            raise Refused("55000", f'replication slot "{name}" was not created in this database')
        slot.active_pid = pid
        return slot

    async def release(self, slot: Slot) -> None:
        """Let go of a slot."""
        slot.active_pid = None
        async with self._released:
            self._released.notify_all()

    def drop(self, name: str) -> None:
        """Drop a slot.

        Raises:
            Refused: There is none, or it is in use.
        """
        del self._slots[self._idle(name).name]

    async def drop_when_idle(self, name: str) -> None:
        """Drop a slot as soon as nobody uses it.

        Raises:
            Refused: There is none.
        """
        self.find(name)
        async with self._released:
            await self._released.wait_for(lambda: self.find(name).active_pid is None)
        self.drop(name)

    def forget(self, pid: int) -> None:
        """Drop the temporary slots of a connection that has ended."""
        for slot in self:
            if slot.temporary and slot.owner_pid == pid:
                del self._slots[slot.name]

    def _idle(self, name: str) -> Slot:
        slot = self.find(name)
        if slot.active_pid is not None:
            raise Refused("55006", f'replication slot "{name}" is active for PID {slot.active_pid}')
        return slot


def _check_name(name: str) -> None:
    """See that a name is one for slots (ReplicationSlotValidateName)."""
    if len(name.encode("utf-8", "surrogateescape")) > 63:
        raise Refused("42622", f'replication slot name "{name}" is too long')
    if not name:
        raise Refused("42602", f'replication slot name "{name}" is too short')
    if _NAME.fullmatch(name) is None:
        raise Refused(
            "42602",
            f'replication slot name "{name}" contains invalid character',
            "Replication slot names may only contain lower case letters, numbers, and the underscore "
            "character.",
        )
