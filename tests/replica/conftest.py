"""Fixtures for tests of replicas: one server for all tests, and a new database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recorder.lab import Lab
from tests.server import VERSION, Server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with Server(VERSION) as server:
        yield server


@pytest.fixture
def lab(postgres: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(postgres, tmp_path) as lab:
        yield lab
