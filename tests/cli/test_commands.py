"""The commands decode, encode, inspect and spec work; bad input gives a one-line error and exit code 2."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from logicalrep import _protocols, messages, v4
from logicalrep.capturefile import encode_record
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.messages import make_column, make_relation
from tests.truth import CAPTURES
from tests.versions import KNOWN, OLDEST, needs_version

HEADER = b'{"proto_version":%d,"options":{}}\n' % OLDEST
BEGIN = b'{"data":"420000000007992998000303c1d4b152ab000009f5"}\n'
RELATION = (
    b'{"data":"52000050d761707000745f646566006400030169640000000017ffffffff00610000000019ffffffff'
    b'00620000000017ffffffff"}\n'
)
INSERT = b'{"data":"49000050d74e00037400000001316e75"}\n'
TRUNCATED = b'{"data":"49000050d74e0003740000000a31"}\n'

Run = Callable[..., SimpleNamespace]
ESCAPE = "\x1b[31m\n\u202e"
"""Text that would control a terminal: an escape sequence, a line feed and a right-to-left override."""


@pytest.fixture
def capture(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes lines to a capture file and returns the file's path."""

    def write(*lines: bytes) -> Path:
        path = tmp_path / "capture.jsonl"
        path.write_bytes(b"".join(lines))
        return path

    return write


def records(text: str) -> list[dict[str, str]]:
    """Return each record of a capture file, with only its fields `data`, `copydata` and `sent`."""
    lines = [json.loads(line) for line in text.splitlines()[1:]]
    return [{k: v for k, v in line.items() if k in ("data", "copydata", "sent")} for line in lines]


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_decode_then_encode_gives_the_same_bytes(run: Run, name: str) -> None:
    path = corpus.path(name)
    text = gzip.decompress(path.read_bytes()).decode()
    header = json.loads(text.splitlines()[0])
    options = ["--proto", header["proto_version"], "--streaming", header["options"].get("streaming", "off")]
    decoded = run("decode", path)
    assert (decoded.code, len(decoded.out.splitlines())) == (0, len(records(text)))
    encoded = run("encode", "-", *options, stdin=decoded.out.encode())
    assert encoded.code == 0
    assert records(encoded.out) == records(text)


def test_decode_keeps_the_forms_of_a_cell_apart(run: Run, capture: Callable[..., Path]) -> None:
    cells = b'{"data":"49000050d74e0005 6e 75 7400000001 78 6200000002 00ff 7400000001 ff"}\n'
    done = run("decode", capture(HEADER, BEGIN, RELATION, cells))
    assert json.loads(done.out.splitlines()[2]) == {
        "type": "Insert",
        "relation_oid": 20695,
        "new": [None, {"unchanged": True}, "x", {"binary": "00ff"}, {"text_hex": "ff"}],
    }


def test_decode_table_names_columns(run: Run, capture: Callable[..., Path]) -> None:
    done = run("decode", "--table", capture(HEADER, BEGIN, RELATION, INSERT))
    assert done.out.splitlines()[2].split() == [
        "4",
        "Insert",
        "app.t_def",
        "new:",
        "id='1'",
        "a=NULL",
        "b=UNCHANGED",
    ]


def test_encode_reports_messages_out_of_place(run: Run) -> None:
    abort = b'{"type":"StreamAbort","xid":1,"subxid":1,"abort_lsn":"0/1","abort_time":0}\n'
    done = run("encode", stdin=abort)
    assert done.code == 2
    assert done.err.startswith("logicalrep: -:1: the message cannot follow the messages before it: ")
    assert run("encode", "--streaming", "parallel", stdin=abort).code == 0
    outside = run("encode", stdin=b'{"type":"Insert","xid":7,"relation_oid":1,"new":[]}\n')
    assert outside.code == 2


@needs_version(1)
def test_encode_reports_messages_of_later_versions(run: Run) -> None:
    done = run("encode", "--proto", "1", stdin=b'{"type":"StreamStop"}\n')
    text = "protocol version 1 has no message StreamStop: it came with version 2"
    assert done.err == f"logicalrep: -:1: {text}\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense", "not JSON"),
        (b"[" * 2000 + b"]" * 2000, "not JSON"),
        (b"5", "expected an object with a type"),
        (b'{"type":"Nonsense"}', "no message has the type 'Nonsense'"),
        (b'{"type":"Begin"}', "final_lsn"),
        (b'{"type":"Begin","final_lsn":"x","commit_time":0,"xid":1}', "Begin.final_lsn: 'x' is not an LSN"),
        (
            b'{"type":"Insert","relation_oid":1,"new":[{"binary":"x"}]}',
            "Insert.new[0]: binary: expected hex, found 'x'",
        ),
        (b'{"type":"XLogData","data":{"type":"Nonsense"}}', "no message has the type 'Nonsense'"),
        (b"\xff", "not JSON"),
    ],
)
def test_encode_refuses_lines_that_are_not_messages(run: Run, line: bytes, words: str) -> None:
    done = run("encode", stdin=line + b"\n")
    assert done.code == 2
    assert done.err.startswith("logicalrep: -:1: ")
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", [["decode"], ["decode", "--table"], ["inspect"]])
@pytest.mark.parametrize(
    ("lines", "where", "words"),
    [
        ([], 1, "no header, the file is empty"),
        ([BEGIN], 1, "no header"),
        ([b'{"proto_version":99}\n'], 1, f"proto_version 99 is not known; the versions are {KNOWN}"),
        ([HEADER, b'{"data":"xyz"}\n'], 2, "data is not hex"),
        (
            [HEADER, BEGIN, TRUNCATED],
            3,
            "Insert.new[0] at byte 13: expected 10 bytes of text, found 1",
        ),
        ([HEADER, BEGIN, BEGIN[:30]], 3, "expected a JSON object"),
    ],
    ids=["empty", "no header", "version", "not hex", "truncated message", "ends mid-way"],
)
def test_bad_files_are_one_line_and_exit_code_2(
    run: Run, capture: Callable[..., Path], command: list[str], lines: list[bytes], where: int, words: str
) -> None:
    path = capture(*lines)
    done = run(*command, path)
    assert done.code == 2
    assert done.err.startswith(f"logicalrep: {path}:{where}: ")
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", ["decode", "inspect"])
def test_skip_bad_goes_on_and_counts(run: Run, capture: Callable[..., Path], command: str) -> None:
    path = capture(HEADER, BEGIN, b'{"data":"xyz"}\n', TRUNCATED, RELATION, b"nonsense\n", INSERT)
    done = run(command, "--skip-bad", path)
    assert done.code == 0
    assert "Insert" in done.out
    assert done.err.splitlines()[-1] == f"logicalrep: {path}: 3 skipped"


def test_a_truncated_gzip_file_is_an_error_and_can_be_read_up_to_its_end(run: Run, tmp_path: Path) -> None:
    whole = (CAPTURES / "pg18_p1.jsonl.gz").read_bytes()
    path = tmp_path / "broken.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    done = run("decode", path)
    assert done.code == 2
    assert "the file is cut off or damaged here" in done.err
    assert run("decode", "--skip-bad", path).out == done.out != ""


def test_inspect_shows_every_byte_once(run: Run) -> None:
    path = CAPTURES / "pg18_ws_p2_stream_msg.jsonl.gz"
    wanted = [next(iter(record.values())) for record in records(gzip.decompress(path.read_bytes()).decode())]
    done = run("inspect", path)
    shown: list[str] = []
    for line in done.out.splitlines():
        if line.startswith("line "):
            shown.append("")
        elif line:
            shown[-1] += line[10:34].replace(" ", "")
    assert shown == wanted


def test_inspect_names_field_value_and_meaning(run: Run, capture: Callable[..., Path]) -> None:
    done = run("inspect", capture(HEADER, BEGIN))
    wanted = (
        "000001 00 00 00 00 07 99 29 98 final_lsn 0/7992998 Int64 (XLogRecPtr) "
        "The LSN of the commit record; equals commit_lsn of the Commit."
    )
    assert done.out.splitlines()[2].split() == wanted.split()


def test_inspect_shows_a_bad_message_up_to_the_error(run: Run, capture: Callable[..., Path]) -> None:
    done = run("inspect", capture(HEADER, TRUNCATED))
    assert done.code == 2
    lines = done.out.splitlines()
    assert "new[0].length" in lines[-3]
    assert lines[-2].split() == ["00000d", "31"]
    assert lines[-1].strip() == "Insert.new[0] at byte 13: expected 10 bytes of text, found 1"


@pytest.mark.parametrize("version", _protocols.VERSIONS)
def test_spec_prints_every_message_of_the_version(run: Run, version: int) -> None:
    told = json.loads(run("spec", "--proto", str(version), "--json").out)
    names = [message.name for message in _protocols.VERSIONS[version].messages]
    assert told["protocol"] == version
    assert [message["name"] for message in told["messages"]] == names
    for message in told["messages"]:
        for field in message["fields"]:
            assert {"name", "wire", "type", "since", "when", "doc"} <= field.keys()
    text = run("spec", "--proto", str(version)).out
    assert all(f"Byte1('{message['tag']}')" in text for message in told["messages"])


def test_spec_of_stream_abort(run: Run) -> None:
    told = json.loads(run("spec", "--proto", "4", "--json").out)
    (abort,) = (message for message in told["messages"] if message["name"] == "StreamAbort")
    assert [(f["name"], f["wire"], f["since"], f["when"]) for f in abort["fields"]] == [
        ("xid", "Int32 (TransactionId)", 2, None),
        ("subxid", "Int32 (TransactionId)", 2, None),
        ("abort_lsn", "Int64 (XLogRecPtr)", 4, "streaming = parallel"),
        ("abort_time", "Int64 (TimestampTz)", 4, "streaming = parallel"),
    ]


def test_a_closed_pipe_prints_no_traceback() -> None:
    command = f"{sys.executable} -m logicalrep.cli decode {CAPTURES / 'pg18_p1.jsonl.gz'} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert json.loads(done.stdout)["type"] == "Begin"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "arguments", [["decode", "missing.jsonl"], ["spec", "--proto", "9"], ["decode"], ["nonsense"]]
)
def test_misuse_is_exit_code_2(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", [["decode", "--table"], ["inspect"]])
def test_a_stream_cannot_steer_the_terminal(
    run: Run, capture: Callable[..., Path], command: list[str]
) -> None:
    relation = make_relation(make_column(ESCAPE), namespace=ESCAPE, name=ESCAPE)
    drawn = [
        messages.Origin(origin_lsn=1, name=ESCAPE),
        relation,
        messages.Insert(relation_oid=1, new=(ESCAPE,)),
    ]
    path = capture(HEADER, *(encode_record("data", v4.encode(message)) for message in drawn))
    shown = run(*command, path).out
    assert "\\x1b[31m\\n\\u202e" in shown
    assert all(line.isprintable() for line in shown.splitlines())


def test_an_error_cannot_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    done = run("encode", stdin=json.dumps({"type": "Begin", ESCAPE: 1}).encode())
    assert done.err.startswith("logicalrep: -:1: Begin.\\x1b[31m\\n\\u202e: ")
    assert run("decode", tmp_path / "a\nb").err.count("\n") == 1


def test_output_works_in_a_locale_that_lacks_characters(tmp_path: Path) -> None:
    for command in ("decode --table", "inspect", "spec"):
        path = "" if command == "spec" else str(CAPTURES / "pg18_p1.jsonl.gz")
        done = subprocess.run(
            [sys.executable, "-m", "logicalrep.cli", *command.split(), *path.split()],
            env={"PYTHONIOENCODING": "ascii", "HOME": str(tmp_path)},
            capture_output=True,
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "logicalrep.cli", "decode", CAPTURES / "pg18_p1.jsonl.gz"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 3
    assert "No space left on device" in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_decode_reads_a_pipe() -> None:
    for read in ("cat", "zcat"):
        path = CAPTURES / "pg18_p1.jsonl.gz"
        command = f"{read} {path} | {sys.executable} -m logicalrep.cli decode - | wc -l"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        lines = gzip.decompress(path.read_bytes()).count(b"\n")
        assert (int(done.stdout), done.stderr) == (lines - 1, "")
