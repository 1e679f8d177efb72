"""Begins and Commits, many at once."""

from __future__ import annotations

import pyarrow as pa

from pgoutput.columns.batch import encode_batch
from pgoutput.columns.parts import Numbers
from pgoutput.messages import Begin, Commit


def encode_begins(final_lsns: Numbers, commit_times: Numbers, xids: Numbers) -> pa.BinaryArray:
    """Begin messages (logicalrep_write_begin).

    Args:
        final_lsns: Byte offsets.
        commit_times: Microseconds since 2000.
        xids: Those of the transactions.

    Raises:
        EncodeError: A number does not fit.
        TypeError: They are no integers.
        ValueError: There are more of one than of another.
    """
    return encode_batch(Begin, final_lsn=final_lsns, commit_time=commit_times, xid=xids)


def encode_commits(commit_lsns: Numbers, end_lsns: Numbers, commit_times: Numbers) -> pa.BinaryArray:
    """Commit messages, likewise (logicalrep_write_commit).

    Args:
        commit_lsns: Byte offsets.
        end_lsns: Likewise.
        commit_times: Microseconds since 2000.

    Raises:
        EncodeError: As `encode_begins`.
        TypeError: Likewise.
        ValueError: Likewise.
    """
    return encode_batch(Commit, commit_lsn=commit_lsns, end_lsn=end_lsns, commit_time=commit_times)
