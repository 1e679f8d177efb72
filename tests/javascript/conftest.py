"""The node process that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.javascript.peer import Peer


@pytest.fixture(scope="session")
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer
