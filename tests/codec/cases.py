"""Table of cases: messages as bytes, and as the objects to which the bytes decode.

The bytes are written by hand from PostgreSQL's proto.c. The cases are in the order of the spec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from logicalrep import messages as m
from logicalrep.messages import UNCHANGED, ReplicaIdentity
from logicalrep.versions import CODECS, OPTIONS
from tests.messages import make_column, make_relation
from tests.versions import CAPTURED


def since(option: str, value: str) -> tuple[int, ...]:
    """Return the protocol versions with captures in which a stream option can have a value."""
    return tuple(version for version in CAPTURED if version >= OPTIONS[option][value].proto_version)


ALL = CAPTURED
STREAMED = since("streaming", "on")
TWO_PHASE = since("two_phase", "on")
PARALLEL = since("streaming", "parallel")
ENVELOPE = ()
STREAMING: tuple[m.Streaming, ...] = get_args(m.Streaming)

XID = 3_000_000_000  # above 2**31: xids and OIDs are unsigned
OID = 4_294_967_294
LSN = 0x16_B374D848
MAX_LSN = 2**64 - 1
TIME = 846_763_494_863_424  # 2026-10-31
NEGATIVE, FIRST, LAST = -1, -(2**63), 2**63 - 1

CONTEXTS: dict[int, tuple[tuple[bool, m.Streaming], ...]] = {
    version: tuple(
        (in_stream, streaming)
        for streaming in STREAMING
        if OPTIONS["streaming"][streaming].proto_version <= version
        for in_stream in (False, True)[: 1 if streaming == "off" else 2]
    )
    for version in CODECS
}
"""Pairs of `in_stream` and `streaming` with which a codec may be called, by protocol version."""


@dataclass(frozen=True)
class Case:
    """A message as an object and as bytes."""

    name: str
    hex: str
    message: m.Message
    versions: tuple[int, ...] = ALL
    """Protocol versions in which the bytes encode this message; empty for envelopes."""
    where: Literal["anywhere", "outside", "inside"] = "anywhere"
    """Where the bytes decode to this message: inside stream blocks, outside, or both (`anywhere`)."""
    streaming: tuple[m.Streaming, ...] = ("off", "on", "parallel")
    """Values of the option `streaming` with which the bytes decode to this message."""

    @property
    def bytes(self) -> bytes:
        return bytes.fromhex(self.hex)

    def applies_in(self, in_stream: bool, streaming: m.Streaming) -> bool:
        return self.where != ("outside" if in_stream else "inside") and streaming in self.streaming


CASES = (
    Case(
        "begin",
        "42 00000016b374d848 000302207d51f240 b2d05e00",
        m.Begin(final_lsn=LSN, commit_time=TIME, xid=XID),
    ),
    Case(
        "begin, greatest LSN and xid, first timestamp",
        "42 ffffffffffffffff 8000000000000000 ffffffff",
        m.Begin(final_lsn=MAX_LSN, commit_time=FIRST, xid=2**32 - 1),
    ),
    Case(
        "begin, zeros and last timestamp",
        "42 0000000000000000 7fffffffffffffff 00000000",
        m.Begin(final_lsn=0, commit_time=LAST, xid=0),
    ),
    Case(
        "message, transactional",
        "4d 01 00000016b374d848 70726500 00000003 00ff0a",
        m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=LSN, prefix="pre", content=b"\x00\xff\n"),
        where="outside",
    ),
    Case(
        "message, not transactional, empty",
        "4d 00 0000000000000000 00 00000000",
        m.LogicalMessage(flags=m.MessageFlag(0), lsn=0, prefix="", content=b""),
        where="outside",
    ),
    Case(
        "message in a stream",
        "4d b2d05e00 01 00000016b374d848 70726500 00000001 58",
        m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=LSN, prefix="pre", content=b"X", xid=XID),
        STREAMED,
        "inside",
    ),
    Case(
        "commit",
        "43 00 00000016b374d848 00000016b374d878 000302207d51f240",
        m.Commit(commit_lsn=LSN, end_lsn=LSN + 0x30, commit_time=TIME),
    ),
    Case(
        "commit, before 2000",
        "43 00 ffffffffffffffff ffffffffffffffff ffffffffffffffff",
        m.Commit(commit_lsn=MAX_LSN, end_lsn=MAX_LSN, commit_time=NEGATIVE),
    ),
    Case("origin", "4f 00000016b374d848 6e6f64655f6100", m.Origin(origin_lsn=LSN, name="node_a")),
    Case("origin, as in a stream", "4f 0000000000000000 00", m.Origin(origin_lsn=0, name="")),
    Case(
        "relation",
        "52 fffffffe 7075626c696300 7400 64 0002 01 696400 00000017 ffffffff 00 c3a400 fffffffe 7fffffff",
        make_relation(make_column("id", 23, key=True), make_column("ä", OID, 2**31 - 1), oid=OID),
        where="outside",
    ),
    Case(
        "relation of pg_catalog, without columns",
        "52 00000001 00 7400 6e 0000",
        make_relation(namespace="", identity=ReplicaIdentity.NOTHING),
        where="outside",
    ),
    Case(
        "relation, names that are not UTF-8, least type modifier",
        "52 00000001 e900 63616600 66 0001 01 ffe900 00000000 80000000",
        make_relation(
            make_column("\udcff\udce9", 0, -(2**31), key=True),
            namespace="\udce9",
            name="caf",
            identity=ReplicaIdentity.FULL,
        ),
        where="outside",
    ),
    Case(
        "relation in a stream",
        "52 b2d05e00 fffffffe 7075626c696300 7400 69 0001 01 696400 00000017 00000014",
        make_relation(make_column("id", 23, 20, key=True), oid=OID, identity=ReplicaIdentity.INDEX, xid=XID),
        STREAMED,
        "inside",
    ),
    Case(
        "type",
        "59 fffffffe 7075626c696300 6d6f6f6400",
        m.Type(oid=OID, namespace="public", name="mood"),
        where="outside",
    ),
    Case(
        "type of pg_catalog in a stream",
        "59 00000000 00004e20 00 696e743400",
        m.Type(oid=20_000, namespace="", name="int4", xid=0),
        STREAMED,
        "inside",
    ),
    Case(
        "insert, every form of a cell",
        "49 fffffffe 4e 0006 6e 75 74 00000002 3432 74 00000000 62 00000003 00ff74 62 00000000",
        m.Insert(relation_oid=OID, new=(None, UNCHANGED, "42", "", b"\x00\xfft", b"")),
        where="outside",
    ),
    Case(
        "insert, text with a zero character, beyond the BMP, and not UTF-8",
        "49 00000001 4e 0003 74 00000003 610062 74 00000004 f09f9098 74 00000004 636166e9",
        m.Insert(relation_oid=1, new=("a\0b", "🐘", "caf\udce9")),
        where="outside",
    ),
    Case(
        "insert, an encoded surrogate stays three bytes",
        "49 00000001 4e 0001 74 00000003 eda080",
        m.Insert(relation_oid=1, new=("\udced\udca0\udc80",)),
        where="outside",
    ),
    Case(
        "insert without columns",
        "49 00000001 4e 0000",
        m.Insert(relation_oid=1, new=()),
        where="outside",
    ),
    Case(
        "insert in a stream",
        "49 b2d05e00 fffffffe 4e 0001 74 00000001 31",
        m.Insert(relation_oid=OID, new=("1",), xid=XID),
        STREAMED,
        "inside",
    ),
    Case(
        "update",
        "55 fffffffe 4e 0002 74 00000001 31 75",
        m.Update(relation_oid=OID, new=("1", UNCHANGED)),
        where="outside",
    ),
    Case(
        "update with key",
        "55 fffffffe 4b 0002 74 00000001 30 6e 4e 0002 74 00000001 31 75",
        m.Update(relation_oid=OID, new=("1", UNCHANGED), key=("0", None)),
        where="outside",
    ),
    Case(
        "update with old row",
        "55 fffffffe 4f 0002 74 00000001 30 62 00000001 00 4e 0002 6e 6e",
        m.Update(relation_oid=OID, new=(None, None), old=("0", b"\0")),
        where="outside",
    ),
    Case(
        "update without columns, empty old row",
        "55 00000001 4f 0000 4e 0000",
        m.Update(relation_oid=1, new=(), old=()),
        where="outside",
    ),
    Case(
        "update, empty key",
        "55 00000001 4b 0000 4e 0000",
        m.Update(relation_oid=1, new=(), key=()),
        where="outside",
    ),
    Case(
        "update in a stream",
        "55 ffffffff fffffffe 4e 0001 6e",
        m.Update(relation_oid=OID, new=(None,), xid=2**32 - 1),
        STREAMED,
        "inside",
    ),
    Case(
        "update with key in a stream",
        "55 b2d05e00 fffffffe 4b 0001 74 00000001 30 4e 0001 74 00000001 31",
        m.Update(relation_oid=OID, new=("1",), xid=XID, key=("0",)),
        STREAMED,
        "inside",
    ),
    Case(
        "update with old row in a stream",
        "55 b2d05e00 fffffffe 4f 0001 74 00000001 30 4e 0001 74 00000001 31",
        m.Update(relation_oid=OID, new=("1",), xid=XID, old=("0",)),
        STREAMED,
        "inside",
    ),
    Case(
        "delete with key",
        "44 fffffffe 4b 0002 74 00000001 31 6e",
        m.Delete(relation_oid=OID, key=("1", None)),
        where="outside",
    ),
    Case(
        "delete with old row",
        "44 fffffffe 4f 0002 74 00000001 31 6e",
        m.Delete(relation_oid=OID, old=("1", None)),
        where="outside",
    ),
    Case(
        "delete, empty old row",
        "44 00000001 4f 0000",
        m.Delete(relation_oid=1, old=()),
        where="outside",
    ),
    Case(
        "delete, empty key",
        "44 00000001 4b 0000",
        m.Delete(relation_oid=1, key=()),
        where="outside",
    ),
    Case(
        "delete with key in a stream",
        "44 b2d05e00 fffffffe 4b 0001 62 00000004 0000002a",
        m.Delete(relation_oid=OID, xid=XID, key=(b"\0\0\0*",)),
        STREAMED,
        "inside",
    ),
    Case(
        "delete with old row in a stream",
        "44 b2d05e00 fffffffe 4f 0001 6e",
        m.Delete(relation_oid=OID, xid=XID, old=(None,)),
        STREAMED,
        "inside",
    ),
    Case(
        "truncate",
        "54 00000002 00 fffffffe 00000001",
        m.Truncate(options=m.TruncateOption(0), relation_oids=(OID, 1)),
        where="outside",
    ),
    Case(
        "truncate cascade restart identity",
        "54 00000001 03 ffffffff",
        m.Truncate(options=m.TruncateOption(3), relation_oids=(2**32 - 1,)),
        where="outside",
    ),
    Case(
        "truncate of nothing",
        "54 00000000 02",
        m.Truncate(options=m.TruncateOption(2), relation_oids=()),
        where="outside",
    ),
    Case(
        "truncate in a stream",
        "54 b2d05e00 00000001 01 fffffffe",
        m.Truncate(options=m.TruncateOption.CASCADE, relation_oids=(OID,), xid=XID),
        STREAMED,
        "inside",
    ),
    Case(
        "stream start, first segment",
        "53 b2d05e00 01",
        m.StreamStart(xid=XID, first_stream_segment=True),
        STREAMED,
    ),
    Case(
        "stream start, later segment",
        "53 00000003 00",
        m.StreamStart(xid=3, first_stream_segment=False),
        STREAMED,
    ),
    Case(
        "stream stop",
        "45",
        m.StreamStop(),
        STREAMED,
    ),
    Case(
        "stream commit",
        "63 b2d05e00 00 00000016b374d848 00000016b374d878 000302207d51f240",
        m.StreamCommit(xid=XID, commit_lsn=LSN, end_lsn=LSN + 0x30, commit_time=TIME),
        STREAMED,
    ),
    Case(
        "stream abort",
        "41 b2d05e00 b2d05e01",
        m.StreamAbort(xid=XID, subxid=XID + 1),
        STREAMED,
        streaming=("off", "on"),
    ),
    Case(
        "stream abort, parallel",
        "41 b2d05e00 b2d05e00 00000016b374d848 ffffffffffffffff",
        m.StreamAbort(xid=XID, subxid=XID, abort_lsn=LSN, abort_time=NEGATIVE),
        PARALLEL,
        streaming=("parallel",),
    ),
    Case(
        "stream abort, parallel, zeros",
        "41 00000000 00000000 0000000000000000 0000000000000000",
        m.StreamAbort(xid=0, subxid=0, abort_lsn=0, abort_time=0),
        PARALLEL,
        streaming=("parallel",),
    ),
    Case(
        "begin prepare",
        "62 00000016b374d848 00000016b374d878 000302207d51f240 b2d05e00 6700",
        m.BeginPrepare(prepare_lsn=LSN, end_lsn=LSN + 0x30, prepare_time=TIME, xid=XID, gid="g"),
        TWO_PHASE,
    ),
    Case(
        "prepare",
        "50 00 00000016b374d848 00000016b374d878 000302207d51f240 b2d05e00 6700",
        m.Prepare(prepare_lsn=LSN, end_lsn=LSN + 0x30, prepare_time=TIME, xid=XID, gid="g"),
        TWO_PHASE,
    ),
    Case(
        "prepare, gid that is not UTF-8",
        "50 00 0000000000000000 0000000000000000 8000000000000000 00000000 67ff00",
        m.Prepare(prepare_lsn=0, end_lsn=0, prepare_time=FIRST, xid=0, gid="g\udcff"),
        TWO_PHASE,
    ),
    Case(
        "commit prepared",
        "4b 00 00000016b374d848 00000016b374d878 000302207d51f240 b2d05e00 6700",
        m.CommitPrepared(commit_lsn=LSN, end_lsn=LSN + 0x30, commit_time=TIME, xid=XID, gid="g"),
        TWO_PHASE,
    ),
    Case(
        "rollback prepared",
        "72 00 00000016b374d848 00000016b374d878 000302207d51f240 7fffffffffffffff b2d05e00 6700",
        m.RollbackPrepared(
            prepare_end_lsn=LSN,
            rollback_end_lsn=LSN + 0x30,
            prepare_time=TIME,
            rollback_time=LAST,
            xid=XID,
            gid="g",
        ),
        TWO_PHASE,
    ),
    Case(
        "stream prepare",
        "70 00 00000016b374d848 00000016b374d878 000302207d51f240 b2d05e00 00",
        m.StreamPrepare(prepare_lsn=LSN, end_lsn=LSN + 0x30, prepare_time=TIME, xid=XID, gid=""),
        TWO_PHASE,
    ),
    Case(
        "XLogData",
        "77 00000016b374d848 00000016b374d848 000302207d51f240 4500",
        m.XLogData(wal_start=LSN, wal_end=LSN, send_time=TIME, data=b"E\0"),
        ENVELOPE,
    ),
    Case(
        "XLogData without data",
        "77 0000000000000000 ffffffffffffffff ffffffffffffffff",
        m.XLogData(wal_start=0, wal_end=MAX_LSN, send_time=NEGATIVE, data=b""),
        ENVELOPE,
    ),
    Case(
        "primary keepalive",
        "6b 00000016b374d848 000302207d51f240 01",
        m.PrimaryKeepalive(wal_end=LSN, send_time=TIME, reply_requested=True),
        ENVELOPE,
    ),
    Case(
        "primary status update",
        "73 00000016b374d848 00000001b2d05e00 ffffffffffffffff 000302207d51f240",
        m.PrimaryStatusUpdate(wal_end=LSN, oldest_xid=2**32 + XID, next_xid=2**64 - 1, send_time=TIME),
        ENVELOPE,
    ),
    Case(
        "standby status update",
        "72 00000016b374d848 00000016b374d847 0000000000000000 8000000000000000 00",
        m.StandbyStatusUpdate(
            written_lsn=LSN, flushed_lsn=LSN - 1, applied_lsn=0, send_time=FIRST, reply_requested=False
        ),
        ENVELOPE,
    ),
    Case(
        "hot standby feedback",
        "68 000302207d51f240 b2d05e00 00000001 00000000 ffffffff",
        m.HotStandbyFeedback(
            send_time=TIME, xmin=XID, xmin_epoch=1, catalog_xmin=0, catalog_xmin_epoch=2**32 - 1
        ),
        ENVELOPE,
    ),
    Case(
        "primary status request",
        "70 000302207d51f240",
        m.PrimaryStatusRequest(send_time=TIME),
        ENVELOPE,
    ),
)

FIRST_VERSION = {
    m.StreamStart: (2, "Stream Start"),
    m.StreamStop: (2, "Stream Stop"),
    m.StreamCommit: (2, "Stream Commit"),
    m.StreamAbort: (2, "Stream Abort"),
    m.BeginPrepare: (3, "Begin Prepare"),
    m.Prepare: (3, "Prepare"),
    m.CommitPrepared: (3, "Commit Prepared"),
    m.RollbackPrepared: (3, "Rollback Prepared"),
    m.StreamPrepare: (3, "Stream Prepare"),
}
"""First protocol version and PostgreSQL's name of each message that version 1 lacks, by message class."""
