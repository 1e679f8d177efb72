"""A small crash test of a replica; `make replica` runs a large crash test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.replication import Engine, replicate

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("engine", ["spark", pytest.param("mixed", marks=pytest.mark.nightly)])
def test_a_replica_equals_its_source_after_kills_of_recorder_and_spark(
    tmp_path: Path, engine: Engine
) -> None:
    outcome = replicate(tmp_path, tables=20, seconds=12, seed=5, engine=engine)
    assert outcome.different == ()
