"""examples/replicate.py applies a recording in the executors of a cluster, started by spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from logicalrep.recording import record_capture_file
from logicalrep.spark.session import launcher_environment
from tests.replica.tables import different_tables
from tests.spark.cluster import Cluster
from tests.truth import CAPTURES, true_tables

ROOT = Path(__file__).parents[2]
PATIENCE = 300


@pytest.mark.spark
@pytest.mark.nightly
def test_a_program_for_spark_submit(tmp_path: Path) -> None:
    """The second run applies the segments that the first one did not have."""
    recorded, recording, target = tmp_path / "all", tmp_path / "recording", tmp_path / "lake"
    record_capture_file(CAPTURES / "pg18_p4_par_2pc.jsonl.gz", recorded, segment_bytes=20_000)
    recording.mkdir()
    segments = sorted(recorded.iterdir())
    with Cluster(tmp_path, workers=2) as cluster:
        for paths in (segments[:3], segments[3:]):
            for path in paths:
                path.rename(recording / path.name)
            done = subprocess.run(
                [
                    Path(sys.executable).with_name("spark-submit"),
                    *("--master", cluster.url, "--conf", "spark.sql.shuffle.partitions=2"),
                    *(ROOT / "examples/replicate.py", recording, target),
                ],
                capture_output=True,
                text=True,
                env=os.environ | launcher_environment(),
                timeout=PATIENCE,
            )
            assert done.returncode == 0, done.stderr
    assert f"app.tr_a: {target}/app.tr_a" in done.stdout.splitlines()
    assert different_tables(target, list(true_tables("pg18"))) == []
