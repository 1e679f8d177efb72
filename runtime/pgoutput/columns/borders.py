"""Begins and Commits, many at once."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput import messages
from pgoutput.columns.cells import Bytes
from pgoutput.fixed import fixed_dtype

Numbers: TypeAlias = npt.NDArray[Any]

_BEGIN: Final = fixed_dtype(messages.Begin)
_COMMIT: Final = fixed_dtype(messages.Commit)


def encode_begins(final_lsns: Numbers, commit_times: Numbers, xids: Numbers) -> pa.BinaryArray:
    """Begin messages; LSNs are byte offsets, times microseconds since 2000 (logicalrep_write_begin)."""
    made = np.zeros(len(xids), _BEGIN)
    made["tag"] = ord(messages.Begin.wire_tag)
    made["final_lsn"], made["commit_time"], made["xid"] = final_lsns, commit_times, xids
    return _messages(made)


def encode_commits(commit_lsns: Numbers, end_lsns: Numbers, commit_times: Numbers) -> pa.BinaryArray:
    """Commit messages, likewise (logicalrep_write_commit)."""
    made = np.zeros(len(end_lsns), _COMMIT)
    made["tag"] = ord(messages.Commit.wire_tag)
    made["commit_lsn"], made["end_lsn"], made["commit_time"] = commit_lsns, end_lsns, commit_times
    return _messages(made)


def _messages(made: Numbers) -> pa.BinaryArray:
    return Bytes.fixed(made.view(np.uint8).reshape(len(made), made.itemsize)).array
