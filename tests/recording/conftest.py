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
    """The folder of a capture's recording, with a new segment after so many messages; to be read only."""

    @cache
    def recorded(name: str, cut: int) -> Path:
        folder = tmp_path_factory.mktemp("recorded")
        recordings.write(folder, recordings.source(name), recordings.sent(name), cut)
        return folder

    return recorded
