"""After random DDL, every table of a replica that differs from its source is named."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.crash.ddl import run_program
from tests.server import VERSION


@pytest.mark.parametrize("seed", [50, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(8))])
def test_every_table_that_differs_is_named(tmp_path: Path, seed: int) -> None:
    outcome = run_program(Random(seed), tmp_path, VERSION, rounds=2)
    assert outcome.compared
    assert outcome.silent == []
