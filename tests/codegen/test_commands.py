"""`python -m codegen new-message`, and errors as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from codegen.load import load
from tests.codegen.spec_copy import Run, SpecCopy
from tests.versions import RELEASED


def test_a_new_message_is_accepted_and_has_what_is_free(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    before, next_ = load(spec.folder), RELEASED[-1] + 1
    for name in ("TickOfClock", "TickOfClock2", "Tock"):
        result = run("new-message", name, "--spec", spec.folder)
        line = spec.read().splitlines().index(f"  {name}:") + 1
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith(f"{spec.folder}/pgoutput.yaml:{line}: wrote {name}: ")
    after = load(spec.folder)
    added = [one for name, one in after.protocols["pgoutput"].messages.items() if name.startswith("T")][-3:]
    assert [one.title for one in added] == ["Tick Of Clock", "Tick Of Clock2", "Tock"]
    assert {one.versions for one in added} == {f"{next_}+"}
    tags = [one.tag for one in after.protocols["pgoutput"].messages.values()]
    assert len(tags) == len({*tags}) == len(before.protocols["pgoutput"].messages) + 3
    assert next_ in after.versions
    assert run("--spec", spec.folder, "--out", tmp_path / "out").code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["Begin"], "`Begin` is taken: choose another name"),
        (["stream_start"], "`stream_start` is taken"),
        (["tick"], "`tick` is no name of a message: write CamelCase"),
        (
            ["Tick", "--version", str(RELEASED[0])],
            f"version {RELEASED[0]} is released or gone: give `--version",
        ),
    ],
)
def test_a_new_message_is_refused(run: Run, spec: SpecCopy, arguments: list[str], text: str) -> None:
    before = spec.read()
    result = run("new-message", *arguments, "--spec", spec.folder)
    assert (result.code, spec.read()) == (1, before)
    assert text in result.err


def test_an_error_is_told_as_json(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    spec.replace("    role: open_block\n", "    role: open_blok\n")
    result = run("--json", "--spec", spec.folder, "--out", tmp_path / "out")
    assert (result.code, result.err) == (1, "")
    line = spec.read().splitlines().index("    role: open_blok") + 1
    error = json.loads(result.out)
    assert error.pop("error").startswith(
        "StreamStart: `role`: unknown value `open_blok`; the values are begin,"
    )
    assert error == {
        "file": f"{spec.folder}/pgoutput.yaml",
        "line": line,
        "column": 11,
        "value": "open_blok",
        "remedy": "did you mean `open_block`?; a message that changes no row: `payload`",
    }
