"""An invalid capture file gives a one-line error with the line number; `on_bad` lets reading continue."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from logicalrep import messages as m
from logicalrep.capturefile import CaptureFile, Header, encode_header, encode_record
from logicalrep.errors import RecordingError
from tests.versions import KNOWN, OLDEST, UNKNOWN

HEADER = b'{"proto_version":%d}\n' % OLDEST
BEGIN = b'{"data":"42 0000000000000001 0000000000000002 00000003"}\n'
MESSAGE = m.Begin(final_lsn=1, commit_time=2, xid=3)
NO_HEADER = "1: no header: the first line must be a JSON object with proto_version"
TRUNCATED = (
    "the file is cut off or damaged here: Compressed file ended before the end-of-stream marker was reached"
)
NO_RECORD = "2: expected a JSON object with hexadecimal text in data, copydata or sent"

INVALID_FILES = {
    "empty": (
        b"",
        "1: no header, the file is empty: the first line must be a JSON object with proto_version",
    ),
    "a record first": (BEGIN, f"{NO_HEADER} (Object missing required field `proto_version`)"),
    "options without version": (
        b'{"options":{}}\n',
        f"{NO_HEADER} (Object missing required field `proto_version`)",
    ),
    "version of the wrong type": (
        b'{"proto_version":"1"}\n',
        f"{NO_HEADER} (Expected `int`, got `str` - at `$.proto_version`)",
    ),
    "an array": (b"[]\n", f"{NO_HEADER} (Expected `object`, got `array`)"),
    "unknown version": (
        b'{"proto_version":%d}\n' % UNKNOWN,
        f"1: proto_version {UNKNOWN} is not known; the versions are {KNOWN}",
    ),
    "unknown streaming": (
        b'{"proto_version":2,"options":{"streaming":"yes"}}\n',
        "1: streaming is one of off, on, parallel, not 'yes'",
    ),
    "streaming of the wrong type": (
        b'{"proto_version":2,"options":{"streaming":[]}}\n',
        "1: streaming is one of off, on, parallel, not []",
    ),
    "streaming that the version lacks": (
        b'{"proto_version":2,"options":{"streaming":"parallel"}}\n',
        "1: streaming = parallel needs protocol version 4, not 2",
    ),
    "deep header": (
        b'{"proto_version":1,"options":{"a":' + b"[" * 1_000_000,
        f"{NO_HEADER} (maximum recursion depth exceeded while deserializing an object)",
    ),
    "deep record": (
        HEADER + b'{"other":' + b"[" * 1_000_000,
        f"{NO_RECORD} (maximum recursion depth exceeded while deserializing an object)",
    ),
    "not hex": (HEADER + b'{"data":"xx"}\n', "2: data is not hex"),
    "digits that are not ASCII": (HEADER + '{"data":"٤٥"}\n'.encode(), "2: data is not hex"),
    "odd hex": (HEADER + b'{"sent":"420"}\n', "2: sent is not hex"),
    "two channels": (
        HEADER + b'{"data":"45","sent":"45"}\n',
        "2: exactly one of data, copydata and sent is required, 2 are present",
    ),
    "no channel": (HEADER + b"{}\n", "2: exactly one of data, copydata and sent is required, 0 are present"),
    "binary garbage": (
        bytes(range(256)),
        f"{NO_HEADER} (JSON is malformed: invalid character (byte 0))",
    ),
    "binary garbage later": (
        HEADER + bytes(range(128, 256)) + b"\n",
        f"{NO_RECORD} (JSON is malformed: invalid character (byte 0))",
    ),
    "an enormous line": (
        HEADER + b"x" * 20_000_000,
        f"{NO_RECORD} (JSON is malformed: invalid character (byte 0))",
    ),
    "an enormous message": (
        HEADER + b'{"data":"' + b"0" * 20_000_000 + b'"}',
        f"2: protocol version {OLDEST} has no message with the tag 0x00",
    ),
    "half a message": (
        HEADER + BEGIN + b'{"data":"4200"}\n',
        "3: Begin.final_lsn at byte 1: expected 8 bytes of Int64 (XLogRecPtr), found 1",
    ),
    "no envelope": (
        HEADER + b'{"copydata":"42"}\n',
        "2: the replication protocol has no message with the tag 'B'",
    ),
    "no message in the envelope": (
        HEADER + b'{"copydata":"77' + b"00" * 24 + b'"}\n',
        "2: no bytes: a message has at least its tag",
    ),
    "truncated gzip": (
        gzip.compress(HEADER + BEGIN * 9)[:-9],
        f"11: {TRUNCATED}",
    ),
    "gzip truncated in its header": (
        gzip.compress(HEADER)[:5],
        f"1: {TRUNCATED}",
    ),
}


def write(directory: Path, content: bytes) -> Path:
    path = directory / "capture.jsonl"
    path.write_bytes(content)
    return path


def read(path: Path, *, skip_bad: bool = False) -> tuple[list[m.Message | None], list[str]]:
    skipped: list[RecordingError] = []
    with CaptureFile(path, on_error=skipped.append if skip_bad else None) as capture:
        return [line.message for line in capture.messages()], [str(error) for error in skipped]


@pytest.mark.parametrize("name", INVALID_FILES)
def test_an_invalid_file_is_refused_with_its_line_number(name: str, tmp_path: Path) -> None:
    content, text = INVALID_FILES[name]
    path = write(tmp_path, content)
    with pytest.raises(RecordingError) as caught:
        read(path)
    assert str(caught.value) == f"{path}:{text}"


@pytest.mark.parametrize("name", INVALID_FILES)
def test_on_bad_receives_invalid_lines_but_not_an_invalid_header(name: str, tmp_path: Path) -> None:
    content, text = INVALID_FILES[name]
    path = write(tmp_path, content)
    if text.startswith("1:"):
        with pytest.raises(RecordingError) as caught:
            read(path, skip_bad=True)
        assert str(caught.value) == f"{path}:{text}"
    else:
        assert read(path, skip_bad=True)[1] == [f"{path}:{text}"]


@pytest.mark.parametrize("position", range(len(gzip.compress(HEADER + BEGIN))))
def test_a_flipped_byte_in_gzip_raises_recording_error(position: int, tmp_path: Path) -> None:
    damaged = bytearray(gzip.compress(HEADER + BEGIN, mtime=0))
    damaged[position] ^= 0xFF
    path = write(tmp_path, bytes(damaged))
    try:
        messages, _ = read(path)
    except RecordingError as error:
        text = str(error)
        assert re.match(rf"{re.escape(str(path))}:\d+: ", text)
        assert "\n" not in text
    else:
        assert messages == [MESSAGE]  # the flipped byte has no effect on the content


def test_files_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    for path, text in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(RecordingError) as caught:
            CaptureFile(path)
        assert str(caught.value) == f"{path}: {text}"


def test_reading_continues_after_invalid_lines(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + BEGIN + b"junk\n" + b'{"data":"4200"}\n' + b'{"data":"0"}\n' + BEGIN)
    messages, skipped = read(path, skip_bad=True)
    assert messages == [MESSAGE, MESSAGE]
    assert [int(line.split(":")[1]) for line in skipped] == [3, 4, 5]


def test_line_endings_blank_lines_and_unknown_keys_are_ignored(tmp_path: Path) -> None:
    content = HEADER.replace(b"}", b',"other":[1]}') + b"\n" + BEGIN + b"  \n" + BEGIN.strip()
    assert read(write(tmp_path, content)) == ([MESSAGE, MESSAGE], [])
    assert read(write(tmp_path, content.replace(b"\n", b"\r\n"))) == ([MESSAGE, MESSAGE], [])
    assert read(write(tmp_path, gzip.compress(content))) == ([MESSAGE, MESSAGE], [])
    assert read(write(tmp_path, HEADER)) == ([], [])


def test_written_records_are_read_back(tmp_path: Path) -> None:
    header = Header(2, {"streaming": "on"}, True, "18.4")
    payload = bytes.fromhex("42 0000000000000001 0000000000000002 00000003")
    wrapped = b"w" + bytes(24) + payload
    reply = b"p" + bytes(8)
    written = [("data", payload), ("copydata", wrapped), ("sent", reply)]
    content = encode_header(header) + b"".join(encode_record(channel, data) for channel, data in written)  # type: ignore[arg-type]
    with CaptureFile(write(tmp_path, content)) as capture:
        lines = list(capture.messages())
    assert header == capture.header
    assert written == [(line.record.channel, line.record.data) for line in lines]
    assert [line.record.number for line in lines] == [2, 3, 4]
    assert [line.message for line in lines] == [MESSAGE, MESSAGE, None]
    assert [
        None,
        m.XLogData(wal_start=0, wal_end=0, send_time=0, data=payload),
        m.PrimaryStatusRequest(send_time=0),
    ] == [line.envelope for line in lines]
    assert [line.data for line in lines[:2]] == [payload, payload]
