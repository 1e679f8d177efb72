"""Pauses between attempts of a failed operation on a table, each twice as long as the one before it."""

from __future__ import annotations

import time


class Pauses:
    """The pauses of tables after failed operations. Each is twice as long as the one before, up to a limit.

    Args:
        first: Length of the first pause of a table, in seconds.
        greatest: Greatest length of a pause, in seconds.
    """

    def __init__(self, first: float, greatest: float) -> None:
        self._first, self._greatest = first, greatest
        self._pauses: dict[int, tuple[float, float]] = {}
        """Maps a table's OID to the length of its last pause in seconds, and the end by time.monotonic()."""

    def begin(self, oid: int) -> None:
        """Begin a pause of a table."""
        length = min(2 * self._pauses[oid][0], self._greatest) if oid in self._pauses else self._first
        self._pauses[oid] = length, time.monotonic() + length

    def __contains__(self, oid: int) -> bool:
        """Return whether a table has had a pause since the last call of `forget` for it."""
        return oid in self._pauses

    def ended(self) -> set[int]:
        """Return the OIDs of the tables whose last pause has ended."""
        now = time.monotonic()
        return {oid for oid, (_, end) in self._pauses.items() if end <= now}

    def remaining(self, oid: int) -> float:
        """Return the seconds until the last pause of a table ends; 0 if it has ended or there was none."""
        _, end = self._pauses.get(oid, (0.0, 0.0))
        return max(0.0, end - time.monotonic())

    def forget(self, oid: int) -> None:
        """Forget the pauses of a table, after a successful attempt: its next pause has the length `first`."""
        self._pauses.pop(oid, None)
