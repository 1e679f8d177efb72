"""The fixture `session`: Spark in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pgoutput.spark import local_session
from tests.recorder.conftest import lab, server

__all__ = ["lab", "server", "session"]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    session = local_session("pgoutput tests")
    yield session
    session.stop()
