"""Begins, Commits and envelopes by columns are what the codecs encode."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput import envelope, v1
from pgoutput import messages as m
from pgoutput.columns import encode_begins, encode_commits, encode_copy_data, encode_xlog_data

pytestmark = pytest.mark.usefixtures("way")

LSN = st.integers(0, (1 << 63) - 1)
TIME = st.integers(-(1 << 63), (1 << 63) - 1)
XID = st.integers(0, (1 << 32) - 1)


@given(rows=st.lists(st.tuples(LSN, LSN, TIME, XID), max_size=4))
def test_begins_and_commits(rows: list[tuple[int, int, int, int]]) -> None:
    lsns, ends, times, xids = (np.array([row[i] for row in rows], np.int64) for i in range(4))
    begins = [m.Begin(lsn, time, xid) for lsn, _, time, xid in rows]
    assert encode_begins(lsns, times, xids).to_pylist() == list(map(v1.encode, begins))
    commits = [m.Commit(lsn, end, time) for lsn, end, time, _ in rows]
    assert encode_commits(lsns, ends, times).to_pylist() == list(map(v1.encode, commits))


@given(rows=st.lists(st.tuples(LSN, TIME, st.binary(max_size=9)), max_size=4))
def test_envelopes(rows: list[tuple[int, int, bytes]]) -> None:
    lsns, data = (
        pa.array([row[0] for row in rows], pa.int64()),
        pa.array([row[2] for row in rows], pa.binary()),
    )
    wanted = [envelope.encode(m.XLogData(lsn, lsn, time, one)) for lsn, time, one in rows]
    made = encode_xlog_data(lsns, np.array([row[1] for row in rows], np.int64), data)
    assert made.to_pylist() == wanted
    frames = encode_copy_data(made).to_pylist()
    assert frames == [b"d" + (len(one) + 4).to_bytes(4, "big") + one for one in wanted]
