"""`generated/` is what `spec/` says, and the command keeps it so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from codegen import files
from codegen.load import load
from codegen.render import render
from tests.codegen.spec_copy import ROOT, Run, SpecCopy


def _state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below, with its time and content."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    folder = tmp_path / "generated"
    shutil.copytree(ROOT / "generated", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_generated_is_what_the_spec_says() -> None:
    expected: dict[str, list[str]] = {"stale": [], "missing": [], "orphaned": []}
    actual = files.compare(ROOT / "generated", render(load(ROOT / "spec")))
    assert actual == expected, "run `python -m codegen`"


def test_check_says_nothing_when_all_is_fresh(run: Run) -> None:
    assert run("--check", "--spec", ROOT / "spec", "--out", ROOT / "generated") == (0, "", "")


def test_check_lists_what_is_not_fresh(run: Run, generated: Path, whole: SpecCopy) -> None:
    with (generated / "pgoutput/v1.py").open("a") as file:
        file.write("# edited\n")
    (generated / "reference/v2.md").unlink()
    (generated / "pgoutput/v9.py").write_text("")
    whole.write("{}", "released.json")
    before = _state(generated), _state(whole.folder)
    done = run("--check", "--spec", whole.folder, "--out", generated)
    assert done.code == 1
    assert done.err.splitlines() == [
        f"stale: {generated}/pgoutput/v1.py",
        f"missing: {generated}/reference/v2.md",
        f"orphaned: {generated}/pgoutput/v9.py",
        f"stale: {whole.folder}/released.json",
        "run `python -m codegen`, and commit what it writes",
    ]
    assert (_state(generated), _state(whole.folder)) == before


def test_generating_twice_touches_nothing(run: Run, generated: Path, whole: SpecCopy) -> None:
    before = _state(generated), _state(whole.folder)
    assert run("--spec", whole.folder, "--out", generated) == (0, "", "")
    assert (_state(generated), _state(whole.folder)) == before


def test_generating_mends_what_is_not_fresh(run: Run, generated: Path, whole: SpecCopy) -> None:
    text = (generated / "pgoutput/v1.py").read_text()
    (generated / "pgoutput/v1.py").write_text("")
    (generated / "reference/v2.md").unlink()
    (generated / "pgoutput/v9.py").write_text(text)
    (generated / "pgoutput/.v1.py.draft").write_text("half a fi")
    done = run("--spec", whole.folder, "--out", generated)
    assert (done.code, done.err) == (0, "")
    assert sorted(done.out.splitlines()) == [
        "removed pgoutput/.v1.py.draft",
        "removed pgoutput/v9.py",
        "wrote pgoutput/v1.py",
        "wrote reference/v2.md",
    ]
    assert {name: data for name, (_, data) in _state(generated).items()} == {
        name: data for name, (_, data) in _state(ROOT / "generated").items()
    }


def test_a_folder_with_files_of_others_is_left_alone(run: Run, tmp_path: Path, whole: SpecCopy) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("ten years of work")
    done = run("--spec", whole.folder, "--out", home)
    assert done.code == 1
    assert done.err == (
        f"{home}/thesis.tex: not a generated file; move it away, or generate into another folder\n"
    )
    assert [path.name for path in home.iterdir()] == ["thesis.tex"]


def test_every_generated_file_says_so() -> None:
    unmarked = [name for name, text in render(load(ROOT / "spec")).items() if files.MARK not in text]
    assert unmarked == ["pgoutput/py.typed"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    path = tmp_path / "v1.py"
    path.write_text("old")

    def stop(*_: object) -> None:
        raise error

    monkeypatch.setattr("os.replace", stop)
    with pytest.raises(error):
        files.write_file(path, "new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("v1.py", "old")]


def test_text_that_cannot_be_written_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "v1.py"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        files.write_file(path, "new \ud800")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("v1.py", "old")]
