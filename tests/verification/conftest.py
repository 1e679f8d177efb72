"""Fixtures: a test database whose tables are recorded and replicated while it is compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logicalrep.recorder import Connected
from tests.recorder.conftest import server
from tests.recorder.lab import Lab
from tests.server import Server
from tests.verification.replica import Replica

__all__ = ["server"]


@pytest.fixture
def lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(server, tmp_path) as lab:
        lab.run("CREATE PUBLICATION p FOR ALL TABLES", "CREATE TABLE tick (n int)")
        yield lab


@pytest.fixture
def replica(lab: Lab, tmp_path: Path) -> Iterator[Replica]:
    """A replica of the test database, which a recorder in a thread records."""
    with lab.recording() as recording:
        recording.wait(Connected)
        yield Replica(lab, tmp_path / "lake")
