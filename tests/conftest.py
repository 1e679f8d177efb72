"""What all tests share."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

from pgoutput.cli import main

# The same examples each time, so that a run means the same everywhere; --hypothesis-profile=explore looks
# for others. A slow machine is not a failure.
settings.register_profile("pgoutput", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("pgoutput")

Run = Callable[..., SimpleNamespace]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run the command line in this process."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["pgoutput", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return SimpleNamespace(code=code, out=out.decode(), err=err.decode())

    return run
