"""A small crash test of table snapshots, with a replica that is kept without Spark; see `make replica`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.replication import replicate


@pytest.mark.slow
def test_tables_that_join_and_leave_the_publication_equal_their_source(tmp_path: Path) -> None:
    outcome = replicate(tmp_path, tables=20, seconds=15, seed=1, engine="direct")
    assert outcome.different == ()
