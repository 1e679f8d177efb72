"""A server for all tests of a run, and a database of its own for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.lab import Lab
from tests.server import WHEEL_VERSION, Server

VERSION = int(os.environ.get("PGOUTPUT_TEST_VERSION", WHEEL_VERSION))
"""The major version that is tested."""


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server(VERSION, wal_sender_timeout="30s") as server:
        yield server


@pytest.fixture
def lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(server, tmp_path) as lab:
        yield lab
