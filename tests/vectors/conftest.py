"""The vectors, and the fixture `both` of `tests/codec`."""

from __future__ import annotations

import pytest

from conformance.__main__ import CAPTURES
from logicalrep.vectors import Vector, build_vectors
from tests.codec.conftest import both

__all__ = ["both"]


@pytest.fixture(scope="session")
def vectors() -> list[Vector]:
    return list(build_vectors(CAPTURES))
