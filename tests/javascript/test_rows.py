"""`fromJson` is the inverse of `toJson`, and `toRow` has values of JavaScript by column name."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from logicalrep.jsonlines import to_json
from tests.codec.cases import CASES
from tests.javascript.peer import Peer
from tests.versions import KNOWN

TYPES = {
    "bool": 16,
    "bytea": 17,
    "int8": 20,
    "int2": 21,
    "int4": 23,
    "text": 25,
    "float8": 701,
    "numeric": 1700,
}


def test_from_json_is_the_inverse_of_to_json(peer: Peer) -> None:
    lines = [json.dumps(to_json(case.message)) for case in CASES]
    again = peer.ask_all(("evaluate", f"toJson(fromJson({json.dumps(line)}))") for line in lines)
    for line, text in zip(lines, again, strict=True):
        assert json.loads(text) == json.loads(line)


def test_integers_and_times_of_64_bits_are_not_rounded(peer: Peer) -> None:
    random = Random(0)
    for _ in range(50):
        time = random.randrange(-(1 << 63), 1 << 63)
        text = json.dumps({"type": "PrimaryStatusRequest", "send_time": time})
        assert peer.ask("evaluate", f"fromJson({json.dumps(text)}).send_time") == str(time)
    text = json.dumps(
        {"type": "Begin", "final_lsn": "FFFFFFFF/FFFFFFFF", "xid": 7, "commit_time": MICROSECOND}
    )
    found = peer.ask("evaluate", f"fromJson({json.dumps(text)})")
    assert found == {"type": "Begin", "final_lsn": str((1 << 64) - 1), "commit_time": "-1", "xid": 7}


MICROSECOND = "1999-12-31T23:59:59.999999+00:00"
"""The time one microsecond before PostgreSQL's epoch."""


BEGIN = '"type":"Begin","final_lsn":"0/1","xid":7'
INSERT = '"type":"Insert","relation_oid":7'
RELATION = '"type":"Relation","oid":7,"namespace":"","name":"t","replica_identity":"d"'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "SyntaxError"),
        ("7", "expected a message with a known type"),
        ('{"type":"Nothing"}', "expected a message with a known type"),
        ('{"type":"Begin","final_lsn":"x"}', "Begin.final_lsn: expected an LSN such as 16/B374D848"),
        ('{"type":"Begin","commit_time":"now"}', "Begin.commit_time: expected a time or an integer"),
        ('{"type":"Begin","nonsense":1}', "Begin.nonsense: expected no such property"),
        ('{"type":"Insert","new":"x"}', "Insert.new: expected an array"),
        (
            '{"type":"Insert","new":[{"binary":"0"}]}',
            "Insert.new: expected binary or text_hex, in hex",
        ),
        ('{"type":"Insert","new":[{}]}', "Insert.new: expected one of binary, text_hex, unchanged"),
        (
            '{"type":"Insert","new":[{"unchanged":true,"binary":""}]}',
            "Insert.new: expected one of binary, text_hex, unchanged",
        ),
        (
            f'{{{BEGIN},"commit_time":"2026-02-30T00:00:00+00:00"}}',
            "Begin.commit_time: expected a time or an integer",
        ),
        (
            f'{{{BEGIN},"commit_time":"2026-01-01T24:00:00+00:00"}}',
            "Begin.commit_time: expected a time or an integer",
        ),
        (f'{{{BEGIN},"commit_time":"7"}}', "Begin.commit_time: expected a time or an integer"),
        (
            f'{{{BEGIN},"commit_time":"0000-01-01T00:00:00+00:00"}}',
            "Begin.commit_time: expected a time or an integer",
        ),
        ('{"type":"Begin","final_lsn":["0/1"]}', "Begin.final_lsn: expected an LSN such as 16/B374D848"),
        ('{"type":"Insert","new":[9223372036854775807]}', "Insert.new: expected no integer of this size"),
        (f'{{{BEGIN},"commit_time":""}}', "Begin.commit_time: expected a time or an integer"),
        (f'{{{BEGIN},"commit_time":"0x10"}}', "Begin.commit_time: expected a time or an integer"),
        (f"{{{BEGIN}}}", "EncodeError"),
        (f'{{{INSERT},"new":[["a"]]}}', "EncodeError"),
        (f'{{{INSERT},"new":[7]}}', "EncodeError"),
        (f'{{{RELATION},"columns":[null]}}', "Relation.columns: expected an object"),
    ],
)
def test_what_is_no_message_is_refused(peer: Peer, text: str, error: str) -> None:
    name, found, *_ = peer.ask("evaluate", f"fromJson({json.dumps(text)})")["error"]
    assert error in (name, found)


def test_rows_have_values_by_type(peer: Peer) -> None:
    cells: list[Any] = ["t", "\\x00ff", "9007199254740993", "-7", "42", "abc", "-Infinity", "1.10"]
    columns = [{"name": name, "type_oid": oid} for name, oid in TYPES.items()]
    arguments = f"{{name: 't', columns: {json.dumps(columns)}}}, {json.dumps(cells)}"
    shown = "Object.entries(row).map(([n, v]) => [n, typeof v, v instanceof Uint8Array ? [...v] : String(v)])"
    assert peer.ask("evaluate", f"((row) => {shown})(toRow({arguments}))") == [
        ["bool", "boolean", "true"],
        ["bytea", "object", [0, 255]],
        ["int8", "bigint", "9007199254740993"],
        ["int2", "number", "-7"],
        ["int4", "number", "42"],
        ["text", "string", "abc"],
        ["float8", "number", "-Infinity"],
        ["numeric", "string", "1.10"],
    ]


def test_nulls_unchanged_and_binary_cells_in_rows(peer: Peer) -> None:
    columns = json.dumps([{"name": name, "type_oid": 23} for name in ("a", "b", "__proto__")])
    row = f"toRow({{name: 't', columns: {columns}}}, [null, UNCHANGED, Uint8Array.of(1)])"
    assert peer.ask("evaluate", f"Object.entries({row}).map(([n, v]) => [n, v && [...v]])") == [
        ["a", None],
        ["__proto__", [1]],
    ]
    error = peer.ask("evaluate", f"toRow({{name: 't', columns: {columns}}}, [null])")["error"]
    assert error == ["RangeError", "t has 3 columns, the row has 1"]
    error = peer.ask("evaluate", f"toRow({{name: 't', columns: {columns}}}, null)")["error"]
    assert error == ["TypeError", "expected a row of t, found null"]


def test_times_with_another_zone_are_read(peer: Peer) -> None:
    for time in ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00Z", "2025-12-31T23:30:00.0-00:30"):
        text = json.dumps({"type": "PrimaryStatusRequest", "send_time": time})
        found = peer.ask("evaluate", f"JSON.parse(toJson(fromJson({json.dumps(text)}))).send_time")
        assert found == "2026-01-01T00:00:00+00:00"


def test_bytea_in_the_format_escape(peer: Peer) -> None:
    text = json.dumps("a\\000\\\\z\\377")
    assert peer.ask("evaluate", f"[...toValue({text}, 17)]") == [97, 0, 92, 122, 255]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('"4"', f'there is no protocol version "4"; there are {KNOWN}'),
        ("4, {twoPhase: true}", "the options are streaming and two_phase, not 'twoPhase'"),
    ],
)
def test_wrong_arguments_of_a_decoder(peer: Peer, arguments: str, error: str) -> None:
    assert peer.ask("evaluate", f"new StreamDecoder({arguments})")["error"] == ["RangeError", error]


def test_dates_beyond_the_range_are_refused(peer: Peer) -> None:
    assert peer.ask("evaluate", "toDate(0n).toISOString()") == "2000-01-01T00:00:00.000Z"
    for timestamp in ((1 << 63) - 1, -(1 << 63)):
        error = peer.ask("evaluate", f"toDate({timestamp}n)")["error"]
        assert error == ["RangeError", f"no Date has the timestamp {timestamp}"]
