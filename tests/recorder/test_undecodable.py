"""The recorder decodes every message completely before acknowledging the message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from logicalrep.errors import DecodeError
from logicalrep.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Truncate,
    TruncateOption,
    XLogData,
)
from logicalrep.v2 import encode
from tests.messages import make_column, make_relation
from tests.recorder.lab import wait_until
from tests.recorder.test_session import at_work, transaction

RELATION = make_relation(make_column("id", 23, key=True), oid=16384)
INSERT = encode(Insert(relation_oid=16384, new=("12345",)))

UNDECODABLE = {
    "one flipped bit in the length of a cell": (
        INSERT[:11] + bytes([INSERT[11] ^ 0x10]) + INSERT[12:],
        r"Insert\.new\[0\]",
    ),
    "bytes behind the message": (INSERT + b"\0", "the message ends here, 1 more bytes follow"),
    "an unknown tag": (b"x" + INSERT[1:], "tag"),
    "a relation that was not described": (
        encode(Insert(relation_oid=16385, new=("1",))),
        "no Relation message",
    ),
    "another number of columns": (encode(Delete(relation_oid=16384, key=("1", "2"))), "key has 2 columns"),
    "a truncate of an unknown relation": (
        encode(Truncate(options=TruncateOption(0), relation_oids=(16384, 16385))),
        "no Relation message",
    ),
}


def xlog(lsn: int, *data: bytes) -> list[Message]:
    return [XLogData(wal_start=lsn, wal_end=lsn, send_time=0, data=one) for one in data]


@pytest.mark.parametrize("fault", UNDECODABLE)
def test_an_undecodable_message_ends_the_run_unacknowledged(tmp_path: Path, fault: str) -> None:
    data, expected = UNDECODABLE[fault]
    with at_work(tmp_path) as lab:
        lab.connection.say(*transaction(200))
        wait_until(lambda: lab.heard[-1:] == [200])
        begin = [encode(Begin(final_lsn=0x2EE, commit_time=0, xid=8)), encode(RELATION), INSERT]
        end = encode(Commit(commit_lsn=0x2EE, end_lsn=0x300, commit_time=0))
        lab.connection.say(*xlog(0x2E0, *begin, data, end))
        wait_until(lambda: not lab.thread.is_alive())
    assert isinstance(lab.failure, DecodeError)
    assert re.search(expected, str(lab.failure)), lab.failure
    assert "this is message 5 of the session, received at LSN 0/2E0. This message and later ones" in str(
        lab.failure
    )
    assert max(lab.heard) == 200
    assert len(lab.stored) == 1


def test_the_error_keeps_message_field_and_offset(tmp_path: Path) -> None:
    data, _ = UNDECODABLE["one flipped bit in the length of a cell"]
    with at_work(tmp_path) as lab:
        lab.connection.say(
            *xlog(0x2E0, encode(Begin(final_lsn=0x2EE, commit_time=0, xid=8)), encode(RELATION), data)
        )
        wait_until(lambda: not lab.thread.is_alive())
    assert isinstance(lab.failure, DecodeError)
    assert (lab.failure.message, lab.failure.field) == ("Insert", "new[0]")
    assert lab.failure.offset > 0
