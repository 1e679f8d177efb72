"""Java options that make the many short-lived Spark processes of the tests start fast.

`python -m tests.java FILE` writes a class data sharing archive of the classes that Spark loads. Java maps the
archive instead of parsing and verifying some ten thousand classes, which is most of the work of a short run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix, "spark.jsa")
"""The class archive that `make setup` writes. Java ignores an archive of another Java or class path."""

QUIET: Final = ["-Xlog:disable", "-Xlog:all=error:stderr"]
"""Options that suppress Java's warnings about an archive that does not fit. Tests compare standard error."""

# The optimizing compiler does not pay for itself within a test, and takes the cores from other tests.
FAST: Final = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", *QUIET]


def set_options() -> None:
    """Set Java's options in the environment, for Spark in this process and in its child processes."""
    archive = [f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.exists() else []
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join([*FAST, *archive]))


def write_archive(path: Path) -> None:
    """Write an archive of the classes that a session, a data source and a streaming query load.

    Raises:
        CalledProcessError: Spark does not start.
        FileNotFoundError: This Java cannot write archives.
    """
    temporary = path.with_suffix(".tmp")
    options = " ".join([*FAST, f"-XX:ArchiveClassesAtExit={temporary}"])
    environment = os.environ | {"SPARK_SUBMIT_OPTS": options}
    command = [sys.executable, "-m", "tests.java"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    temporary.replace(path)


def _use_spark(folder: Path) -> None:
    from logicalrep.recording import record_capture_file
    from logicalrep.spark import local_session
    from tests.truth import CAPTURES

    recording = str(folder / "recording")
    record_capture_file(CAPTURES / "pg18_p1.jsonl.gz", recording)
    session = local_session("archive", cores=2)
    rows = session.createDataFrame([(1, "a"), (2, "b")], "id int, name string")
    rows.write.parquet(str(folder / "rows"))
    session.read.parquet(str(folder / "rows")).createOrReplaceTempView("rows")
    session.sql(
        "SELECT name, count(*) FROM rows JOIN rows USING (id, name) GROUP BY name ORDER BY name"
    ).show()
    session.read.format("pgoutput").load(recording).groupBy("operation").count().collect()
    changes = session.readStream.format("pgoutput").load(recording).writeStream
    changes = changes.foreachBatch(lambda batch, number: batch.show())
    changes.option("checkpointLocation", str(folder / "checkpoint"))
    changes.trigger(availableNow=True).start().awaitTermination()
    session.stop()


if __name__ == "__main__":
    if arguments := sys.argv[1:]:
        try:
            write_archive(Path(arguments[0]))
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"no archive of Spark's classes, so that the tests' Spark starts slower: {error}")
    else:
        with tempfile.TemporaryDirectory() as folder:
            _use_spark(Path(folder))
