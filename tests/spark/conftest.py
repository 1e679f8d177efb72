"""The fixture `session`: Spark in this process, with the data source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pgoutput.spark import PgoutputDataSource, local_session
from tests.recorder.conftest import lab, server

__all__ = ["lab", "server", "session"]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    session = local_session("pgoutput tests")
    session.dataSource.register(PgoutputDataSource)
    yield session
    session.stop()
