"""Fixtures for tests of replicas: one server for all tests, and a new database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from logicalrep.targets import registry
from tests.recorder.conftest import lab, moto, proxy, server
from tests.targets.formats import FORMATS, Format

__all__ = ["lab", "moto", "proxy", "server"]


ICEBERG: Final = ("test_live", "test_lookup", "test_remarks", "test_replicate")
"""Modules whose tests `make test` runs with Iceberg tables too; `make nightly` runs all with both formats."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use `any_format` with Delta and Iceberg tables, or with Delta tables if marked so."""
    if "any_format" in metafunc.fixturenames:
        is_wide = metafunc.module.__name__.rpartition(".")[2] not in ICEBERG
        iceberg = pytest.param("iceberg", marks=[pytest.mark.nightly] if is_wide else [])
        is_delta = metafunc.definition.get_closest_marker("delta") is not None
        metafunc.parametrize("any_format", ["delta"] if is_delta else ["delta", iceberg], indirect=True)


@pytest.fixture(scope="module")
def any_format(request: pytest.FixtureRequest) -> Iterator[Format]:
    """Make all new targets of a test use a table format; return the format's name."""
    made = FORMATS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "format_of", lambda target: made.format)
        yield made
