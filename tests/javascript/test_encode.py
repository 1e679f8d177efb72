"""Errors of encoding and of wrong arguments in JavaScript name the message, the field and the value.

The texts are those of Python, except for the names of types and of null.
"""

from __future__ import annotations

import pytest

from tests.javascript.peer import Peer
from tests.messages import UNKNOWN_FLAG
from tests.versions import KNOWN, OLDEST, UNKNOWN

BEGIN = '{ type: "Begin", final_lsn: 1n, commit_time: 2n, xid: 3 }'
COLUMN = '{ flags: 0, name: "a", type_oid: 23, type_modifier: -1 }'
RELATION = (
    f'{{ type: "Relation", oid: 1, namespace: "", name: "t", replica_identity: "d", columns: [{COLUMN}] }}'
)
INSERT = '{ type: "Insert", relation_oid: 1, new: ["a"] }'
LOGICAL = '{ type: "LogicalMessage", flags: 0, lsn: 0n, prefix: "", content: new Uint8Array() }'
ABORT = '{ type: "StreamAbort", xid: 1, subxid: 2 }'
ZERO = "a zero character cannot be sent in a zero-terminated string"
TOGETHER = "is given, and they are sent together (streaming = parallel)"


def changed(message: str, fields: str) -> str:
    """Return a copy of a message, given as JavaScript, with other properties."""
    return f"{{ ...{message}, {fields} }}"


ENCODE = [
    # integers
    ("v4", changed(BEGIN, 'xid: "3"'), "Begin.xid: expected an integer, found the string '3'"),
    ("v4", changed(BEGIN, "xid: 3n"), "Begin.xid: expected an integer, found the bigint 3"),
    ("v4", changed(BEGIN, "xid: 3.5"), "Begin.xid: expected an integer, found the number 3.5"),
    ("v4", changed(BEGIN, "xid: NaN"), "Begin.xid: expected an integer, found the number NaN"),
    ("v4", changed(BEGIN, "xid: null"), "Begin.xid: expected an integer, found null"),
    ("v4", '{ type: "Begin" }', "Begin.final_lsn: expected a bigint, found undefined"),
    (
        "v4",
        changed(BEGIN, "xid: -1"),
        "Begin.xid: -1 does not fit into Int32 (TransactionId), 0 to 4294967295",
    ),
    (
        "v4",
        changed(BEGIN, "xid: 2 ** 32"),
        "Begin.xid: 4294967296 does not fit into Int32 (TransactionId), 0 to 4294967295",
    ),
    (
        "v4",
        changed(BEGIN, "final_lsn: 2n ** 64n"),
        "Begin.final_lsn: 18446744073709551616 does not fit into Int64 (XLogRecPtr), "
        "0 to 18446744073709551615",
    ),
    (
        "v4",
        changed(BEGIN, "commit_time: 2n ** 63n"),
        "Begin.commit_time: 9223372036854775808 does not fit into Int64 (TimestampTz), "
        "-9223372036854775808 to 9223372036854775807",
    ),
    (
        "v4",
        changed(RELATION, f"columns: [{changed(COLUMN, 'type_modifier: 2 ** 31')}]"),
        "Relation.columns[0].type_modifier: 2147483648 does not fit into Int32, -2147483648 to 2147483647",
    ),
    # booleans, enums, flags
    (
        "v4",
        '{ type: "StreamStart", xid: 1, first_stream_segment: 1 }',
        "StreamStart.first_stream_segment: expected true or false, found the number 1",
    ),
    (
        "v4",
        changed(RELATION, 'replica_identity: "?"'),
        "Relation.replica_identity: expected one of 'd', 'n', 'f', 'i', found '?'",
    ),
    (
        "v4",
        changed(RELATION, 'replica_identity: "df"'),
        "Relation.replica_identity: expected one of 'd', 'n', 'f', 'i', found 'df'",
    ),
    (
        "v4",
        changed(RELATION, "replica_identity: []"),
        "Relation.replica_identity: expected one of 'd', 'n', 'f', 'i', found the object Array",
    ),
    (
        "v4",
        '{ type: "Truncate", options: 128, relation_oids: [] }',
        "Truncate.options: expected bits of 0x03, found 0x80",
    ),
    (
        "v4",
        changed(RELATION, f"columns: [{changed(COLUMN, f'flags: {UNKNOWN_FLAG}')}]"),
        f"Relation.columns[0].flags: expected bits of 0x01, found {UNKNOWN_FLAG:#04x}",
    ),
    # text and bytes
    ("v4", changed(RELATION, "name: null"), "Relation.name: expected a string, found null"),
    ("v4", changed(RELATION, 'name: "a\\0b"'), f"Relation.name: {ZERO}"),
    ("v4", changed(RELATION, 'name: "\\ud800"'), r"Relation.name: the character '\ud800' stands for no byte"),
    (
        "v4",
        changed(INSERT, 'new: [null, "\\udc7f"]'),
        r"Insert.new[1]: the character '\udc7f' stands for no byte",
    ),
    (
        "v4",
        changed(INSERT, 'new: ["\\udcc3\\udca9"]'),
        "Insert.new[0]: surrogates stand for bytes that are valid UTF-8",
    ),
    (
        "v4",
        changed(LOGICAL, 'content: "x"'),
        "LogicalMessage.content: expected a Uint8Array, found the string 'x'",
    ),
    (
        "envelope",
        '{ type: "XLogData", wal_start: 0n, wal_end: 0n, send_time: 0n, data: [1] }',
        "XLogData.data: expected a Uint8Array, found the object Array",
    ),
    # tuples and lists
    ("v4", changed(INSERT, "new: null"), "Insert.new: expected an array of cells, found null"),
    (
        "v4",
        changed(INSERT, 'new: ["a", undefined]'),
        "Insert.new[1]: expected null, UNCHANGED, a string or a Uint8Array, found undefined",
    ),
    (
        "v4",
        changed(INSERT, "new: new Array(65536).fill(null)"),
        "Insert.new: 65536 columns do not fit into Int16, the count before them",
    ),
    (
        "v4",
        changed(RELATION, f"columns: new Array(65536).fill({COLUMN})"),
        "Relation.columns: 65536 do not fit into Int16, the count before it",
    ),
    ("v4", changed(RELATION, "columns: null"), "Relation.columns: expected an array, found null"),
    (
        "v4",
        changed(RELATION, 'columns: ["a"]'),
        "Relation.columns[0]: expected a RelationColumn, found the string 'a'",
    ),
    (
        "v4",
        '{ type: "Truncate", options: 0, relation_oids: [1, -1] }',
        "Truncate.relation_oids[1]: -1 does not fit into Int32 (Oid), 0 to 4294967295",
    ),
    # fields that depend on each other
    (
        "v4",
        '{ type: "Update", relation_oid: 1, key: [], old: [], new: [] }',
        "Update.old: cannot be sent together with key",
    ),
    ("v4", '{ type: "Delete", relation_oid: 1 }', "Delete: one of key and old is needed"),
    (
        "v4",
        changed(ABORT, "abort_lsn: 3n"),
        f"StreamAbort.abort_time: is missing: abort_lsn {TOGETHER}",
    ),
    (
        "v4",
        changed(ABORT, "abort_time: 3n"),
        f"StreamAbort.abort_lsn: is missing: abort_time {TOGETHER}",
    ),
    # messages and fields of other versions and protocols
    ("v1", changed(INSERT, "xid: 0"), "Insert.xid: protocol version 1 has no such field, so it must be null"),
    (
        "v3",
        changed(ABORT, "abort_lsn: 3n, abort_time: 4n"),
        "StreamAbort.abort_lsn: protocol version 3 has no such field, so it must be null",
    ),
    ("v1", '{ type: "StreamStop" }', "protocol version 1 has no message StreamStop: it came with version 2"),
    (
        "v4",
        '{ type: "PrimaryStatusRequest", send_time: 0n }',
        "protocol version 4 has no message PrimaryStatusRequest: "
        "logicalrep.envelope writes the messages of the replication protocol",
    ),
    (
        "envelope",
        BEGIN,
        "the replication protocol has no message Begin: "
        "it travels inside XLogData, and the codecs of the protocol versions write it",
    ),
]
ENCODE = [row for row in ENCODE if OLDEST == 1 or row[0] != "v1"]


# The place of a message is the second argument.
IN_PLACE = [
    (f"{INSERT}, true", "Insert.xid: is missing: all messages in stream blocks have it"),
    (
        f"{changed(INSERT, 'xid: 7')}, false",
        "Insert.xid: must be null: only messages in stream blocks have it",
    ),
]
ENCODE += [("v4", *row) for row in IN_PLACE]


@pytest.mark.parametrize(("codec", "message", "text"), ENCODE, ids=[text[:70] for _, _, text in ENCODE])
def test_encode_error_names_message_and_field(peer: Peer, codec: str, message: str, text: str) -> None:
    name, found, type_, field = peer.ask("evaluate", f"{codec}.encode({message})")["error"]
    assert ("EncodeError", text) == (name, found)
    where = text.split(": ")[0]
    assert field == (where.split(".", 1)[1] if where.startswith(f"{type_}.") else None)
    assert f'"{type_}"' in message


def test_messages_without_null_fields_are_encoded(peer: Peer) -> None:
    given = '{ type: "Update", relation_oid: 1, xid: undefined, key: null, new: [UNCHANGED] }'
    assert (
        peer.ask("evaluate", f'Buffer.from(v{OLDEST}.encode({given})).toString("hex")')
        == "55000000014e000175"
    )
    decoded = f'v{OLDEST}.decode(Buffer.from("55000000014e000175", "hex"))'
    assert peer.ask("evaluate", f"Object.entries({decoded})") == [
        ["type", "Update"],
        ["xid", None],
        ["relation_oid", 1],
        ["key", None],
        ["old", None],
        ["new", [None]],
    ]
    assert peer.ask("evaluate", f"{decoded}.new[0] === UNCHANGED") is True


MISUSE = [
    ('v4.decode("B")', "TypeError: expected a Uint8Array"),
    ("v4.encode(null)", "TypeError: expected a message with a known type, found null"),
    (
        'v4.encode({ type: "Nothing" })',
        "TypeError: expected a message with a known type, found the object Object",
    ),
    (
        "v1.decode(new Uint8Array([66]), true)",
        "RangeError: protocol version 1 has no stream blocks: inStream must be false, streaming 'off'",
    ),
    (
        'v4.decode(new Uint8Array([66]), true, "toString")',
        "RangeError: streaming is one of off, on, parallel, not 'toString'",
    ),
    (
        f"new StreamDecoder({UNKNOWN})",
        f"RangeError: there is no protocol version {UNKNOWN}; there are {KNOWN}",
    ),
    (
        'new StreamDecoder(3, { streaming: "parallel" })',
        "RangeError: streaming = parallel needs protocol version 4, not 3",
    ),
    (
        f"v1.encode({BEGIN}, true)",
        "RangeError: protocol version 1 has no stream blocks: inStream must be false",
    ),
    ("formatLsn(-1n)", "RangeError: an LSN is a number from 0 to 2**64 - 1, not -1"),
    ("formatLsn(2n ** 64n)", "RangeError: an LSN is a number from 0 to 2**64 - 1, not 18446744073709551616"),
    ('parseLsn("1/2/3")', "RangeError: '1/2/3' is not an LSN such as '16/B374D848'"),
]
MISUSE = [row for row in MISUSE if OLDEST == 1 or not row[0].startswith("v1.")]


@pytest.mark.parametrize(("expression", "text"), MISUSE, ids=[expression for expression, _ in MISUSE])
def test_wrong_arguments_are_refused(peer: Peer, expression: str, text: str) -> None:
    assert text == ": ".join(peer.ask("evaluate", expression)["error"])


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("formatLsn(0x16b374d848n)", "16/B374D848"),
        ("formatLsn(0n)", "0/0"),
        ("formatLsn(2n ** 64n - 1n)", "FFFFFFFF/FFFFFFFF"),
        ('parseLsn("16/b374D848")', str(0x16_B374D848)),
        ("toDate(846763494863424n)", "2026-10-31T12:04:54.863Z"),
        ("toDate(2n ** 55n + 999n)", "3141-09-15T23:10:18.964Z"),
        ("toDate(-1n)", "1999-12-31T23:59:59.999Z"),
        ("fromDate(new Date(0))", "-946684800000000"),
    ],
)
def test_lsns_and_times(peer: Peer, expression: str, value: str) -> None:
    assert peer.ask("evaluate", expression) == value


def test_relations_and_types_are_remembered(peer: Peer) -> None:
    program = f"""(() => {{
        const decoder = new StreamDecoder({OLDEST});
        decoder.decode(v{OLDEST}.encode({RELATION}));
        decoder.decode(v{OLDEST}.encode({changed(RELATION, 'name: "later"')}));
        decoder.decode(v{OLDEST}.encode({{ type: "Type", oid: 7, namespace: "", name: "mood" }}));
        return [decoder.relations.size, decoder.relations.get(1).name, decoder.types.get(7).name];
    }})()"""
    assert peer.ask("evaluate", program) == [1, "later", "mood"]
