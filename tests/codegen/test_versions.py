"""The YAML of a spec alone says which protocol versions there are: one is removed, and two are added."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from codegen.load import load
from codegen.model import Gate
from tests.codegen.derived import ROUND_TRIP, check_types, generate, run_python, six, without_oldest
from tests.codegen.spec_copy import ROOT, Run, SpecCopy

ALL = load(ROOT / "spec").versions
OLDEST, NEWEST = min(ALL), max(ALL)


def test_removing_the_oldest_version_needs_two_steps(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    """The YAML loses the version, and a command removes it from the lock."""
    arguments = ("--spec", spec.folder, "--out", tmp_path / "out")
    label = f"v{OLDEST}"
    lock_text = spec.read("released.json")
    result = run("remove", label, *arguments)
    line = spec.read().splitlines().index(f"  {OLDEST}:") + 1
    still = f"pgoutput.yaml:{line}: version {OLDEST} is still in `versions`: remove it here first, then"
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"{spec.folder}/{still}")

    without_oldest(spec)
    spec.write(lock_text, "released.json")
    for command in ([], ["--check"], ["--release"]):
        result = run(*command, *arguments)
        assert (result.code, result.out) == (1, "")
        assert result.err.count("\n") == 1
        assert "released-version-removed" in result.err
        assert result.err.endswith(f"run `python -m codegen remove {label}`\n")
    assert not (tmp_path / "out").exists()

    result = run("remove", label, *arguments)
    assert (result.code, result.err) == (0, "")
    assert f"wrote {spec.folder}/released.json\n" in result.out
    lock = json.loads(lock_text)
    del lock[label]
    assert json.loads(spec.read("released.json")) == lock
    assert not (tmp_path / f"out/logicalrep/{label}.py").exists()
    assert run("--check", *arguments) == (0, "", "")

    result = run("remove", label, *arguments)
    known = ", ".join(label for label in lock if label.startswith("v"))
    error = f"{spec.folder}/released.json:1: unknown version `{label}`; the versions are {known}"
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(error)


def test_a_removal_does_not_hide_a_change_of_another_version(
    run: Run, spec: SpecCopy, tmp_path: Path
) -> None:
    lock = spec.read("released.json")
    without_oldest(spec)
    spec.write(lock, "released.json")
    spec.replace("    tag: O\n", "    tag: o\n")
    result = run("remove", f"v{OLDEST}", "--spec", spec.folder, "--out", tmp_path / "out")
    assert (result.code, result.out) == (1, "")
    assert "released-tag-changed" in result.err
    assert spec.read("released.json") == lock


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files generated from a spec without the oldest version, and with two new ones."""
    return generate(tmp_path_factory.mktemp("later"), without_oldest, six)


def test_gates_are_limited_to_the_versions_of_the_spec(spec: SpecCopy) -> None:
    without_oldest(spec)
    second = OLDEST + 1
    loaded = load(spec.folder)
    assert loaded.gate(f"{OLDEST}+") == Gate(second)
    assert loaded.gate(f"{OLDEST}-{second}") == Gate(second, second)
    assert loaded.gate(f"{NEWEST}+") == Gate(NEWEST)


def test_servers_of_options_are_limited_to_the_versions_of_the_spec(spec: SpecCopy) -> None:
    without_oldest(spec)
    loaded = load(spec.folder)
    first = Gate.parse(loaded.versions[OLDEST + 1].server)
    streaming, origin = loaded.options["streaming"].values, loaded.options["origin"].values
    assert loaded.server(streaming["off"]) == first
    assert str(loaded.server(streaming["parallel"])) == streaming["parallel"].server
    assert loaded.server(origin["any"]).first >= first.first


def test_codecs_of_other_versions_decode_and_encode(later: Path) -> None:
    run_python(
        later,
        f"""
        from logicalrep import messages
        from logicalrep.stream import StreamDecoder
        from logicalrep.versions import CODECS

        assert [*CODECS] == [*range({OLDEST + 1}, {NEWEST + 3})]
        for number, codec in CODECS.items():
            if OLD < number < NEW:
                continue  # whose messages the tests do not know
            commit = (
                messages.Commit(commit_lsn=1, end_lsn=2, commit_time=3, flush_lsn=4)
                if number >= NEW
                else messages.Commit(commit_lsn=1, end_lsn=2, commit_time=3)
            )
            assert StreamDecoder(number).decode(codec.encode(commit)) == commit
        try:
            StreamDecoder({OLDEST})
        except ValueError as error:
            assert str(error).startswith("there is no protocol version {OLDEST}; there are ")
        """
        + textwrap.indent(ROUND_TRIP, " " * 8),
    )


def test_texts_name_only_versions_of_the_spec(later: Path) -> None:
    """A message of all versions is documented as one, and no text names the removed version."""
    page = (later / f"reference/v{OLDEST + 1}.md").read_text(encoding="utf-8")
    assert f"Tag `B`; protocol version {OLDEST + 1}+;" in page
    assert f"Since protocol version {OLDEST + 1}" not in page
    for path in sorted(later.rglob("*.md")):
        assert f"| {OLDEST}+ |" not in path.read_text(encoding="utf-8"), path


@pytest.mark.nightly
def test_code_of_other_versions_is_typed(later: Path) -> None:
    check_types(later)
