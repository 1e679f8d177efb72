"""Run one of the example pipelines on a recording: python -m examples.pipeline.run RECORDING OUT.

This module starts `spark-pipelines` with an installed Java, or with a Java from PyPI. The output folder OUT
keeps Spark's catalog and checkpoints, so that the next run reads only new segments.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import yaml

from logicalrep.spark.session import LOG4J, LOOPBACK, launcher_environment

HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline that the arguments choose; return the exit code of `spark-pipelines`."""
    parser = argparse.ArgumentParser(description="Run the pipeline on a recording.")
    parser.add_argument("recording", type=Path, help="the folder of a recording")
    parser.add_argument("out", type=Path, help="the folder for the tables and all other output")
    parser.add_argument(
        "--merge", metavar="TABLE.KEY", help="keep a copy of this table with AUTO CDC instead"
    )
    parser.add_argument("--dry-run", action="store_true", help="only check the definitions")
    options = parser.parse_args(arguments)
    out: Path = options.out.resolve()
    (out / "conf").mkdir(parents=True, exist_ok=True)
    configuration = {"logicalrep.path": str(options.recording.resolve())}
    if options.merge:
        configuration["logicalrep.table"], _, configuration["logicalrep.key"] = options.merge.rpartition(".")
    spec = make_spec(HERE / "merge" if options.merge else HERE, out, configuration)
    (out / "conf" / "spark-defaults.conf").write_text(
        "".join(f"{key} {value}\n" for key, value in settings(out).items())
    )
    (out / "conf" / "log4j2.properties").write_text(LOG4J)
    command = Path(sysconfig.get_path("scripts"), "spark-pipelines")
    return subprocess.run(
        [command, "dry-run" if options.dry_run else "run", "--spec", spec],
        env={**os.environ, **launcher_environment(), "SPARK_CONF_DIR": str(out / "conf")},
        cwd=out,
    ).returncode


def make_spec(source: Path, out: Path, configuration: dict[str, str]) -> Path:
    """Copy a pipeline to the output folder; return the path of its specification with `configuration`."""
    pipeline = out / ("merge" if "logicalrep.table" in configuration else "pipeline")
    shutil.copytree(source / "transformations", pipeline / "transformations", dirs_exist_ok=True)
    spec = yaml.safe_load((source / "spark-pipeline.yml").read_text())
    spec["storage"] = (pipeline / "state").as_uri()
    spec["configuration"] = configuration
    path = pipeline / "spark-pipeline.yml"
    path.write_text(yaml.safe_dump(spec))
    return path


def settings(out: Path) -> dict[str, str]:
    """Return the Spark settings that keep Spark's catalog and the tables in the output folder."""
    catalog = out / "catalog"
    return {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.driver.extraJavaOptions": f'-Dderby.system.home="{catalog}"',
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{catalog}/metastore;create=true",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(out / "tables"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


if __name__ == "__main__":
    sys.exit(main())
