"""Recordings that several tests read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.recording import recordings

Recorded = Callable[[str, int], Path]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return a function that records a capture, with a new segment after each `cut` messages.

    Tests share the recordings, so they must not modify them.
    """

    @cache
    def recorded(name: str, cut: int) -> Path:
        folder = tmp_path_factory.mktemp("recorded")
        recordings.write(folder, recordings.source(name), recordings.sent(name), cut)
        return folder

    return recorded
