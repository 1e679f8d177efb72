"""`generated/` is up to date with `spec/`, and `python -m codegen` updates it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from codegen import files
from codegen.load import load
from codegen.render import KERNEL, render
from tests.codegen.spec_copy import ROOT, Run, SpecCopy


def _state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return modification time and content of all files below a folder, by path."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    folder = tmp_path / "generated"
    shutil.copytree(ROOT / "generated", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_generated_files_are_up_to_date() -> None:
    expected: dict[str, list[str]] = {"stale": [], "missing": [], "orphaned": []}
    actual = files.compare(ROOT / "generated", render(load(ROOT / "spec")))
    assert actual == expected, "run `python -m codegen`"


def test_check_prints_nothing_if_all_files_are_up_to_date(run: Run) -> None:
    assert run("--check", "--spec", ROOT / "spec", "--out", ROOT / "generated") == (0, "", "")


def test_check_lists_stale_missing_and_orphaned_files(
    run: Run, generated: Path, whole_spec: SpecCopy
) -> None:
    with (generated / "logicalrep/v2.py").open("a") as file:
        file.write("# edited\n")
    (generated / "reference/v2.md").unlink()
    (generated / "logicalrep/v9.py").write_text("")
    whole_spec.write(whole_spec.read("released.json").rstrip("\n"), "released.json")
    before = _state(generated), _state(whole_spec.folder)
    result = run("--check", "--spec", whole_spec.folder, "--out", generated)
    assert result.code == 1
    assert result.err.splitlines() == [
        f"stale: {generated}/logicalrep/v2.py",
        f"missing: {generated}/reference/v2.md",
        f"orphaned: {generated}/logicalrep/v9.py",
        f"stale: {whole_spec.folder}/released.json",
        "run `python -m codegen`, and commit what it writes",
    ]
    assert (_state(generated), _state(whole_spec.folder)) == before


def test_generating_again_touches_no_file(run: Run, generated: Path, whole_spec: SpecCopy) -> None:
    before = _state(generated), _state(whole_spec.folder)
    assert run("--spec", whole_spec.folder, "--out", generated) == (0, "", "")
    assert (_state(generated), _state(whole_spec.folder)) == before


def test_generating_updates_restores_and_removes_files(
    run: Run, generated: Path, whole_spec: SpecCopy
) -> None:
    text = (generated / "logicalrep/v2.py").read_text()
    (generated / "logicalrep/v2.py").write_text("")
    (generated / "reference/v2.md").unlink()
    (generated / "logicalrep/v9.py").write_text(text)
    (generated / "logicalrep/.v2.py.draft").write_text("half a fi")
    result = run("--spec", whole_spec.folder, "--out", generated)
    assert (result.code, result.err) == (0, "")
    assert sorted(result.out.splitlines()) == [
        "removed logicalrep/.v2.py.draft",
        "removed logicalrep/v9.py",
        "wrote logicalrep/v2.py",
        "wrote reference/v2.md",
    ]
    assert {name: data for name, (_, data) in _state(generated).items()} == {
        name: data for name, (_, data) in _state(ROOT / "generated").items()
    }


def test_a_folder_with_other_files_is_refused(run: Run, tmp_path: Path, whole_spec: SpecCopy) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("ten years of work")
    result = run("--spec", whole_spec.folder, "--out", home)
    assert result.code == 1
    assert result.err == (
        f"{home}/thesis.tex: not a generated file; move it away, or generate into another folder\n"
    )
    assert [path.name for path in home.iterdir()] == ["thesis.tex"]


def test_every_generated_file_has_the_mark() -> None:
    unmarked = [name for name, text in render(load(ROOT / "spec")).items() if files.MARK not in text]
    assert unmarked == ["logicalrep/py.typed", "javascript/LICENSE"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    path = tmp_path / "v2.py"
    path.write_text("old")

    def stop(*_: object) -> None:
        raise error

    monkeypatch.setattr("os.replace", stop)
    with pytest.raises(error):
        files.write_file(path, "new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("v2.py", "old")]


def test_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "v2.py"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        files.write_file(path, "new \ud800")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("v2.py", "old")]


def test_the_generated_kernel_includes_every_hand_written_file() -> None:
    included = re.findall(r'^include "(.+)"$', (ROOT / "generated/logicalrep/_kernel.pyx").read_text(), re.M)
    assert sorted(included) == sorted(path.name for path in KERNEL.iterdir())


def test_the_digest_of_the_kernel_covers_the_hand_written_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(KERNEL, tmp_path / "kernel")
    with (tmp_path / "kernel/buffers.pxi").open("a") as file:
        file.write("# edited\n")
    monkeypatch.setattr("codegen.render.KERNEL", tmp_path / "kernel")
    stale = files.compare(ROOT / "generated", render(load(ROOT / "spec")))["stale"]
    assert stale == ["logicalrep/_kernel.pyx", "logicalrep/_protocols.py"]
