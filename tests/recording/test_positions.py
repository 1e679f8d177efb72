"""Positions may have gaps between sessions, as several sessions can be written concurrently."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from logicalrep.recording import Metadata, Source, find_inconsistencies

SOURCE = Source(
    recording="7b0c3e0e-0000-4000-8000-000000000001",
    system_identifier="1",
    server_version="18.0",
    database="d",
    slot="s",
    publications=("p",),
    proto_version=4,
)
FIRST = Metadata(
    kind="stream",
    number=1,
    session=1,
    source=SOURCE,
    first_position=0,
    messages=10,
    keyframe=0,
    start_lsn=0,
    end_lsn=64,
)
SECOND = msgspec.structs.replace(FIRST, number=2, session=2, first_position=10, start_lsn=64, end_lsn=128)


@pytest.mark.parametrize(
    ("changes", "gaps"),
    [
        ({}, []),
        ({"first_position": 1 << 40}, []),
        ({"first_position": 9}, ["between segments 1 and 2, expected position 10, found 9"]),
        (
            {"first_position": 1 << 40, "session": 1},
            [f"between segments 1 and 2, expected position 10, found {1 << 40}"],
        ),
        (
            {"first_position": 20, "number": 3},
            ["segment 2 is missing", "between segments 1 and 3, expected position 10, found 20"],
        ),
    ],
)
def test_positions_may_skip_only_between_sessions(changes: dict[str, Any], gaps: list[str]) -> None:
    assert list(find_inconsistencies([FIRST, msgspec.structs.replace(SECOND, **changes)])) == gaps
