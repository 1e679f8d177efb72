"""Timelines of a server's WAL: whether a server still has what a recording has.

A promoted standby, and a server restored to an earlier point, begin a new timeline. What another timeline has
behind the switch point is not in theirs (PostgreSQL documentation, "Timelines" in "Continuous Archiving").
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from pgoutput.errors import ReplicationError
from pgoutput.recorder.connection import Connection
from pgoutput.wire import format_lsn, parse_lsn


class Timeline(msgspec.Struct, frozen=True):
    """A timeline in the history of a server's WAL."""

    id: int
    end_lsn: int | None = None
    """Where the next timeline begins; None for the last one, which is still written."""


def read_timelines(connection: Connection) -> tuple[Timeline, ...]:
    """Return the history of a server's WAL, the current timeline last (IDENTIFY_SYSTEM, TIMELINE_HISTORY).

    Args:
        connection: For replication. A standby tells the timeline that it replays.

    Raises:
        ReplicationError: The server has lost the history file of its timeline.
    """
    current = int(str(connection.query("IDENTIFY_SYSTEM")[0][1]))
    if current == 1:
        return (Timeline(1),)
    _, content = connection.query(f"TIMELINE_HISTORY {current}")[0]
    return parse_history(str(content), current)


def parse_history(content: str, current: int) -> tuple[Timeline, ...]:
    """Return the timelines of a history file (readTimeLineHistory in timeline.c).

    Args:
        content: The file: a line with ID, switch point and reason for each timeline before.
        current: The timeline that the file is of.

    Raises:
        ReplicationError: A line is not one of a history file.
    """
    timelines = []
    for line in content.splitlines():
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        try:
            timelines.append(Timeline(int(fields[0]), parse_lsn(fields[1])))
        except (ValueError, IndexError):
            raise ReplicationError(f"history of timeline {current}: line {line!r} cannot be read") from None
    return (*timelines, Timeline(current))


def fork_lsn(recorded: Sequence[Timeline], server: Sequence[Timeline]) -> int | None:
    """Return the LSN up to which two histories are the same WAL; None if one continues the other.

    Args:
        recorded: The history that a recording was made from.
        server: The history of the server to go on with.
    """
    shared = 0
    for one, other in zip_longest(recorded, server):
        if one is None or other is None or one.id != other.id:
            return shared
        if one.end_lsn != other.end_lsn:
            ends = [end for end in (one.end_lsn, other.end_lsn) if end is not None]
            return min(ends)
        shared = one.end_lsn or shared
    return None


def check_fork(
    recorded: Sequence[Timeline], server: Sequence[Timeline], stored_lsn: int, place: str
) -> int | None:
    """See that a server has all that was recorded; return the LSN where it left the recorded history.

    Args:
        recorded: The history that the recording was made from.
        server: The server's.
        stored_lsn: End of the last transaction in the recording.
        place: The recording, as errors name it.

    Raises:
        ReplicationError: The recording has changes that the server does not have.
    """
    fork = fork_lsn(recorded, server)
    if fork is None or stored_lsn <= fork:
        return fork
    raise ReplicationError(
        f"{place}: the recording ends at {format_lsn(stored_lsn)} of timeline {recorded[-1].id}, but the "
        f"server is on timeline {server[-1].id}, which shares its WAL up to {format_lsn(fork)} only: the "
        "recording has changes that were lost in the failover or restore. Record anew in another folder; to "
        "prevent it, name the standby's slot in synchronized_standby_slots"
    )
