"""Small crash tests of table snapshots and a replica; `make replica` runs a large crash test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.replication import Engine, replicate

pytestmark = pytest.mark.slow

SPARK = [pytest.mark.spark, pytest.mark.nightly]


@pytest.mark.parametrize(
    ("engine", "seed", "seconds", "pause"),
    [
        ("direct", 1, 0, 0.1),  # each action once
        pytest.param("direct", 1, 12, 0, marks=pytest.mark.nightly),
        pytest.param("mixed", 13, 12, 0, marks=SPARK),  # Spark is killed first, then the run without Spark
        pytest.param("spark", 5, 12, 0, marks=SPARK),
    ],
)
def test_a_replica_equals_its_source_after_kills(
    tmp_path: Path, engine: Engine, seed: int, seconds: float, pause: float
) -> None:
    """Recorder, replica and server are killed, and tables join and leave the publication."""
    outcome = replicate(tmp_path, tables=20, seconds=seconds, seed=seed, engine=engine, pause=pause)
    assert outcome.different == ()
