"""The fixture `session`: Spark in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest
from pyspark.sql import SparkSession

from logicalrep.spark import local_session
from tests.recorder.conftest import lab, server

__all__ = ["lab", "server"]

KIND: Final = os.environ.get("LOGICALREP_TEST_SESSION", "classic")
"""Kind of Spark session that the tests use, a key of `SESSIONS`."""

SESSIONS: Final = {
    "classic": {},
    "connect": {"spark.api.mode": "connect"},
    "local-cluster": {"spark.master": "local-cluster[2,1,1024]"},
}


@pytest.fixture(scope="session")
def stopped_spark() -> Iterator[None]:
    """Stop Spark after the last test."""
    yield
    if running := SparkSession.getActiveSession():
        running.stop()


@pytest.fixture(scope="module")
def session(stopped_spark: None) -> SparkSession:
    """Return a session of this module in the Spark that the modules of a worker share.

    The modules share Java, the context and Spark's Python workers, whose start takes longer than most tests.
    """
    session = local_session("logicalrep tests", cores=2, config=SESSIONS[KIND])
    assert ("connect" in type(session).__module__) == (KIND == "connect")
    return session if KIND == "connect" else session.newSession()
