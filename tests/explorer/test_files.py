"""The protocol explorer reads the same messages from each kind of file as from the capture file."""

from __future__ import annotations

import base64
import gzip
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from logicalrep._stored_stream import Channel
from logicalrep.capturefile import CaptureFile, encode_record
from logicalrep.messages import UNCHANGED, Begin, Delete, Insert, Relation, Update
from logicalrep.synth import Scenario, write_capture_file
from logicalrep.testing import shop
from logicalrep.values import encode_binary
from logicalrep.values.forms.floats import format_float4
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.explorer.packets import Network, disorder, frame, session, write
from tests.explorer.peer import ask, open_file
from tests.versions import CAPTURED, KNOWN, OLDEST, UNKNOWN

Record = tuple[Channel, bytes]

PLAIN: Final = ("pg13_p1", "pg14_p1_binary", "pg15_p3_2pc_stream_msg", "pg18_p4_gen_par_bin")
WALSENDER: Final = ("pg10_ws_p1", "pg14_ws_p2_stream_msg", "pg16_ws_p4_par_2pc_msg", "pg18_ws_p3_2pc_stream")


def read(name: str) -> tuple[bytes, list[Record]]:
    """Return the header and the records of a capture."""
    with gzip.open(corpus.path(name)) as file:
        header = file.readline()
    lines = corpus.read(name)[1]
    return header, [(line.record.channel, line.record.data) for line in lines]


def capture(header: bytes, records: list[Record]) -> bytes:
    return header + b"".join(encode_record(*record) for record in records)


def pg_recvlogical(records: list[Record]) -> bytes:
    return b"".join(data + b"\n" for _, data in records)


def copy_stream(records: list[Record]) -> bytes:
    return frame("W", bytes(3)) + b"".join(frame("d", data) for _, data in records) + frame("c", b"")


def xxd(data: bytes) -> str:
    def line(at: int) -> str:
        part = data[at : at + 16]
        digits = " ".join(part[i : i + 2].hex() for i in range(0, len(part), 2))
        return f"{at:08x}: {digits:39}  {_characters(part)}"

    return "\n".join(line(at) for at in range(0, len(data), 16)) + "\n"


def hexdump(data: bytes) -> str:
    """Return what `hexdump -C` prints, in which `*` replaces repeated lines."""

    def lines() -> Iterator[str]:
        last, starred = b"", False
        for at in range(0, len(data), 16):
            part = data[at : at + 16]
            if part == last:
                if not starred:
                    yield "*"
                starred = True
                continue
            last, starred = part, False
            digits = f"{part[:8].hex(' '):23}  {part[8:].hex(' '):23}"
            yield f"{at:08x}  {digits}  |{_characters(part)}|"
        yield f"{len(data):08x}"

    return "\n".join(lines()) + "\n"


def od(data: bytes) -> str:
    """Return what `od -A x -t x1 -v` prints."""
    lines = [f"{at:06x} {data[at : at + 16].hex(' ')}" for at in range(0, len(data), 16)]
    return "\n".join([*lines, f"{len(data):06x}"]) + "\n"


def psql(records: list[Record]) -> str:
    rows = [f" 0/{i:X} | 7{i} | \\x{data.hex()}" for i, (_, data) in enumerate(records)]
    return (
        "\n".join(["    lsn    | xid | data ", "-----------+-----+------", *rows, f"({len(rows)} rows)"])
        + "\n"
    )


def _characters(part: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)


def _each(encode: Callable[[bytes], str]) -> Callable[[list[Record]], str]:
    return lambda records: "".join(encode(data) + "\n" for _, data in records)


def _escaped(data: bytes) -> str:
    return "".join(chr(byte) if 0x20 < byte < 0x7F and byte != 0x5C else f"\\{byte:03o}" for byte in data)


def _wrapped(text: str, width: int) -> str:
    return re.sub(f"(.{{{width}}})", r"\1\n", text) + "\n"


def wireshark(data: bytes) -> str:
    """Return what Wireshark copies "as a Hex Dump"."""
    parts = [data[at : at + 16] for at in range(0, len(data), 16)]
    return "".join(
        f"{i * 16:04x}   {part.hex(' '):47}   {_characters(part)}\n" for i, part in enumerate(parts)
    )


TEXTS: Final[dict[str, Callable[[list[Record]], str]]] = {
    "hex lines": _each(bytes.hex),
    "hex lines, spaced": _each(lambda data: data.hex(" ").upper()),
    "bytes of Python": _each(repr),
    "escaped bytes without quotes": _each(lambda data: repr(data)[2:-1]),
    "PostgreSQL's format escape": _each(_escaped),
    "hex lines, as in C": _each(lambda data: ", ".join(f"0x{byte:02X}" for byte in data)),
    "hex lines, with dashes": _each(lambda data: data.hex("-")),
    "Wireshark's dump of a COPY stream": lambda records: wireshark(copy_stream(records)),
    "bytea lines": _each(lambda data: f"\\x{data.hex()}"),
    "base64 lines": _each(lambda data: base64.b64encode(data).decode()),
    "psql": psql,
    "psql with Unicode borders": lambda records: psql(records).replace("|", "│"),
    "xxd of each message": _each(xxd),
    "xxd of pg_recvlogical": lambda records: xxd(pg_recvlogical(records)),
    "xxd -p of pg_recvlogical": lambda records: _wrapped(pg_recvlogical(records).hex(), 60),
    "hexdump -C of a COPY stream": lambda records: hexdump(copy_stream(records)),
    "od of a COPY stream": lambda records: od(copy_stream(records)),
    "base64 of a COPY stream": lambda records: base64.encodebytes(copy_stream(records)).decode(),
    "base64 of pg_recvlogical": lambda records: base64.b64encode(pg_recvlogical(records)).decode(),
}


def opened(contents: list[bytes], **settings: object) -> list[Any]:
    """Return transactions and messages of each file as the page shows them."""
    answers = ask(open_file(content, **settings) for content in contents)
    return [[answer["transactions"], answer["messages"]] for answer in answers]


@pytest.mark.parametrize("name", mostly_nightly(PLAIN, PLAIN[-1:]))
def test_files_and_texts_of_messages_without_envelopes(name: str) -> None:
    header, records = read(name)
    half = len(capture(header, records)) // 2
    contents = [
        pg_recvlogical(records),
        pg_recvlogical(records)[:-1],
        gzip.compress(pg_recvlogical(records)),
        gzip.compress(capture(header, records)[:half]) + gzip.compress(capture(header, records)[half:]),
        "\ufeff".encode() + capture(header, records),
        copy_stream(records),
    ]
    contents += [make(records).encode() for make in TEXTS.values()]
    expected, *found = opened([capture(header, records), *contents])
    assert len(expected[1]) == len(records)
    assert all(message["problem"] is None for message in expected[1])
    kinds = [
        "plain",
        "no last newline",
        "compressed",
        "two members",
        "byte order mark",
        "COPY stream",
        *TEXTS,
    ]
    for kind, one in zip(kinds, found, strict=True):
        assert one == expected, kind


@pytest.mark.parametrize("name", mostly_nightly(WALSENDER, WALSENDER[2:3]))
def test_files_and_texts_of_messages_in_envelopes(name: str) -> None:
    header, both = read(name)
    records = [record for record in both if record[0] == "copydata"]
    texts = {kind: make for kind, make in TEXTS.items() if "recvlogical" not in kind}
    contents = [copy_stream(records), *(make(records).encode() for make in texts.values())]
    expected, *found = opened([capture(header, records), *contents])
    for kind, one in zip(["COPY stream", *texts], found, strict=True):
        assert one == expected, kind


NETWORKS: Final = (
    Network(),
    Network("vlan", six=True),
    Network("cooked", order=">"),
    Network("raw", blocks=True),
    Network("raw", six=True, blocks=True, order=">"),
    Network("loopback"),
)


@pytest.mark.parametrize("name", mostly_nightly(WALSENDER, WALSENDER[2:3]))
def test_packets(name: str) -> None:
    header, records = read(name)
    options = corpus.read(name)[0]
    given = {"proto_version": options.proto_version, **options.options}
    packets = session(records, ", ".join(f"\"{key}\" '{value}'" for key, value in given.items()))
    contents = [write(packets, network) for network in NETWORKS]
    contents += [write(disorder(packets), network) for network in NETWORKS]
    expected, *found = opened([capture(header, records), *contents])
    for network, one in zip(NETWORKS * 2, found, strict=True):
        assert one == expected, network


@pytest.mark.parametrize("name", mostly_nightly(WALSENDER[:2], WALSENDER[:1]))
def test_dumps_of_frames(name: str) -> None:
    header, both = read(name)
    records = [record for record in both if record[0] == "copydata"]
    packets = session(records, "", 10_000_000, started=False)
    content = write(packets, Network(), handshake=False)
    at, dumps = 24, []
    while at < len(content):
        size = int.from_bytes(content[at + 8 : at + 12], "little")
        dumps.append(wireshark(content[at + 16 : at + 16 + size]))
        at += 16 + size
    expected, found = opened([capture(header, records), "\n".join(dumps).encode()])
    assert found == expected


def test_packets_from_the_middle_of_a_connection() -> None:
    name = WALSENDER[1]
    header, records = read(name)
    packets = session(records, "", 10_000_000, started=False)
    expected, found = opened([capture(header, records), write(packets, Network(), handshake=False)])
    assert found == expected


def test_missing_packets_lose_only_the_messages_in_them() -> None:
    header, records = read(WALSENDER[0])
    packets = session(records, f"proto_version '{OLDEST}'", 10_000_000)
    lost = len(packets) // 2
    while packets[lost][0]:
        lost += 1
    opening = len(packets) - len(records)
    rest = [*records[: lost - opening], *records[lost - opening + 1 :]]
    content = write([*packets[:lost], *packets[lost + 1 :]], Network())
    (answer,) = ask([open_file(content)])
    assert answer["format"] == "pcap file, in which packets are missing in 1 place"
    (expected,) = opened([capture(header, rest)])
    assert answer["messages"] == expected[1]


def test_settings_of_the_page_are_kept_where_they_fit() -> None:
    _, records = read("pg18_p1")
    content = pg_recvlogical(records)
    for version in CAPTURED[:2]:
        (answer,) = ask([open_file(content, version=version)])
        assert answer["settings"]["version"] == version


def test_a_damaged_file_is_read_up_to_its_damage() -> None:
    header, records = read("pg13_p1")
    lines = capture(header, records).splitlines(keepends=True)
    whole, middle = capture(header, records), len(records) // 2
    compressed = gzip.compress(whole)
    files: dict[str, tuple[bytes, str]] = {
        "cut": (b"".join(lines[: middle + 1]) + lines[middle + 1][:-9], f"line {middle + 2}: not JSON"),
        "garbled": (b"".join(lines[: middle + 1]) + b"nonsense\n" + b"".join(lines[middle + 1 :]), "line"),
        "merged": (
            b"".join(lines[: middle + 1]) + lines[middle + 1][:40] + b"".join(lines[middle + 2 :]),
            f"line {middle + 2}: not JSON",
        ),
        "zeros": (b"".join(lines[: middle + 1]) + bytes(500) + b"\n", f"line {middle + 2}: not JSON"),
        "gzip": (compressed[: len(compressed) * 9 // 10], "the file is not valid gzip, or ends too early"),
        "gzip at a line": (gzip.compress(b"".join(lines[: middle + 1]))[:-4], "the file is not valid gzip"),
        "COPY": (copy_stream(records[:middle]) + b"d\0\0\0\x30I", "no whole frame of the COPY stream begins"),
        "recvlogical": (
            pg_recvlogical(records[:middle]) + b"I\0\0",
            "expected 4 bytes of Int32 (Oid), found 2",
        ),
    }
    packets = session(
        [("copydata", b"w" + bytes(24) + data) for _, data in records], "", 10_000_000, started=False
    )
    pcap, blocks = (
        write(packets, Network(), handshake=False),
        write(packets, Network(blocks=True), handshake=False),
    )
    half = len(blocks) // 2
    (expected,) = ask([open_file(whole)])
    answers = ask(open_file(content) for content, _ in files.values())
    for name, content in {
        "cut pcap": pcap[:-50],
        "pcap with zeros": pcap[: len(pcap) // 2] + bytes(len(pcap) // 2),
        "cut pcapng": blocks[:-50],
        "overwritten pcapng": blocks[:half] + b"\xff" * 2000 + blocks[half + 2000 :],
    }.items():
        (found,) = ask([open_file(content)])
        assert re.match(r"byte \d+: no whole (packet|block) begins here", found["damage"]), name
        assert found["messages"], name
    for (name, (_, damage)), found in zip(files.items(), answers, strict=True):
        assert damage in found["damage"], name
        count = len(found["messages"])
        assert count == middle if name != "gzip" else count > middle * 8 // 10, name
        assert found["messages"] == expected["messages"][:count], name
    assert expected["damage"] == ""


def test_text_around_bytes_is_left_out() -> None:
    begin = bytes.fromhex("4200000000016b38480002dad4b2a2b040000002ea")
    literal = repr(begin)
    texts = [
        f"[{literal}, {literal}]",
        f"messages = [\n    {literal},\n    {literal},\n]",
        f"data = {literal}\nbytearray({literal})",
        f"'\\x{begin.hex()}'\n'\\x{begin.hex()}'",
        f"'{begin.hex()}'\n\"{begin.hex()}\"",
        f"0/16B3748,746,\\x{begin.hex()}\n0/16B3748,746,\\x{begin.hex()}",
        f"0/16B3748\t746\t\\\\x{begin.hex()}\n0/16B3748\t746\t\\\\x{begin.hex()}",
    ]
    for text, found in zip(texts, ask(open_file(one.encode()) for one in texts), strict=True):
        assert [one["data"] for one in found["messages"]] == [begin.hex()] * 2, text
    (large,) = ask([open_file(("4d" + "00" * 4_000_000).encode())])
    assert len(large["messages"][0]["data"]) == 8_000_002


def test_a_connection_with_a_startup_message_without_size_is_read() -> None:
    content = write([(True, 0, bytes.fromhex("0000000000030000") + bytes(20))], Network())
    (answer,) = ask([open_file(content)], errors=True)
    assert answer["kind"] == "FileError"


def test_a_search_finds_texts_tables_and_kinds_whatever_their_case(tmp_path: Path) -> None:
    write_capture_file(shop(), tmp_path / "shop.jsonl")
    content = (tmp_path / "shop.jsonl").read_bytes()
    names = ("ADA", "public.Orders", "orders", "truncate", "Łucja", "no such text", r"\x416461", r"\x616461")
    request = {"command": "search", "content": base64.b64encode(content).decode(), "texts": names}
    (found,) = ask([request])
    with CaptureFile(tmp_path / "shop.jsonl") as file:
        messages = [one.message for one in file.messages()]
    relations: dict[int, str] = {}
    of_orders = []
    for row, message in enumerate(messages):
        if isinstance(message, Relation):
            relations[message.oid] = message.name
        oids = [
            getattr(message, "oid", getattr(message, "relation_oid", None)),
            *getattr(message, "relation_oids", ())[:1],
        ]
        if any(relations.get(oid or 0) == "orders" for oid in oids):
            of_orders.append(row)
    assert len(of_orders) > 5
    by_name = dict(zip(names, found, strict=True))
    assert by_name["public.Orders"] == of_orders
    assert set(of_orders) <= set(by_name["orders"])
    assert [type(messages[row]).__name__ for row in by_name["truncate"]] == ["Truncate"]
    first = messages[by_name["ADA"][0]]
    assert isinstance(first, Insert)
    assert first.new[1] == "Ada"
    assert len(by_name["Łucja"]) >= 1
    assert by_name["no such text"] == []
    assert by_name[r"\x416461"] == by_name["ADA"]
    assert by_name[r"\x616461"] == []  # digits are bytes, not letters


def test_a_row_is_followed_through_changes_of_its_key(tmp_path: Path) -> None:
    db = Scenario()
    table = db.table("public.t", id="int4 key", note="text")
    with db.transaction() as tx:
        tx.insert(table, id=1, note="a")
        tx.insert(table, id=2, note="1")
        tx.update(table, id=1, note="b")
        tx.update(table, {"id": 1}, id=9)
        tx.update(table, id=2, note="9")
        tx.delete(table, id=9)
    write_capture_file(db, tmp_path / "t.jsonl")
    content = base64.b64encode((tmp_path / "t.jsonl").read_bytes()).decode()
    (found,) = ask([{"command": "follow", "content": content, "rows": [2, 3, 0]}])
    assert found == [[2, 4, 5, 7], [3, 6], []]  # Begin, Relation, and six changes


def test_a_row_is_followed_to_both_sides_and_not_to_others(tmp_path: Path) -> None:
    db = Scenario()
    table = db.table("public.t", old="text", id="int4 key", note="text")
    with db.transaction() as tx:
        tx.insert(table, id=1, note="a")  # message 2
        tx.update(table, {"id": 1}, id=2)
        tx.insert(table, id=1, note="another row")
        tx.update(table, id=2, note="b")
        tx.delete(table, id=2)
        tx.insert(table, id=2, note="with the key again")
    with db.transaction() as tx:
        tx.alter(table, drop=["old"], rename={"id": "number"}, name="renamed")
        tx.update(table, number=2, note="c")  # message 11, after Commit, Begin and Relation
        tx.update(table, number=2, note="d")
    write_capture_file(db, tmp_path / "t.jsonl")
    content = base64.b64encode((tmp_path / "t.jsonl").read_bytes()).decode()
    own = [2, 3, 5, 6, 7, 11, 12]
    (found,) = ask([{"command": "follow", "content": content, "rows": [*own, 4]}])
    assert found == [own] * len(own) + [[4]]


def test_what_is_rolled_back_is_not_followed(tmp_path: Path) -> None:
    db = Scenario(streaming="on", logical_decoding_work_mem=0)
    table = db.table("public.t", id="int4 key", note="text")
    with db.transaction() as tx:
        tx.insert(table, id=1, note="a")
    with db.transaction() as tx:
        tx.update(table, id=1, note="b")
        savepoint = tx.savepoint()
        savepoint.update(table, {"id": 1}, id=5)
        savepoint.rollback()
        tx.update(table, id=1, note="c")
    with db.transaction() as tx:
        tx.delete(table, id=1)
    write_capture_file(db, tmp_path / "t.jsonl")
    content = base64.b64encode((tmp_path / "t.jsonl").read_bytes()).decode()
    with CaptureFile(tmp_path / "t.jsonl") as file:
        changes = [
            row
            for row, one in enumerate(file.messages())
            if isinstance(one.message, Insert | Update | Delete)
        ]
    own = [*changes[:2], *changes[3:]]
    (found,) = ask([{"command": "follow", "content": content, "rows": own}])
    assert found == [own] * 4


def test_rows_with_their_whole_content_as_key_are_not_mixed(tmp_path: Path) -> None:
    db = Scenario()
    table = db.table("public.t", a="text", b="text", replica_identity="full")
    with db.transaction() as tx:
        tx.insert(table, a="x", b=None)
        tx.insert(table, a=None, b="x")
    write_capture_file(db, tmp_path / "t.jsonl")
    content = base64.b64encode((tmp_path / "t.jsonl").read_bytes()).decode()
    (found,) = ask([{"command": "follow", "content": content, "rows": [2, 3]}])
    assert found == [[2], [3]]


def test_a_row_with_its_whole_content_as_key_is_followed(tmp_path: Path) -> None:
    db = Scenario()
    table = db.table("public.t", id="int4", note="text", replica_identity="full")
    with db.transaction() as tx:
        tx.insert(table, id=1, note="x" * 100_000)
        tx.insert(table, id=2, note="y")
        tx.update(table, {"id": 1}, id=3)
        tx.alter(table, add={"more": "text"})
        tx.update(table, {"id": 3}, id=4)
        tx.delete(table, id=4)
    write_capture_file(db, tmp_path / "t.jsonl")
    content = base64.b64encode((tmp_path / "t.jsonl").read_bytes()).decode()
    with CaptureFile(tmp_path / "t.jsonl") as file:
        messages = [one.message for one in file.messages()]
    assert any(UNCHANGED in one.new for one in messages if isinstance(one, Update))
    own = [2, 4, 6, 7]
    (found,) = ask([{"command": "follow", "content": content, "rows": own}])
    assert found == [own] * len(own)


def test_cells_in_binary_format_have_the_text_of_postgresql() -> None:
    texts = {
        16: ("t", "f"),
        17: ("\\x00ff", "\\x"),
        21: ("-2", "32767"),
        23: ("-2147483648", "7"),
        20: ("9007199254740993", "-1"),
        26: ("4294967295",),
        700: (
            "6643.1562",
            "0.00024414062",
            "4.2047398e+08",
            "1.2621775e-29",
            "1.1",
            "-0",
            "1e+06",
            "3.4028235e+38",
            "1e-45",
            "0.0001",
            "1e-05",
            "NaN",
        ),
        701: ("1.5", "-Infinity", "-0", "1e+15", "123456789012345", "0.1", "5e-324"),
        25: ("é", ""),
        3802: ('{"a": 1}',),
        2950: ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",),
        1082: ("1999-12-31", "2026-11-27", "0044-03-15 BC", "12026-01-01", "infinity", "-infinity"),
        1083: ("00:00:00", "23:59:59.5", "24:00:00"),
        1114: ("2026-11-27 12:00:00.5", "4713-01-01 00:00:00 BC", "infinity", "-infinity"),
        1184: ("1969-12-31 23:59:59.999999+00", "294276-12-31 23:59:59+00", "0001-12-31 00:00:00+00 BC"),
    }
    random = Random(0)
    floats = [struct.unpack(">f", random.randbytes(4))[0] for _ in range(3000)]
    floats += [number / 32 for number in random.sample(range(1 << 24), 3000)]
    texts[700] += tuple(map(format_float4, floats))
    pairs = [(text, oid) for oid, found in texts.items() for text in found]
    cells = [[encode_binary(text, oid).hex(), oid] for text, oid in pairs]
    (found,) = ask([{"command": "binary", "cells": [*cells, ["00", 23], ["00", 99999]]}])
    assert found == [*(text for text, _ in pairs), None, None]


def test_a_search_finds_values_and_not_what_is_around_them(tmp_path: Path) -> None:
    db = Scenario(binary=True)
    table = db.table("public.t", id="int4 key", born="date", note="text")
    with db.transaction() as tx:
        tx.insert(table, id=25, born="1999-12-31", note="BÄR")
        tx.insert(table, id=7, born="2026-01-01", note="")
    write_capture_file(db, tmp_path / "t.jsonl")
    content = base64.b64encode((tmp_path / "t.jsonl").read_bytes()).decode()
    with CaptureFile(tmp_path / "t.jsonl") as file:
        xid = next(one.message.xid for one in file.messages() if isinstance(one.message, Begin))
    texts = ["bär", "1999-12", "25", "I", f"xid {xid}", str(xid), "23"]
    (found,) = ask([{"command": "search", "content": content, "texts": texts}])
    assert found == [[2], [2], [2], [1], [0], [0], []]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "text: no message of logical replication is in it"),
        (b"\x89PNG\r\n", "the first bytes, 89 50 4e 47, begin no known format"),
        (
            b" 0/1 | 7 | \\x4200\n 0/2 | 7 | \\x430\n",
            "line 2: an odd number of hexadecimal digits: 0/2 | 7 | \\x430",
        ),
        (b"b'B\\x0'\n", "line 1: no byte has this escape: b'B\\x0'"),
        (b"b'B\\x00\n", "line 1: no quote ends the text: b'B\\x00"),
        (b"B\\q\n", "line 1: no byte has this escape: B\\q"),
        ("B\\x00č\n".encode(), "line 1: a character that is no byte: B\\x00č"),
        (b"hello world\n", "line 1: neither hexadecimal digits nor base64: hello world"),
        (
            gzip.compress(b'{"proto_version": 1}\n{"data": "42', mtime=0)[:-8],
            "the file is not valid gzip, or ends too early",
        ),
        (b"\x1f\x8b\x08\0", "the file is not valid gzip, or ends too early"),
        (b"42 0\n", "line 1: an odd number of hexadecimal digits: 42 0"),
        (b"QgA=\nno message!\n", "line 2: neither hexadecimal digits nor base64: no message!"),
        (b"{}\n", "line 1: no header: proto_version is missing"),
        (
            b'{"proto_version": %d}\n' % UNKNOWN,
            f"line 1: proto_version {UNKNOWN} is not known; the versions are {KNOWN}",
        ),
        (b'{"proto_version": %d}\n{"data": "4"}\n' % OLDEST, "line 2: data is not hex"),
        (b"E\0\n", "byte 0: no newline ends the Stream Stop"),
    ],
)
def test_errors_of_files(content: bytes, error: str) -> None:
    (answer,) = ask([open_file(content)], errors=True)
    assert answer == {"error": error, "kind": "FileError"}
