"""Fixtures: copies of the spec that tests may change, and the command `python -m codegen`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from codegen.__main__ import main
from tests.codegen import derived
from tests.codegen.spec_copy import ROOT, Result, Run, SpecCopy


@pytest.fixture
def whole_spec(tmp_path: Path) -> SpecCopy:
    """A copy of the whole spec."""
    folder = tmp_path / "spec"
    shutil.copytree(ROOT / "spec", folder)
    return SpecCopy(folder)


@pytest.fixture
def spec(whole_spec: SpecCopy) -> SpecCopy:
    """A copy of the spec that has few built-in types, so that the generator runs faster."""
    text = whole_spec.read("types.yaml")
    whole_spec.write(text[: text.index("\n  char:") + 1], "types.yaml")
    return whole_spec


@pytest.fixture(scope="session")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files generated from the spec `derived.five`."""
    return derived.generate(tmp_path_factory.mktemp("five"), derived.five)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs `python -m codegen` in this process and returns the exit code and output."""

    def run(*arguments: str | Path) -> Result:
        monkeypatch.setattr("sys.argv", ["codegen", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        output = capsys.readouterr()
        code = exit_.value.code
        return Result(code if isinstance(code, int) else 0, output.out, output.err)

    return run
