"""Fixtures: copies of the spec that tests may change, and the command `python -m codegen`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from codegen.__main__ import main
from codegen.evolution import LOCK, lock_text
from codegen.files import write
from codegen.load import load
from codegen.render import render
from tests.codegen.spec_copy import ROOT, Result, Run, SpecCopy
from tests.codegen.unreleased import add_types, add_unreleased_version


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
def unreleased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files generated from a spec with protocol version 5 of `tests.codegen.unreleased`."""
    folder = tmp_path_factory.mktemp("unreleased")
    shutil.copytree(ROOT / "spec", folder / "spec")
    add_unreleased_version(SpecCopy(folder / "spec"))
    add_types(SpecCopy(folder / "spec"))
    spec = load(folder / "spec")
    assert lock_text(spec) == (ROOT / "spec" / LOCK).read_text(encoding="utf-8")
    write(folder / "generated", render(spec))
    return folder / "generated"


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
