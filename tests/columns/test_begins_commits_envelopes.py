"""Begins, Commits and envelopes encoded from columns equal those that the codecs encode one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from logicalrep import envelope, messages as m
from logicalrep.columns import (
    decode_copy_data,
    decode_xlog_data,
    encode_begins,
    encode_commits,
    encode_copy_data,
    encode_xlog_data,
)
from logicalrep.errors import EncodeError
from tests.versions import OLDEST, PLAIN

pytestmark = pytest.mark.usefixtures("with_and_without_kernel")

LSN = st.integers(0, (1 << 63) - 1)
TIME = st.integers(-(1 << 63), (1 << 63) - 1)
XID = st.integers(0, (1 << 32) - 1)


@given(rows=st.lists(st.tuples(LSN, LSN, TIME, XID), max_size=4))
def test_begins_and_commits_equal_those_of_the_codec(rows: list[tuple[int, int, int, int]]) -> None:
    lsns, ends, times, xids = (np.array([row[i] for row in rows], np.int64) for i in range(4))
    begins = [m.Begin(final_lsn=lsn, commit_time=time, xid=xid) for lsn, _, time, xid in rows]
    assert encode_begins(lsns, times, xids, proto_version=OLDEST).to_pylist() == list(
        map(PLAIN.encode, begins)
    )
    commits = [m.Commit(commit_lsn=lsn, end_lsn=end, commit_time=time) for lsn, end, time, _ in rows]
    assert encode_commits(lsns, ends, times, proto_version=OLDEST).to_pylist() == list(
        map(PLAIN.encode, commits)
    )


@given(rows=st.lists(st.tuples(LSN, TIME, st.binary(max_size=9)), max_size=4))
def test_envelopes_equal_those_of_the_codec(rows: list[tuple[int, int, bytes]]) -> None:
    lsns, data = (
        pa.array([row[0] for row in rows], pa.int64()),
        pa.array([row[2] for row in rows], pa.binary()),
    )
    wanted = [
        envelope.encode(m.XLogData(wal_start=lsn, wal_end=lsn, send_time=time, data=one))
        for lsn, time, one in rows
    ]
    made = encode_xlog_data(lsns, np.array([row[1] for row in rows], np.int64), data)
    assert made.to_pylist() == wanted
    frames = encode_copy_data(made).to_pylist()
    assert frames == [b"d" + (len(one) + 4).to_bytes(4, "big") + one for one in wanted]


@pytest.mark.parametrize(
    "values", [{"final_lsn": -1}, {"xid": -1}, {"xid": 1 << 32}, {"commit_time": 1 << 63}]
)
def test_out_of_range_numbers_are_refused_with_the_codecs_error(values: dict[str, int]) -> None:
    message = {"final_lsn": 1, "commit_time": 2, "xid": 3} | values
    with pytest.raises(EncodeError) as wanted:
        PLAIN.encode(m.Begin(**message))
    columns = [np.array([1, one], np.uint64 if one >> 63 == 1 else np.int64) for one in message.values()]
    with pytest.raises(EncodeError) as raised:
        encode_begins(*columns)
    assert str(raised.value) == str(wanted.value).replace(": ", ": row 1: ", 1)
    assert (raised.value.message, raised.value.field) == (wanted.value.message, wanted.value.field)


def test_lsns_of_64_bits_are_encoded() -> None:
    lsns, ones = np.array([(1 << 64) - 1], np.uint64), np.ones(1, np.int64)
    assert encode_begins(lsns, ones, ones).to_pylist() == [
        PLAIN.encode(m.Begin(final_lsn=(1 << 64) - 1, commit_time=1, xid=1))
    ]


def test_a_null_message_is_refused_with_the_codecs_error() -> None:
    data = pa.array([b"a", None], pa.binary())
    with pytest.raises(EncodeError) as wanted:
        envelope.encode(m.XLogData(wal_start=1, wal_end=1, send_time=1, data=None))  # type: ignore[arg-type]
    ones = np.ones(2, np.int64)
    with pytest.raises(EncodeError) as raised:
        encode_xlog_data(pa.array(ones), ones, data)
    assert str(raised.value) == str(wanted.value).replace(": ", ": row 1: ", 1)
    assert (raised.value.message, raised.value.field) == (wanted.value.message, wanted.value.field)
    with pytest.raises(EncodeError, match=r"^data: row 1: expected bytes, found None"):
        encode_copy_data(data)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths: 1, 2"):
        encode_begins(np.ones(1, np.int64), np.ones(2, np.int64), np.ones(2, np.int64))


@given(
    rows=st.lists(
        st.one_of(
            st.binary(max_size=9).map(
                lambda data: m.XLogData(wal_start=1, wal_end=1, send_time=1, data=data)
            ),
            st.booleans().map(
                lambda requested: m.PrimaryKeepalive(wal_end=1, send_time=1, reply_requested=requested)
            ),
        ),
        max_size=6,
    )
)
def test_copy_data_decodes_to_its_envelopes(rows: list[m.XLogData | m.PrimaryKeepalive]) -> None:
    encoded = pa.array(map(envelope.encode, rows), pa.binary())
    data = b"".join(encode_copy_data(encoded).to_pylist())
    found, wanted = decode_copy_data(data), decode_xlog_data(encoded.to_pylist())
    assert (found.lsns, found.data, found.others) == (wanted.lsns, wanted.data, wanted.others)


@pytest.mark.parametrize("data", [b"d", b"c\0\0\0\4", b"d\0\0\0\3", b"d\xff\xff\xff\xff", b"d\0\0\0\6w"])
def test_copy_data_that_is_not_whole_is_refused(data: bytes) -> None:
    whole = encode_copy_data(
        pa.array([envelope.encode(m.XLogData(wal_start=1, wal_end=1, send_time=1, data=b"x"))], pa.binary())
    )[0].as_py()
    with pytest.raises(ValueError, match=f"^byte {len(whole)} is not the start of a whole CopyData message$"):
        decode_copy_data(whole + data)
