"""A copy of the spec to make mistakes in, and the generator as a command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from codegen.__main__ import main
from tests.codegen.spec_copy import ROOT, Done, Run, SpecCopy


@pytest.fixture
def whole(tmp_path: Path) -> SpecCopy:
    """The spec as it is."""
    folder = tmp_path / "spec"
    shutil.copytree(ROOT / "spec", folder)
    return SpecCopy(folder)


@pytest.fixture
def spec(whole: SpecCopy) -> SpecCopy:
    """The spec with few of its built-in types, which are many."""
    text = whole.read("types.yaml")
    whole.write(text[: text.index("\n  char:") + 1], "types.yaml")
    return whole


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `python -m codegen`."""

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr("sys.argv", ["codegen", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr()
        code = exit_.value.code
        return Done(code if isinstance(code, int) else 0, said.out, said.err)

    return run
