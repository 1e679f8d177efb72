"""Error messages name the message, the field, the position and the expected value.

The exact texts of these messages are promised.
"""

from __future__ import annotations

import pickle
import re
from typing import Any, cast

import pytest
from msgspec.structs import replace

from logicalrep import envelope, messages as m, v2, v3, v4
from logicalrep.errors import DecodeError, EncodeError, LogicalrepError, RecordingError, StreamError
from logicalrep.versions import CODECS, Codec
from tests.messages import STOP, UNKNOWN_FLAG, make_column, make_relation, start_block, unknown_bit
from tests.versions import PLAIN, needs_version

v1: Any = CODECS.get(1)
"""The codec of version 1, or None if the spec no longer has it: cases of None are left out."""

pytestmark = pytest.mark.usefixtures("both")

BEGIN = m.Begin(final_lsn=1, commit_time=2, xid=3)
COLUMN = make_column("a", 23)
RELATION = make_relation(COLUMN)
INSERT = m.Insert(relation_oid=1, new=("a",))
UNKNOWN_MESSAGE_FLAG = unknown_bit(m.MessageFlag)
LOGICAL = m.LogicalMessage(flags=m.MessageFlag(0), lsn=0, prefix="", content=b"")


def changed(message: Any, **fields: Any) -> Any:
    """Return a copy of the message with other field values, which may have wrong types."""
    return replace(message, **fields)


ENCODE: list[tuple[Any, ...]] = [
    # message, text, and the codec if not v4
    # values that Python would accept but a decoder never returns
    (
        m.Truncate(options=m.TruncateOption(0), relation_oids=cast(Any, b"ab")),
        "Truncate.relation_oids: expected a tuple, found the bytes b'ab'",
    ),
    (changed(RELATION, columns={}), "Relation.columns: expected a tuple, found the dict {}"),
    (
        changed(RELATION, columns=(STOP,)),
        "Relation.columns[0]: expected a RelationColumn, found the StreamStop StreamStop()",
    ),
    (
        m.Origin(origin_lsn=1, name="\udcc3\udca9"),
        "Origin.name: surrogates stand for bytes that are valid UTF-8",
    ),
    (
        m.Insert(relation_oid=1, new=("\udcc3\udca9",)),
        "Insert.new[0]: surrogates stand for bytes that are valid UTF-8",
    ),
    (
        changed(BEGIN, xid=10**5000),
        "Begin.xid: that cannot be shown does not fit into Int32 (TransactionId), 0 to 4294967295",
    ),
    # containers and bytes
    (changed(INSERT, new="ab"), "Insert.new: expected a tuple of cells, found the str 'ab'"),
    (
        changed(LOGICAL, content=bytearray(b"ab")),
        "LogicalMessage.content: expected bytes, found the bytearray bytearray(b'ab')",
    ),
    (
        m.XLogData(wal_start=0, wal_end=0, send_time=0, data=changed(LOGICAL, content="a").content),
        "XLogData.data: expected bytes, found the str 'a'",
        envelope,
    ),
    # integers
    (changed(BEGIN, xid="3"), "Begin.xid: expected an int, found the str '3'"),
    (changed(BEGIN, xid=3.0), "Begin.xid: expected an int, found the float 3.0"),
    (changed(BEGIN, xid=None), "Begin.xid: expected an int, found None"),
    (changed(BEGIN, xid=-1), "Begin.xid: -1 does not fit into Int32 (TransactionId), 0 to 4294967295"),
    (
        changed(BEGIN, xid=2**32),
        "Begin.xid: 4294967296 does not fit into Int32 (TransactionId), 0 to 4294967295",
    ),
    (
        changed(BEGIN, final_lsn=2**64),
        "Begin.final_lsn: 18446744073709551616 does not fit into Int64 (XLogRecPtr), "
        "0 to 18446744073709551615",
    ),
    (
        changed(BEGIN, commit_time=2**63),
        "Begin.commit_time: 9223372036854775808 does not fit into Int64 (TimestampTz), "
        "-9223372036854775808 to 9223372036854775807",
    ),
    (
        changed(RELATION, columns=(COLUMN, changed(COLUMN, type_modifier=2**31))),
        "Relation.columns[1].type_modifier: 2147483648 does not fit into Int32, -2147483648 to 2147483647",
    ),
    (changed(INSERT, xid=-1), "Insert.xid: -1 does not fit into Int32 (TransactionId), 0 to 4294967295"),
    # bool, enum, flags
    (
        start_block(1, first=changed(BEGIN)),
        "StreamStart.first_stream_segment: expected True or False, found Begin(",
    ),
    (
        changed(start_block(1), first_stream_segment=2),
        "StreamStart.first_stream_segment: expected True or False, found 2",
    ),
    (
        changed(m.PrimaryKeepalive(wal_end=1, send_time=2, reply_requested=True), reply_requested=None),
        "PrimaryKeepalive.reply_requested: expected True or False, found None",
        envelope,
    ),
    (
        changed(RELATION, replica_identity="?"),
        "Relation.replica_identity: expected one of 'd', 'n', 'f', 'i', found '?'",
    ),
    (
        changed(RELATION, replica_identity=[]),
        "Relation.replica_identity: expected one of 'd', 'n', 'f', 'i', found []",
    ),
    (
        m.Truncate(options=m.TruncateOption(128), relation_oids=()),
        "Truncate.options: expected bits of 0x03, found 0x80",
    ),
    (
        changed(LOGICAL, flags=1 | UNKNOWN_MESSAGE_FLAG),
        f"LogicalMessage.flags: expected bits of 0x01, found {1 | UNKNOWN_MESSAGE_FLAG:#04x}",
    ),
    (
        changed(RELATION, columns=(changed(COLUMN, flags=UNKNOWN_FLAG),)),
        f"Relation.columns[0].flags: expected bits of 0x01, found {UNKNOWN_FLAG:#04x}",
    ),
    (
        changed(m.Truncate(options=m.TruncateOption(0), relation_oids=()), options=-1),
        "Truncate.options: -1 does not fit into Int8, 0 to 255",
    ),
    # text and bytes
    (changed(RELATION, name=None), "Relation.name: expected a str, found None"),
    (changed(RELATION, name=b"t"), "Relation.name: expected a str, found the bytes b't'"),
    (
        changed(RELATION, name="a\0b"),
        "Relation.name: a zero character cannot be sent in a zero-terminated string",
    ),
    (changed(RELATION, name="\ud800"), r"Relation.name: the character '\ud800' stands for no byte"),
    (changed(INSERT, new=(None, "\udc7f")), r"Insert.new[1]: the character '\udc7f' stands for no byte"),
    (changed(LOGICAL, content="x"), "LogicalMessage.content: expected bytes, found the str 'x'"),
    (
        changed(m.XLogData(wal_start=1, wal_end=2, send_time=3, data=b""), data=None),
        "XLogData.data: expected bytes, found None",
        envelope,
    ),
    # tuples and lists
    (changed(INSERT, new=None), "Insert.new: expected a tuple of cells, found None"),
    (
        changed(INSERT, new=("a", 1)),
        "Insert.new[1]: expected None, UNCHANGED, a str or bytes, found the int 1",
    ),
    (
        changed(INSERT, new=(None,) * 65_536),
        "Insert.new: 65536 columns do not fit into Int16, the count before them",
    ),
    (
        changed(RELATION, columns=(COLUMN,) * 65_536),
        "Relation.columns: 65536 do not fit into Int16, the count before it",
    ),
    (changed(RELATION, columns=None), "Relation.columns: expected a tuple, found None"),
    (changed(RELATION, columns=("a",)), "Relation.columns[0]: expected a RelationColumn, found the str 'a'"),
    (
        m.Truncate(options=m.TruncateOption(0), relation_oids=(1, -1)),
        "Truncate.relation_oids[1]: -1 does not fit into Int32 (Oid), 0 to 4294967295",
    ),
    (
        changed(m.Truncate(options=m.TruncateOption(0), relation_oids=()), relation_oids=1),
        "Truncate.relation_oids: expected a tuple, found the int 1",
    ),
    # fields that depend on each other
    (m.Update(relation_oid=1, new=(), key=(), old=()), "Update.old: cannot be sent together with key"),
    (m.Delete(relation_oid=1, key=(), old=()), "Delete.old: cannot be sent together with key"),
    (m.Delete(relation_oid=1), "Delete: one of key and old is needed"),
    (
        m.StreamAbort(xid=1, subxid=2, abort_lsn=3),
        "StreamAbort.abort_time: is missing: abort_lsn is given, and they are sent together "
        "(streaming = parallel)",
    ),
    (
        m.StreamAbort(xid=1, subxid=2, abort_time=3),
        "StreamAbort.abort_lsn: is missing: abort_time is given, and they are sent together "
        "(streaming = parallel)",
    ),
    # messages and fields of other versions and protocols
    (changed(INSERT, xid=0), "Insert.xid: protocol version 1 has no such field, so it must be None", v1),
    (
        changed(LOGICAL, xid=1),
        "LogicalMessage.xid: protocol version 1 has no such field, so it must be None",
        v1,
    ),
    (
        m.StreamAbort(xid=1, subxid=2, abort_lsn=3, abort_time=4),
        "StreamAbort.abort_lsn: protocol version 3 has no such field, so it must be None",
        v3,
    ),
    (
        m.StreamAbort(xid=1, subxid=2, abort_time=4),
        "StreamAbort.abort_time: protocol version 2 has no such field, so it must be None",
        v2,
    ),
    (STOP, "protocol version 1 has no message StreamStop: it came with version 2", v1),
    (
        m.Prepare(prepare_lsn=1, end_lsn=2, prepare_time=3, xid=4, gid="g"),
        "protocol version 2 has no message Prepare: it came with version 3",
        v2,
    ),
    (
        m.XLogData(wal_start=1, wal_end=2, send_time=3, data=b""),
        "protocol version 4 has no message XLogData: "
        "logicalrep.envelope writes the messages of the replication protocol",
    ),
    (
        BEGIN,
        "the replication protocol has no message Begin: "
        "it travels inside XLogData, and the codecs of the protocol versions write it",
        envelope,
    ),
]


ENCODE = [row for row in ENCODE if None not in row[2:]]


@pytest.mark.parametrize("row", ENCODE, ids=[row[1] for row in ENCODE])
def test_encode_error_names_message_and_field(row: tuple[Any, ...]) -> None:
    message, text, codec = row if len(row) == 3 else (*row, v4)
    with pytest.raises(EncodeError) as caught:
        codec.encode(message)
    assert text == (str(caught.value)[: len(text)] if text.endswith("(") else str(caught.value))
    assert type(message).__name__ == caught.value.message
    where = text.split(": ")[0]
    named = where.split(".", 1)[1] if where.startswith(f"{caught.value.message}.") else None
    assert named == caught.value.field
    assert isinstance(caught.value, LogicalrepError)
    assert caught.value.__suppress_context__  # the internal error is of no use to users


DECODE: list[tuple[Any, ...]] = [
    # codec, hex, text, and where the message stands if not outside of stream blocks: in_stream, streaming
    (v4, "", "no bytes: a message has at least its tag"),
    (v4, "5a", "protocol version 4 has no message with the tag 'Z'"),
    (v4, "00", "protocol version 4 has no message with the tag 0x00"),
    (v4, "20", "protocol version 4 has no message with the tag 0x20"),
    (
        v4,
        "77 00",
        "protocol version 4 has no message with the tag 'w'; it is the tag of XLogData: "
        "decode that with logicalrep.envelope, then its data",
    ),
    (envelope, "42", "the replication protocol has no message with the tag 'B'"),
    (v1, "45", "protocol version 1 has no Stream Stop (tag 'E'): it came with version 2"),
    (
        v1,
        "62",
        "protocol version 1 has no Begin Prepare (tag 'b'): it came with version 3. Servers send it all the "
        "same where the slot has two_phase set, whatever the client asked for: read such a stream with "
        "StreamDecoder(1, two_phase=True)",
    ),
    (
        v2,
        "72",
        "protocol version 2 has no Rollback Prepared (tag 'r'): it came with version 3. Servers send it all "
        "the same where the slot has two_phase set, whatever the client asked for: read such a stream with "
        "StreamDecoder(2, two_phase=True)",
        True,
        "on",
    ),
    (
        PLAIN,
        "42 0000000000000001 00000000",
        "Begin.commit_time at byte 9: expected 8 bytes of Int64 (TimestampTz), found 4",
    ),
    (
        PLAIN,
        "42 0000000000000001 0000000000000002 00000003 00",
        "Begin at byte 21: the message ends here, 1 more bytes follow",
    ),
    (
        v4,
        "41 00000001 00000002 0000000000000003 0000000000000004",
        "StreamAbort at byte 9: the message ends here, 16 more bytes follow "
        "(abort_lsn and abort_time come only with streaming = parallel)",
        False,
        "on",
    ),
    (
        v4,
        "41 00000001 00000002",
        "StreamAbort.abort_lsn at byte 9: expected 8 bytes of Int64 (XLogRecPtr), found 0",
        False,
        "parallel",
    ),
    (
        PLAIN,
        "43 01 0000000000000001 0000000000000002 0000000000000003",
        "Commit.flags at byte 1: expected 0, found 1",
    ),
    (
        v2,
        "53 00000001 02",
        "StreamStart.first_stream_segment at byte 5: expected 0 or 1, found 2",
        False,
        "on",
    ),
    (
        PLAIN,
        "52 00000001 00 7400 3f 0000",
        "Relation.replica_identity at byte 8: expected one of 'd', 'n', 'f', 'i', found '?'",
    ),
    (
        PLAIN,
        f"52 00000001 00 7400 64 0002 01 6100 00000017 ffffffff {UNKNOWN_FLAG:02x} 6200 00000017 ffffffff",
        f"Relation.columns[1].flags at byte 22: expected bits of 0x01, found {UNKNOWN_FLAG:#04x}",
    ),
    (PLAIN, "52 00000001 70", "Relation.namespace at byte 5: no zero byte ends this string"),
    (PLAIN, "54 00000000 80", "Truncate.options at byte 5: expected bits of 0x03, found 0x80"),
    (
        PLAIN,
        "54 ffffffff 00 00000001",
        "Truncate.relation_oids[1] at byte 10: expected 4 bytes of Int32 (Oid), found 0",
    ),
    (
        PLAIN,
        "4d 00 0000000000000001 00 00000003 6162",
        "LogicalMessage.content at byte 15: expected 3 bytes of content, found 2",
    ),
    (PLAIN, "49 00000001 4b 0000", "Insert.new.tag at byte 5: expected 'N', found 'K'"),
    (
        PLAIN,
        "49 00000001 4e 0002 6e 78",
        "Insert.new[1] at byte 9: expected one of 'n', 'u', 't', 'b', found 'x'",
    ),
    (
        v2,
        "49 00000005 00000001 4e 0001 74 ffffffff 61",
        "Insert.new[0] at byte 17: expected 4294967295 bytes of text, found 1",
        True,
        "on",
    ),
    (PLAIN, "44 00000001 4e 0000", "Delete.key|old at byte 5: expected 'K' or 'O', found 'N'"),
    (
        envelope,
        "6b 0000000000000001 0000000000000002 07",
        "PrimaryKeepalive.reply_requested at byte 17: expected 0 or 1, found 7",
    ),
]


DECODE = [row for row in DECODE if row[0] is not None]

PLACE = re.compile(r"(\w+)(?:\.(\S+?))? at byte (\d+)|.*version \d+ has no ([\w ]+) \(tag")
"""Where a text names message, field and byte, or a message that a version lacks."""


@pytest.mark.parametrize("row", DECODE, ids=[row[2] for row in DECODE])
def test_decode_error_names_message_field_and_offset(row: tuple[Any, ...]) -> None:
    codec, raw, text, *where = row
    with pytest.raises(DecodeError) as caught:
        codec.decode(bytes.fromhex(raw), *where)
    assert text == str(caught.value)
    message, field, offset, lacked = found.groups() if (found := PLACE.match(text)) else (None,) * 4
    expected = message or (lacked and lacked.replace(" ", "")), field, int(offset or 0)
    assert expected == (caught.value.message, caught.value.field, caught.value.offset)
    assert isinstance(caught.value, LogicalrepError)
    assert caught.value.__suppress_context__


ANY_CODEC = [*CODECS.values(), envelope]


@pytest.mark.parametrize("codec", ANY_CODEC)
@pytest.mark.parametrize("data", ["E", 69, None, [69], object()])
def test_decode_refuses_other_types_than_bytes(codec: Codec, data: Any) -> None:
    with pytest.raises(TypeError, match="a bytes-like object is required"):
        codec.decode(data)


@pytest.mark.parametrize("codec", ANY_CODEC)
@pytest.mark.parametrize(
    ("message", "there"),
    [
        ("E", "the str 'E'"),
        (b"E", "the bytes b'E'"),
        (None, "None"),
        (COLUMN, "the RelationColumn RelationColum"),
    ],
)
def test_encode_refuses_other_types_than_messages(codec: Codec, message: Any, there: str) -> None:
    with pytest.raises(TypeError, match=f"^expected a message of logicalrep.messages, found {there}"):
        codec.encode(message)


@needs_version(1)
def test_version_1_has_no_stream_blocks() -> None:
    text = "protocol version 1 has no stream blocks: in_stream must be False, streaming 'off'"
    for in_stream, streaming in ((True, "off"), (False, "on"), (True, "on"), (False, "parallel")):
        with pytest.raises(ValueError, match=f"^{text}$"):
            v1.decode(b"B", in_stream, streaming)
    with pytest.raises(ValueError, match="^" + text.removesuffix(", streaming 'off'") + "$"):
        v1.encode(INSERT, in_stream=True)


@pytest.mark.parametrize("kernel", [True, False])
def test_a_message_is_encoded_only_where_it_belongs(kernel: bool) -> None:
    encode = v4.encode if kernel else v4.pure_encode
    streamed = changed(INSERT, xid=7)
    assert encode(INSERT, in_stream=False) == encode(INSERT) != encode(streamed) == encode(streamed, True)
    assert encode(STOP, True) == encode(STOP, False)  # nothing in these bytes depends on the place
    for message, in_stream, text in (
        (INSERT, True, "is missing: all messages in stream blocks have it"),
        (streamed, False, "must be None: only messages in stream blocks have it"),
    ):
        with pytest.raises(EncodeError, match=f"^Insert.xid: {text}$") as caught:
            encode(message, in_stream)
        assert (caught.value.message, caught.value.field) == ("Insert", "xid")


def test_a_long_value_is_not_repeated_in_the_error() -> None:
    with pytest.raises(EncodeError) as caught:
        v4.encode(changed(LOGICAL, content="x" * 1_000_000))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "error",
    [
        DecodeError("text", message="Begin", field="xid", offset=7),
        StreamError.at(BEGIN, "text"),
        EncodeError("text", message="Begin", field="xid"),
        RecordingError("text"),
    ],
)
def test_errors_can_be_pickled(error: LogicalrepError) -> None:
    other = pickle.loads(pickle.dumps(error))
    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))
