"""Rows are found by their keys, whatever these are and whoever wrote the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replica.simulator import Server
from tests.replica.test_replica import follows, table_of


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("timestamptz", ["2020-01-01 00:00:00.123456+00", "2020-01-01 00:00:00.123999+00"]),
        ("timestamp", ["2020-01-01 00:00:00.123456", "2020-01-01 00:00:00.123999"]),
        ("float8", ["NaN", "1", "-0"]),
        ("text", ["a" * 100, "a" * 100 + "b"]),
        ("date", ["2020-01-01", "infinity"]),
    ],
)
def test_rows_are_found_in_files_of_others(type_: str, values: list[str], tmp_path: Path) -> None:
    """Whose statistics are not exact."""
    for at in range(len(values)):
        target = tmp_path / str(at)
        server = Server(1, "t", {"k": type_, "v": "text"}, keys=1)
        for batch, value in enumerate(values):
            server.insert(value, "old")
            assert follows(target, server, batch)
        assert table_of(target).optimize.compact()["numFilesRemoved"] == len(values)
        server.update(at, v="new")
        assert follows(target, server, len(values))
