"""Small crash tests of table snapshots and a replica; `make replica` runs a large crash test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.replication import Engine, replicate

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize(
    ("engine", "seed"),
    [
        ("mixed", 13),  # Spark is killed first, then the run without Spark
        pytest.param("spark", 5, marks=pytest.mark.nightly),
        pytest.param("direct", 1, marks=pytest.mark.nightly),
    ],
)
def test_a_replica_equals_its_source_after_kills(tmp_path: Path, engine: Engine, seed: int) -> None:
    """Recorder, replica and server are killed, and tables join and leave the publication."""
    outcome = replicate(tmp_path, tables=20, seconds=12, seed=seed, engine=engine)
    assert outcome.different == ()
