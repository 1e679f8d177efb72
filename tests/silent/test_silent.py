"""Replicas have the right rows after DDL that gives existing rows other values without sending them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recorder.lab import Lab
from tests.silent.cases import CASES
from tests.silent.field import Field


def test_all(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgoutput.recorder.catalogs.watch._PAUSE_FACTOR", 1)
    wrong = Field(lab, tmp_path / "target", CASES).run()
    assert not wrong, "\n".join(wrong)
