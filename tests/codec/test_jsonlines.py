"""The JSON format of messages, and errors for invalid JSON."""

from __future__ import annotations

from typing import Any

import pytest

from logicalrep import messages as m
from logicalrep.errors import EncodeError
from logicalrep.jsonlines import from_json, to_json
from logicalrep.messages import UNCHANGED, Message, ReplicaIdentity
from tests.codec.cases import CASES
from tests.messages import STOP, make_column, make_relation

EXAMPLES: list[tuple[Message, dict[str, Any]]] = [
    (
        m.Begin(final_lsn=0x16_B374D848, commit_time=0, xid=7),
        {"type": "Begin", "final_lsn": "16/B374D848", "commit_time": "2000-01-01T00:00:00+00:00", "xid": 7},
    ),
    (
        m.Begin(final_lsn=0, commit_time=-(2**63), xid=7),
        {"type": "Begin", "final_lsn": "0/0", "commit_time": -(2**63), "xid": 7},
    ),
    (
        m.Insert(relation_oid=1, new=(None, UNCHANGED, "a", "", "\udcff", b"\0\xff"), xid=5),
        {
            "type": "Insert",
            "xid": 5,
            "relation_oid": 1,
            "new": [None, {"unchanged": True}, "a", "", {"text_hex": "ff"}, {"binary": "00ff"}],
        },
    ),
    (m.Delete(relation_oid=1, key=()), {"type": "Delete", "relation_oid": 1, "key": []}),
    (
        make_relation(make_column("\udcff", key=True), namespace="", identity=ReplicaIdentity.FULL),
        {
            "type": "Relation",
            "oid": 1,
            "namespace": "",
            "name": "t",
            "replica_identity": "f",
            "columns": [{"flags": 1, "name": {"text_hex": "ff"}, "type_oid": 25, "type_modifier": -1}],
        },
    ),
    (
        m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=2, prefix="p", content=b"\0"),
        {"type": "LogicalMessage", "flags": 1, "lsn": "0/2", "prefix": "p", "content": {"binary": "00"}},
    ),
    (
        m.Truncate(options=m.TruncateOption(0), relation_oids=(1, 2)),
        {"type": "Truncate", "options": 0, "relation_oids": [1, 2]},
    ),
    (STOP, {"type": "StreamStop"}),
]


@pytest.mark.parametrize(("message", "data"), EXAMPLES, ids=[type(row[0]).__name__ for row in EXAMPLES])
def test_messages_as_json(message: Message, data: dict[str, Any]) -> None:
    assert data == to_json(message)
    assert list(data) == list(to_json(message))
    assert message == from_json(data)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_case_survives_json(case: Any) -> None:
    read = from_json(to_json(case.message))
    assert case.message == read
    assert repr(case.message) == repr(read)


def test_lsns_and_times_may_be_numbers_and_times_without_time_zone_are_utc() -> None:
    expected = m.Begin(final_lsn=5, commit_time=1_000_000, xid=7)
    for time in (1_000_000, "2000-01-01T00:00:01", "2000-01-01 00:00:01Z", "2000-01-01T01:00:01+01:00"):
        assert expected == from_json({"type": "Begin", "final_lsn": 5, "commit_time": time, "xid": 7})


def begin(**changed: Any) -> dict[str, Any]:
    return {"type": "Begin", "final_lsn": "0/0", "commit_time": 0, "xid": 1} | changed


def insert(*cells: Any) -> dict[str, Any]:
    return {"type": "Insert", "relation_oid": 1, "new": list(cells)}


def relation(**changed: Any) -> dict[str, Any]:
    made = {"oid": 1, "namespace": "", "name": "t", "replica_identity": "d", "columns": []}
    return {"type": "Relation"} | made | changed


INVALID: list[tuple[Any, str]] = [
    (None, "expected an object with a type"),
    ([], "expected an object with a type"),
    ({}, "expected an object with a type"),
    ({"type": 5}, "no message has the type 5"),
    ({"type": "begin"}, "no message has the type 'begin'"),
    ({"type": "Begin"}, "Begin.final_lsn: is missing"),
    (begin(x=1), f"Begin.x: Begin has no such field; it has {', '.join(m.Begin.__struct_fields__)}"),
    ({"type": "StreamStop", "x": 1}, "StreamStop.x: StreamStop has no such field; it has none"),
    (begin(final_lsn="zz"), "Begin.final_lsn: 'zz' is not an LSN such as '16/B374D848'"),
    (
        begin(final_lsn=-1),
        "Begin.final_lsn: -1 does not fit into Int64 (XLogRecPtr), 0 to 18446744073709551615",
    ),
    (begin(commit_time="zz"), "Begin.commit_time: Invalid isoformat string: 'zz'"),
    (begin(commit_time=1.5), "Begin.commit_time: expected an int, found the float 1.5"),
    (
        begin(commit_time={}),
        "Begin.commit_time: expected an object with one of the keys binary, text_hex, unchanged; found {}",
    ),
    (begin(xid="1"), "Begin.xid: expected an int, found the str '1'"),
    (begin(xid=None), "Begin.xid: expected an int, found None"),
    (begin(xid=[1]), "Begin.xid: expected an int, found the list [1]"),
    (insert(1), "Insert.new[0]: expected None, UNCHANGED, a str or bytes, found the int 1"),
    (
        insert(None, {"x": 1}),
        "Insert.new[1]: expected an object with one of the keys binary, text_hex, unchanged; found {'x': 1}",
    ),
    (insert({"binary": "zz"}), "Insert.new[0]: binary: expected hex, found 'zz'"),
    (insert({"text_hex": 5}), "Insert.new[0]: text_hex: expected hex, found 5"),
    (insert({"unchanged": False}), "Insert.new[0]: unchanged: expected true, found False"),
    ({"type": "Insert", "relation_oid": 1, "new": "ab"}, "Insert.new: expected an array, found 'ab'"),
    ({"type": "Delete", "relation_oid": 1}, "Delete: one of key and old is needed"),
    (relation(columns=1), "Relation.columns: expected an array, found 1"),
    (relation(columns=["ab"]), "Relation.columns[0]: expected an object, found 'ab'"),
    (relation(columns=[{"flags": 1}]), "Relation.columns[0].name: is missing"),
    (
        relation(columns=[{"flag": 1}]),
        "Relation.columns[0].flag: RelationColumn has no such field; "
        f"it has {', '.join(m.RelationColumn.__struct_fields__)}",
    ),
    (relation(replica_identity="?"), "Relation.replica_identity: '?' is not a valid ReplicaIdentity"),
    (relation(name="a\0"), "Relation.name: a zero character cannot be sent in a zero-terminated string"),
    (
        {"type": "Truncate", "options": 0, "relation_oids": ["a"]},
        "Truncate.relation_oids[0]: expected an int, found the str 'a'",
    ),
    (
        {"type": "StreamAbort", "xid": 1, "subxid": 1, "abort_lsn": "0/1"},
        "StreamAbort.abort_time: is missing: abort_lsn is given, and they are sent together "
        "(streaming = parallel)",
    ),
]


@pytest.mark.parametrize(("data", "text"), INVALID, ids=[row[1] for row in INVALID])
def test_invalid_json_is_refused(data: Any, text: str) -> None:
    with pytest.raises(EncodeError) as caught:
        from_json(data)
    assert text == str(caught.value)
