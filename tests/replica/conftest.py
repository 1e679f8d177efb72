"""Fixtures for tests of replicas: one server for all tests, and a new database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgoutput.targets import registry
from tests.recorder.conftest import lab, moto, proxy, server
from tests.targets.formats import FORMATS, Format

__all__ = ["lab", "moto", "proxy", "server"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use `any_format` with Delta and Iceberg tables, or with Delta tables if marked so."""
    if "any_format" in metafunc.fixturenames:
        names = ["delta"] if metafunc.definition.get_closest_marker("delta") else ["delta", "iceberg"]
        metafunc.parametrize("any_format", names, indirect=True)


@pytest.fixture(scope="module")
def any_format(request: pytest.FixtureRequest) -> Iterator[Format]:
    """Give all tables of a test a format; return it."""
    made = FORMATS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "format_of", lambda target: made.format)
        yield made
