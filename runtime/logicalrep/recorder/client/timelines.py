"""Timelines of a server's WAL, and whether a server has the WAL that was recorded.

A promoted standby, and a server that was restored to an earlier point, begin a new timeline. The new timeline
lacks the WAL that the old timeline has after the switch point (PostgreSQL documentation, "Timelines" in
"Continuous Archiving").
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from logicalrep.errors import ChangesLost, ReplicationError
from logicalrep.recorder.client.connection import Connection
from logicalrep.wire import format_lsn, parse_lsn


class Timeline(msgspec.Struct, frozen=True):
    """A timeline in the history of a server's WAL."""

    id: int
    """Timeline ID."""
    end_lsn: int | None = None
    """LSN of the switch to the next timeline; None for the current timeline."""


def read_timelines(connection: Connection) -> tuple[Timeline, ...]:
    """Return the timelines of a server's WAL, the current timeline last (IDENTIFY_SYSTEM, TIMELINE_HISTORY).

    Args:
        connection: A replication connection. The current timeline of a standby is the one being replayed.

    Raises:
        ReplicationError: The server has lost the history file of its timeline.
    """
    current = int(connection.query("IDENTIFY_SYSTEM")[0][1])
    if current == 1:
        return (Timeline(1),)
    _, content = connection.query(f"TIMELINE_HISTORY {current}")[0]
    return parse_history(content, current)


def parse_history(content: str, current: int) -> tuple[Timeline, ...]:
    """Return the timelines of a history file (readTimeLineHistory in timeline.c).

    Args:
        content: Content of the file: for each earlier timeline, a line with ID, switch point and reason.
        current: ID of the timeline that the file belongs to.

    Raises:
        ReplicationError: A line has no ID or no switch point.
    """
    timelines = []
    for line in content.splitlines():
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        try:
            timelines.append(Timeline(int(fields[0]), parse_lsn(fields[1])))
        except (ValueError, IndexError):
            raise ReplicationError(
                f"the server's history file of timeline {current} is invalid: expected a line with a "
                f"timeline ID and an LSN, found {line!r}"
            ) from None
    return (*timelines, Timeline(current))


def fork_lsn(recorded: Sequence[Timeline], server: Sequence[Timeline]) -> int | None:
    """Return the LSN up to which two timeline histories share their WAL; None if the histories are equal.

    Args:
        recorded: History of the WAL that was recorded.
        server: History of the WAL of the server that continues the recording.
    """
    shared = 0
    for ours, theirs in zip_longest(recorded, server):
        if ours is None or theirs is None or ours.id != theirs.id:
            return shared
        if ours.end_lsn != theirs.end_lsn:
            return min(end for end in (ours.end_lsn, theirs.end_lsn) if end is not None)
        shared = ours.end_lsn or shared
    return None


def check_fork(
    recorded: Sequence[Timeline], server: Sequence[Timeline], stored_lsn: int, place: str
) -> int | None:
    """Check that a server has all transactions that were recorded.

    Args:
        recorded: History of the WAL that was recorded.
        server: History of the server's WAL.
        stored_lsn: End LSN of the last transaction in the recording.
        place: Name of the recording in errors.

    Returns:
        The LSN up to which the two histories share their WAL; None if the histories are equal.

    Raises:
        ChangesLost: The recording has changes that the server lacks.
    """
    fork = fork_lsn(recorded, server)
    if fork is None or stored_lsn <= fork:
        return fork
    raise ChangesLost(
        f"{place}: the recording ends at {format_lsn(stored_lsn)} of timeline {recorded[-1].id}, but the "
        f"server is on timeline {server[-1].id}, which shares its WAL up to {format_lsn(fork)} only: the "
        "recording has changes that were lost in the failover or restore. Record anew in another folder; to "
        "prevent it, name the standby's slot in synchronized_standby_slots"
    )
