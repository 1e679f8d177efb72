"""The command line in unusual environments: closed streams, a width of 0, file names that are not UTF-8."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from logicalrep.recording import record_capture_file
from tests.conftest import Run
from tests.effort import mostly_nightly
from tests.truth import CAPTURES

CAPTURE = CAPTURES / "pg10_p1.jsonl.gz"
BAD = "\udcff"
"""A byte that is not valid UTF-8, as a surrogate escape in a file name."""

COMMANDS: dict[str, list[str]] = {
    "decode": ["decode", str(CAPTURE)],
    "decode --table": ["decode", "--table", str(CAPTURE)],
    "inspect": ["inspect", str(CAPTURE)],
    "check": ["check", str(CAPTURE)],
    "spec": ["spec"],
    "--help": ["--help"],
}


def command(arguments: Sequence[str], redirect: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a new process, with redirections of the shell."""
    program = ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-m", "logicalrep.cli", *arguments]
    return subprocess.run(program, env=os.environ | env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", mostly_nightly(COMMANDS, ["decode", "--help"]))
def test_closed_standard_output_is_an_error(name: str) -> None:
    done = command(COMMANDS[name], ">&-")
    assert (done.returncode, done.stderr) == (2, "logicalrep: standard output is closed\n")


@pytest.mark.parametrize("name", mostly_nightly(COMMANDS, ["decode", "--help"]))
def test_closed_standard_error_and_input_do_no_harm(name: str) -> None:
    done = command(COMMANDS[name], "<&- 2>&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == command(COMMANDS[name]).stdout


def test_an_error_without_standard_error_keeps_its_exit_code() -> None:
    assert command(["decode", "nowhere.jsonl"], "2>&-").returncode == 2
    assert command(["encode"], "<&-").returncode == 0


@pytest.mark.parametrize("name", mostly_nightly(COMMANDS, ["decode --table", "--help"]))
def test_a_terminal_width_of_0_is_ignored(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    done = run(*COMMANDS[name])
    assert done.code == 0
    assert done.out
    if name != "--help":  # Typer cuts it to the width
        monkeypatch.setenv("COLUMNS", "80")
        assert done.out == run(*COMMANDS[name]).out


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, Path]:
    """Write files whose names are not UTF-8; return the paths of "capture", "folder" and "segment"."""
    folder = tmp_path / f"recording{BAD}"
    record_capture_file(CAPTURE, tmp_path / "recording")
    (tmp_path / "recording").rename(folder)
    segment = tmp_path / f"{BAD}.parquet"
    shutil.copy(next(folder.glob("*.parquet")), segment)
    capture = tmp_path / f"capture{BAD}.jsonl.gz"
    shutil.copy(CAPTURE, capture)
    return {"capture": capture, "folder": folder, "segment": segment}


@pytest.mark.parametrize("name", ["decode", "inspect", "check"])
def test_capture_files_may_have_any_name(run: Run, odd: dict[str, Path], name: str) -> None:
    done = run(name, odd["capture"])
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *[(name, kind) for name in ("decode", "inspect", "check") for kind in ("folder", "segment")],
        ("segments", "folder"),
    ],
)
def test_segments_with_odd_names_are_one_line(run: Run, odd: dict[str, Path], name: str, kind: str) -> None:
    """Arrow cannot open a path that is not valid UTF-8; the error for such a path is one line."""
    done = run(name, odd[kind])
    path = str(odd[kind]).replace(BAD, r"\udcff")
    problem = "the path is not valid UTF-8, so Arrow cannot open it: rename the file or folder"
    wanted = f"logicalrep: {path}: {problem}\n"
    assert (done.code, done.err) == (2, wanted)


def test_serve_and_encode_and_synth_with_odd_names(run: Run, odd: dict[str, Path], tmp_path: Path) -> None:
    for arguments in (
        ("serve", "--recording", odd["folder"]),
        ("encode", tmp_path / f"nowhere{BAD}"),
        ("synth", "--out", f"{tmp_path}/new{BAD}"),
        ("synth", "--out", f"{tmp_path}/new{BAD}.jsonl"),
    ):
        done = run(*arguments)
        assert done.code == 2
        assert r"\udcff" in done.err
        assert "Traceback" not in done.err


def test_an_odd_name_inside_a_recording_is_one_line(run: Run, tmp_path: Path) -> None:
    record_capture_file(CAPTURE, tmp_path / "recording")
    (tmp_path / "recording" / f"x{BAD}").touch()
    done = run("segments", tmp_path / "recording")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert r"x\xff is not valid UTF-8: rename or remove it" in done.err
