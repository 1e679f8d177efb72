"""A spec without versions: codecs of the backend's messages and of COPY's binary format, on real bytes."""

# ruff: noqa: E501  (each error is one line of a table)

from __future__ import annotations

import importlib
import random
import re
import shutil
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from codegen.files import write
from codegen.load import load
from codegen.render import render
from codegen.yamlfile import YamlFile
from logicalrep._walk import walk
from logicalrep.errors import DecodeError, EncodeError
from tests.codegen.spec_copy import ROOT, Run
from tests.codegen.test_json_schema import SCHEMA, errors
from tests.server import Server

EXAMPLE = ROOT / "examples" / "wire"
TABLE = """
CREATE TABLE t (id int PRIMARY KEY, name text, big numeric, raw bytea);
INSERT INTO t SELECT i, CASE i % 3 WHEN 0 THEN NULL ELSE repeat('é', i) END, i * 1.5, decode('00ff', 'hex')
FROM generate_series(1, 40) i;
"""
QUERIES = """
SET application_name = 'logicalrep';
LISTEN news; NOTIFY news, 'payload with é';
SELECT id, name, big, raw FROM t ORDER BY id;
SELECT FROM t LIMIT 1;
SELECT 1 / 0;
"""


class Wire(NamedTuple):
    """The generated modules."""

    messages: ModuleType
    backend: Any
    copy: Any
    arrow: ModuleType
    spark: ModuleType
    folder: Path


class Bytes(NamedTuple):
    """What a server sent."""

    messages: list[bytes]
    """Messages, each with tag and length."""
    copied: bytes
    """Output of COPY in binary format."""
    empty: bytes
    """The same of a query without rows."""


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    folder = tmp_path_factory.mktemp("plain")
    write(folder / "wire_example", render(load(EXAMPLE)))
    sys.path.insert(0, str(folder))
    names = ("messages", "backend", "copy", "arrow", "spark")
    modules = {name: importlib.import_module(f"wire_example.{name}") for name in names}
    yield Wire(**modules, folder=folder / "wire_example")
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def sent() -> Bytes:
    with Server() as server:
        with psycopg.connect(server.dsn) as connection, connection.cursor() as cursor:
            cursor.execute(TABLE)
            copies = []
            for query in ("TABLE t", "SELECT 1 WHERE false"):
                with cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT binary)") as copy:
                    copies.append(b"".join(bytes(one) for one in copy))
        return Bytes(converse(server, *QUERIES.split("\n")), *copies)


def converse(server: Server, *queries: str) -> list[bytes]:
    """Return the messages that a server sends for the queries, with those of the start of the session."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"{server.folder}/.s.PGSQL.{server.port}")
        stream = connection.makefile("rb")
        body = struct.pack(">I", 3 << 16) + b"user\0postgres\0database\0postgres\0\0"
        connection.sendall(struct.pack(">I", len(body) + 4) + body)
        messages: list[bytes] = []
        for query in queries:
            while not messages or messages[-1][:1] != b"Z":
                head = stream.read(5)
                messages.append(head + stream.read(int.from_bytes(head[1:]) - 4))
            text = query.encode() + b"\0"
            connection.sendall(b"Q" + struct.pack(">I", len(text) + 4) + text)
            messages.append(b"")
    return [message for message in messages if message]


def test_messages_of_a_server_survive(wire: Wire, sent: Bytes) -> None:
    found: dict[str, list[Any]] = {}
    for raw in sent.messages:
        if raw[:1] in b"TDESAR":
            message = wire.backend.decode(raw)
            assert wire.backend.encode(message) == raw
            assert wire.backend.decode(memoryview(raw)) == message
            found.setdefault(type(message).__name__, []).append(message)
    assert found.keys() == {
        "RowDescription", "DataRow", "ErrorResponse", "ParameterStatus", "NotificationResponse", "Authentication",
    }  # fmt: skip
    described, *_ = found["RowDescription"]
    assert [(one.name, one.type_oid, one.type_size) for one in described.columns] == [
        ("id", 23, 4), ("name", 25, -1), ("big", 1700, -1), ("raw", 17, -1),
    ]  # fmt: skip
    rows = [row.values for row in found["DataRow"]]
    assert rows[:3] == [(b"1", "é".encode(), b"1.5", b"\\x00ff"), (b"2", "éé".encode(), b"3.0", b"\\x00ff"),
                        (b"3", None, b"4.5", b"\\x00ff")]  # fmt: skip
    assert len(rows) == 41
    assert rows[40] == ()
    (error,) = found["ErrorResponse"]
    told = {chr(one.code): one.content for one in error.fields}
    assert (told["C"], told["M"], told["V"]) == ("22012", "division by zero", "ERROR")
    (notice,) = found["NotificationResponse"]
    assert (notice.channel, notice.payload) == ("news", "payload with é")
    assert (
        wire.messages.ParameterStatus(setting="application_name", setting_value="logicalrep")
        in (found["ParameterStatus"])
    )
    assert found["Authentication"] == [wire.messages.Authentication(method=0)]


def test_output_of_copy_survives(wire: Wire, sent: Bytes) -> None:
    output = wire.copy.decode(sent.copied)
    assert wire.copy.encode(output) == sent.copied
    assert [int.from_bytes(row.values[0]) for row in output.rows] == [*range(1, 41)]
    assert [row.values[1] for row in output.rows[:3]] == ["é".encode(), "éé".encode(), None]
    empty = wire.copy.decode(sent.empty)
    assert (empty.rows, empty.flags, empty.extension) == ((), 0, b"")
    assert wire.copy.encode(empty) == sent.empty


def test_damaged_bytes_raise_decode_errors(wire: Wire, sent: Bytes) -> None:
    randomly, unexplained = random.Random(1), False
    short = wire.copy.encode(
        wire.messages.CopyOutput(flags=0, extension=b"", rows=wire.copy.decode(sent.copied).rows[:3])
    )
    samples = {raw[:1] + raw[5:6]: raw for raw in sent.messages if raw[:1] in b"TDESAR"}
    samples |= {b"sasl": b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0", b"md5": b"R\0\0\0\x0c\0\0\0\5salt"}
    for codec, raw in [*((wire.backend, raw) for raw in samples.values()), (wire.copy, short)]:
        for end in range(len(raw)):
            with pytest.raises(DecodeError):
                codec.decode(raw[:end])
        with pytest.raises(DecodeError):
            codec.decode(raw + b"\0")
        for _ in range(300):
            flipped = bytearray(raw)
            for _ in range(randomly.choice((1, 1, 2, 5))):
                flipped[randomly.randrange(len(raw))] = randomly.choice((0, 1, 0x7F, 0x80, 0xFF))
            try:
                message = codec.decode(flipped)
            except DecodeError as error:
                unexplained |= "please report" in str(error)
            else:
                assert codec.encode(message) == flipped
    assert not unexplained
    with pytest.raises(DecodeError, match="no bytes"):
        wire.backend.decode(b"")


DECODE_ERRORS = [
    ("backend", b"X\0\0\0\4", "the backend protocol has no message with the tag 'X'"),
    ("backend", b"A\0\0\0\7\0\0", "NotificationResponse.length at byte 1: expected 6, found 7"),
    ("backend", b"D\0\0\0\x0a\0\1\xff\xff\xff\xfe", "DataRow.values[0].length at byte 7: expected a length of 0 or more, found -2"),
    ("backend", b"D\0\0\0\x0a\0\1\0\0\0\1", "DataRow.values[0] at byte 11: expected 1 bytes of content, found 0"),
    ("backend", b"E\0\0\0\7MX\0", "ErrorResponse.fields[1].code at byte 8: expected 1 bytes of Int8, found 0"),
    ("backend", b"R\0\0\0\x0b\0\0\0\5sal", "Authentication.salt at byte 9: expected 4 bytes of content, found 3"),
    ("backend", b"R\0\0\0\x09\0\0\0\0X", "Authentication at byte 9: the message ends here, 1 more bytes follow (salt and mechanisms"),
    # Without a check, the decoder would read the same row again and again.
    ("copy", b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\1\xff\xff\xff\xfa", "CopyOutput.rows[0].values[0].length at byte 21: expected a length of 0 or more, found -6"),
    ("copy", b"PGCOPY", "CopyOutput.signature at byte 0: expected 11 bytes of Byte11("),
    ("copy", b"PGCOPZ\n\xff\r\n\0", "CopyOutput.signature at byte 0: expected b'PGCOPY\\n\\xff\\r\\n\\x00', found b'PGCOPZ"),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "raw", "text"), DECODE_ERRORS)
def test_decode_errors_name_field_and_byte(wire: Wire, protocol: str, raw: bytes, text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        getattr(wire, protocol).decode(raw)
    assert str(caught.value).startswith(text)


ENCODE_ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("DataRow", {"values": ("text",)}, "DataRow.values[0]: expected bytes, found the str 'text'"),
    ("DataRow", {"values": None}, "DataRow.values: expected a tuple, found None"),
    ("DataRow", {"values": (None,) * 65536}, "DataRow.values: 65536 do not fit into Int16, the count before it"),
    ("ErrorResponse", {"fields": ((0, "x"),)}, "ErrorResponse.fields[0]: its first bytes would end the list"),
    ("ErrorResponse", {"fields": ((256, "x"),)}, "ErrorResponse.fields[0].code: 256 does not fit into Int8, 0 to 255"),
    ("ParameterStatus", {"setting": "a\0", "setting_value": ""}, "ParameterStatus.setting: a zero character"),
    ("Authentication", {"method": 5}, "Authentication.salt: expected 4 bytes, found None"),
    ("Authentication", {"method": 5, "salt": b"12345"}, "Authentication.salt: expected 4 bytes"),
    ("Authentication", {"method": 0, "salt": b"1234"}, "Authentication.salt: is sent only if method = 5, so it must be None"),
    ("Authentication", {"method": 10, "mechanisms": ("A", "")}, "Authentication.mechanisms[1]: its first bytes would end"),
    ("Authentication", {"method": 10, "mechanisms": ("A", 1)}, "Authentication.mechanisms[1]: expected a str, found the int 1"),
    ("Authentication", {"method": 11}, "Authentication.challenge: expected bytes, found None"),
    ("CopyOutput", {"flags": 0, "extension": b"", "rows": ()}, "the backend protocol has no message CopyOutput"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "text"), ENCODE_ERRORS)
def test_encode_errors_name_the_field(wire: Wire, name: str, values: dict[str, Any], text: str) -> None:
    field = wire.messages.ErrorField
    if name == "ErrorResponse":
        values = {"fields": tuple(field(code=code, content=content) for code, content in values["fields"])}
    with pytest.raises(EncodeError) as caught:
        wire.backend.encode(getattr(wire.messages, name)(**values))
    assert str(caught.value).startswith(text)
    with pytest.raises(TypeError, match=r"expected a message of wire_example\.messages"):
        wire.backend.encode(field(code=1, content=""))


def lists(value: Any) -> Any:
    """Return a value with lists instead of tuples, as Arrow returns it."""
    if isinstance(value, dict):
        return {key: lists(one) for key, one in value.items() if one is not None}
    return [lists(one) for one in value] if isinstance(value, tuple | list) else value


def test_schemas_hold_the_messages(wire: Wire, sent: Bytes) -> None:
    for codec, raw in [
        (wire.copy, sent.copied),
        *((wire.backend, raw) for raw in sent.messages if raw[:1] in b"TDESAR"),
    ]:
        message = codec.decode(raw)
        row = lists(msgspec.to_builtins(message, builtin_types=(bytes,)))
        row.pop("type")
        schema = wire.arrow.BY_MESSAGE[type(message).__name__]
        table = pa.Table.from_pylist([row], schema)
        table.validate(full=True)
        assert {key: value for key, value in table.to_pylist()[0].items() if value is not None} == row
    for name, schema in wire.arrow.BY_MESSAGE.items():
        spark = wire.spark.BY_MESSAGE[name]
        assert from_arrow_schema(schema).simpleString() == spark.simpleString()


def test_generated_files_do_not_mention_versions(wire: Wire) -> None:
    for path in wire.folder.glob("*.*"):
        text = path.read_text(encoding="utf-8")
        assert "version" not in text.replace("protocol 3.0", "").replace("version=None", ""), path
        assert path.name == "_layouts.py" or "stream" not in text.replace("in_stream", "").lower(), path
    page = (wire.folder / "backend.md").read_text(encoding="utf-8")
    assert "Next, for each of values, `Int32, Byten`: " in page
    assert "Next, until the end of fields: " in page
    assert "Only if method is 5." in page


def test_the_example_of_the_readme_works(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (ROOT / "spec" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from wire import .*?)```", readme, re.DOTALL)
    for name in ("backend", "messages"):
        monkeypatch.setitem(sys.modules, f"wire.{name}", getattr(wire, name))
    monkeypatch.setitem(sys.modules, "wire", importlib.import_module("wire_example"))
    exec(code, {})


def test_the_command_generates_and_checks(run: Run, tmp_path: Path) -> None:
    options: list[str | Path] = ["--spec", EXAMPLE, "--out", tmp_path / "wire"]
    assert run(*options).code == 0
    assert run("--check", *options).code == 0
    (tmp_path / "wire" / "copy.md").unlink()
    assert "missing" in run("--check", *options).err
    assert sorted(path.name for path in EXAMPLE.iterdir()) == ["backend.yaml", "copy.yaml"]
    for command in (["diff", str(EXAMPLE), str(EXAMPLE)], ["remove", "v1"], ["export", "kaitai"]):
        refused = run(*command, "--spec", EXAMPLE)
        assert refused.code == 1
        assert "without the section `versions`" in refused.err
    assert all(len(path.read_text().splitlines()) <= 150 for path in EXAMPLE.iterdir())


PID = "      - {name: pid, type: int32, doc: Process id of the notifying backend.}"
SALT = "      - {name: salt, type: salt, when: {method: 5}, doc: Salt of the MD5 digest.}"
ENDED = "      - {end: fields, type: uint8, literal: 0, doc: No field follows.}"
VALUES = "      - {name: values, list_of: value, doc: The values of the columns.}"
CODE = "      - {name: code, type: uint8,"
MISTAKES = [
    ("protocol: backend", "protocol: Backend", "the protocol `Backend` cannot be a module: write another name in snake_case"),
    ("protocol: backend", "protocol: messages", "the protocol `messages` cannot be a module: write another name in snake_case"),
    ("length: int32\n\n", "length: int16\n\n", "unknown length `int16`; the lengths are int32"),
    ("    tag: A\n", "", "NotificationResponse: a message without `tag` is the only one of its protocol: add `tag`"),
    ("    tag: A\n", "    tag: A\n    role: payload\n", "NotificationResponse: a spec without the section `versions` has no `role`"),
    (PID, PID.replace("doc", 'versions: "1+", doc'), "NotificationResponse.pid: a spec without the section `versions` has no `versions`"),
    (PID, PID.replace("doc", "means: xid, doc"), "NotificationResponse.pid: a spec without the section `versions` has no `means`"),
    (SALT, SALT.replace("method:", "mode:"), "Authentication.salt: unknown earlier integer field `mode`; the earlier integer fields are method"),
    (SALT, SALT.replace("method: 5", "method: md5"), "Authentication.salt: `method` has a number, not `md5`"),
    (SALT, SALT.replace("{method: 5}", "in_stream"), "Authentication.salt: `when` takes one field and its value"),
    (CODE, CODE.replace("type", "when: {code: 1}, type"), "ErrorField.code: a field of a struct is always sent; it cannot have `when`"),
    (ENDED, "", "ErrorResponse.fields: no count comes before it"),
    (ENDED, ENDED.replace("fields", "columns"), "ErrorResponse.end of columns: an end comes directly after its list"),
    (ENDED, ENDED.replace(" literal: 0,", ""), "ErrorResponse.end of fields: an end is a constant: write `type` and `literal`"),
    (ENDED, ENDED.replace("0", "256"), "ErrorResponse.end of fields: a literal of type uint8 is a number from 0 to 255"),
    (ENDED, ENDED.replace("0", '"00"'), "ErrorResponse.end of fields: a literal of type uint8 is a number from 0 to 255"),
    (VALUES, VALUES.replace("value,", "salt,"), "DataRow.values: a list of `salt` cannot be read; lists are of integers, strings"),
    ("wire: bytes, size: 4", "wire: bytes, size: 0", "salt: a size is a number from 1 to 65535, not 0"),
    ("wire: bytes, size: 4", "wire: bytes, size: 4, length: int32", "salt: bytes have a `size` or a `length` before them, not both"),
    ("wire: uint8, ", "wire: uint8, size: 1, ", "uint8: only `wire: bytes` has a `size`, not `uint8`"),
    ("length: int32, \"null\"", "length: uint32, \"null\"", "value: `null` needs a signed `length`, such as int32"),
    ('"null": -1', '"null": 0', "value: the length for NULL is negative, such as -1, not 0"),
    ("scalars:", "options:\n  binary: {doc: X., values: {}}\n\nscalars:", "a spec without the section `versions` has no `options`"),
    ("structs:", "structs:\n  Outer:\n    source: X\n    doc: X.\n    fields:\n      - {count: inner, type: uint16, doc: X.}\n      - {name: inner, list_of: ErrorField, doc: X.}", "Outer.inner: write the struct `ErrorField` above `Outer`, which holds it"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "words"), MISTAKES)
def test_a_mistake_gives_one_line_with_its_place(
    run: Run, tmp_path: Path, old: str, new: str, words: str
) -> None:
    folder = tmp_path / "spec"
    shutil.copytree(EXAMPLE, folder)
    text = (folder / "backend.yaml").read_text(encoding="utf-8")
    assert old in text
    (folder / "backend.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    refused = run("--spec", folder, "--out", tmp_path / "out")
    (line,) = refused.err.splitlines()
    place, _, found = line.partition(": ")
    assert refused.code == 1
    assert re.match(rf"(\S+: )?{re.escape(words)}", found), found  # the error can name the message
    assert re.fullmatch(re.escape(str(folder / "backend.yaml")) + r":\d+", place)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", sorted(EXAMPLE.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_follow_the_json_schema(path: Path) -> None:
    assert [*errors(YamlFile(path).data, SCHEMA)] == []
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert (path.parent / first.split("$schema=")[1]).is_file()


EVERYTHING = """
protocol: everything
title: Everything
source: nowhere
doc: A protocol with every word of the language.

messages:
  All:
    tag: a
    title: All
    source: nowhere
    doc: Every kind of field.
    fields:
      - {name: kind, type: int16, doc: X.}
      - {name: two, type: int16, literal: -2, doc: X.}
      - {name: color, type: Color, doc: X.}
      - {name: marks, type: Mark, doc: X.}
      - {name: sure, type: bool, doc: X.}
      - {name: size, type: uint64, doc: X.}
      - {length: raw, type: uint8, doc: X.}
      - {name: raw, type: bytes, doc: X.}
      - {name: short, type: short, doc: X.}
      - {name: maybe, type: maybe, doc: X.}
      - {count: one, type: uint8, when: {kind: 1}, doc: X.}
      - {name: one, list_of: Outer, when: {kind: 1}, doc: X.}
      - {name: magic, type: magic, literal: 00 ff 7f, when: {kind: 1}, doc: X.}
      - {length: data, type: uint16, when: {kind: -1}, doc: X.}
      - {name: data, type: bytes, when: {kind: -1}, doc: X.}
      - {name: numbers, list_of: int32, when: {kind: -1}, doc: X.}
      - {end: numbers, type: int32, literal: -1, when: {kind: -1}, doc: X.}
      - {name: tail, type: rest, when: {kind: 3}, doc: X.}
  Nothing:
    tag: b
    title: Nothing
    source: nowhere
    doc: No field.
    fields: []

structs:
  Inner:
    source: nowhere
    doc: X.
    fields:
      - {name: magic, type: magic, doc: X.}
      - {name: color, type: Color, doc: X.}
      - {count: names, type: uint16, doc: X.}
      - {name: names, list_of: string, doc: X.}
      - {count: shorts, type: uint8, doc: X.}
      - {name: shorts, list_of: short, doc: X.}
  Outer:
    source: nowhere
    doc: X.
    fields:
      - {count: inner, type: uint32, doc: X.}
      - {name: inner, list_of: Inner, doc: X.}
      - {count: values, type: uint8, doc: X.}
      - {name: values, list_of: int16, doc: X.}
      - {name: marks, type: Mark, doc: X.}
      - {name: ended, list_of: maybe, doc: X.}
      - {end: ended, type: int16, literal: -2, doc: X.}

enums:
  Color: {doc: X., source: nowhere, values: {RED: {value: r, doc: X.}, BLUE: {value: b, doc: X.}}}

flags:
  Mark: {wire: uint8, doc: X., source: nowhere, bits: {HOT: {value: 1, doc: X.}, OLD: {value: 128, doc: X.}}}

scalars:
  uint8: {wire: uint8, arrow: int16, spark: ShortType, doc: X.}
  uint16: {wire: uint16, arrow: int32, spark: IntegerType, doc: X.}
  uint32: {wire: uint32, arrow: int64, spark: LongType, doc: X.}
  uint64: {wire: uint64, arrow: int64, spark: LongType, doc: X.}
  int16: {wire: int16, arrow: int16, spark: ShortType, doc: X.}
  int32: {wire: int32, arrow: int32, spark: IntegerType, doc: X.}
  bool: {wire: bool, arrow: bool, spark: BooleanType, doc: X.}
  string: {wire: cstring, arrow: string, spark: StringType, doc: X.}
  bytes: {wire: bytes, arrow: binary, spark: BinaryType, doc: X.}
  rest: {wire: rest, arrow: binary, spark: BinaryType, doc: X.}
  magic: {wire: bytes, size: 3, arrow: binary, spark: BinaryType, doc: X.}
  short: {wire: bytes, length: uint8, arrow: binary, spark: BinaryType, doc: X.}
  maybe: {wire: bytes, length: int16, "null": -1, arrow: binary, spark: BinaryType, doc: X.}
"""


def test_every_word_decodes_and_encodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spec").mkdir()
    (tmp_path / "spec" / "everything.yaml").write_text(EVERYTHING)
    write(tmp_path / "everything_example", render(load(tmp_path / "spec")))
    monkeypatch.syspath_prepend(tmp_path)
    m, codec = (importlib.import_module(f"everything_example.{name}") for name in ("messages", "everything"))
    inner = m.Inner(magic=b"abc", color=m.Color.BLUE, names=("", "é"), shorts=(b"", b"x" * 255))
    outer = m.Outer(inner=(inner, inner), values=(-1, 5), marks=m.Mark.OLD, ended=(None, b"", b"x"))
    empty = m.Outer(inner=(), values=(), marks=m.Mark(0), ended=())
    fields: dict[str, Any] = {
        "color": m.Color.RED, "marks": m.Mark.HOT | m.Mark.OLD, "sure": True, "size": 1 << 63, "raw": b"r",
        "short": b"s", "maybe": None,
    }  # fmt: skip
    messages = [
        m.Nothing(),
        m.All(kind=0, **fields),
        m.All(kind=1, one=(outer, empty), **fields),
        m.All(kind=-1, data=b"data", numbers=(-2, 0), **fields | {"maybe": b"m"}),
        m.All(kind=3, tail=b"tail", **fields),
    ]
    assert codec.encode(messages[1]) == b"a\0\0\xff\xfer\x81\1\x80\0\0\0\0\0\0\0\1r\1s\xff\xff"
    randomly = random.Random(2)
    for message in messages:
        raw = codec.encode(message)
        assert repr(codec.decode(raw)) == repr(message)
        pieces = [*walk(codec._LAYOUT, raw, False, "off")]
        assert [0, *(piece.end for piece in pieces)] == [*(piece.start for piece in pieces), len(raw)]
        for _ in range(500):
            damaged = bytearray(raw[: randomly.randrange(len(raw)) if randomly.random() < 0.2 else None])
            for _ in range(randomly.randrange(4) if damaged else 0):
                damaged[randomly.randrange(len(damaged))] = randomly.choice((0, 1, 2, 0x7F, 0xFE, 0xFF))
            try:
                found = codec.decode(damaged)
            except DecodeError as error:
                explained = "please report" not in str(error)
            else:
                explained = codec.encode(found) == damaged
            assert explained, damaged
    for changed, text in (
        ({"kind": 1}, "All.one: expected a tuple, found None"),
        ({"kind": 2, "tail": b""}, "All.tail: is sent only if kind = 3, so it must be None"),
        ({"kind": 1 << 15}, "All.kind: 32768 does not fit into Int16, -32768 to 32767"),
        ({"kind": 0, "maybe": b"x" * 32768}, "All.maybe: 32768 bytes do not fit into the Int16 before them"),
        ({"kind": 0, "short": None}, "All.short: expected bytes, found None"),
        ({"kind": -1, "data": b"", "numbers": (5, -1)}, "All.numbers[1]: its first bytes would end the list"),
        ({"kind": -1, "numbers": ()}, "All.data: expected bytes, found None"),
        ({"kind": 0, "marks": 2}, "All.marks: expected bits of 0x81, found 0x02"),
        ({"kind": 0, "color": "g"}, "All.color: expected one of 'r', 'b', found 'g'"),
    ):
        with pytest.raises(EncodeError) as caught:
            codec.encode(m.All(**fields | changed))
        assert str(caught.value) == text
    wrong = msgspec.structs.replace(inner, magic=b"")
    with pytest.raises(EncodeError, match=r"All\.one\[0\]\.inner\[1\]\.magic: expected 3 bytes"):
        codec.encode(
            m.All(
                kind=1, one=(m.Outer(inner=(inner, wrong), values=(), marks=m.Mark(0), ended=()),), **fields
            )
        )
