"""Timeline histories of a server's WAL, and where two histories diverge."""

from __future__ import annotations

import pytest

from logicalrep.errors import ReplicationError
from logicalrep.recorder.client.timelines import Timeline as T, check_fork, fork_lsn, parse_history

HISTORY = "1\t0/3000148\tno recovery target specified\n\n# a comment\n2\t1/0\tbefore 2026-01-01 00:00:00+00\n"


def test_a_timeline_history_file_is_parsed() -> None:
    assert parse_history(HISTORY, 3) == (T(1, 0x3000148), T(2, 1 << 32), T(3))
    for wrong in ("1\n", "one\t0/1\tx\n", "1\t0-1\tx\n"):
        with pytest.raises(ReplicationError, match="history file of timeline 3 is invalid: expected a line"):
            parse_history(wrong, 3)


@pytest.mark.parametrize(
    ("recorded", "server", "fork"),
    [
        ([T(1)], [T(1)], None),
        ([T(1)], [T(1, 50), T(2)], 50),
        ([T(1, 50), T(2)], [T(1)], 50),
        ([T(1, 50), T(2)], [T(1, 50), T(2)], None),
        ([T(1, 50), T(2)], [T(1, 60), T(2)], 50),  # both standbys of one server were promoted
        ([T(1, 50), T(2)], [T(1, 50), T(3)], 50),
        ([T(1, 50), T(2)], [T(1, 50), T(2, 80), T(3)], 80),
        ([T(5)], [T(6)], 0),
    ],
)
def test_fork_lsn_of_two_histories(recorded: list[T], server: list[T], fork: int | None) -> None:
    assert fork_lsn(recorded, server) == fork


def test_a_fork_after_the_end_of_the_recording_is_accepted() -> None:
    assert check_fork([T(1)], [T(1, 50), T(2)], 50, "r") == 50
    with pytest.raises(ReplicationError) as error:
        check_fork([T(1)], [T(1, 50), T(2)], 51, "r")
    assert str(error.value).startswith(
        "r: the recording ends at 0/33 of timeline 1, but the server is on timeline 2, which shares its WAL "
        "up to 0/32 only: "
    )
