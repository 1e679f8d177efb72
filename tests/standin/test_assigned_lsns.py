"""Messages recorded without envelopes get LSNs with which a client can resume inside a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile

import pytest

from logicalrep.messages import Commit, XLogData
from logicalrep.standin import PluginOptions, RecordedSource
from logicalrep.standin.recorded.recording import open_stream
from logicalrep.versions import CODECS
from tests.truth import CAPTURES
from tests.versions import OLDEST

END_LSN = {b"C": 10, b"c": 14, b"K": 10, b"r": 10, b"P": 10, b"p": 10}
CHANGES = (b"I", b"U", b"D", b"T", b"M")
DEBEZIUM = PluginOptions(proto_version=OLDEST, publication_names=("p",), messages=True)
NAMES = ["pg18_p1", "pg18_p1_messages", "pg18_p2_stream_msg", "pg18_p3_2pc_stream_msg", "pg14_p2_stream"]
"""Names of capture files without envelopes."""

Transaction = tuple[list[XLogData], XLogData]
"""The envelopes of a transaction's changes, and the envelope of its Commit."""


def source(name: str) -> RecordedSource:
    return RecordedSource(CAPTURES / f"{name}.jsonl.gz")


def served(source: RecordedSource, options: PluginOptions, after_lsn: int = 0) -> list[XLogData]:
    return [one for one in source.start(options, after_lsn) if isinstance(one, XLogData)]


def transactions(envelopes: list[XLogData]) -> list[Transaction]:
    """Return the transactions of a stream of protocol version 1. Logical messages outside are left out."""
    found: list[Transaction] = []
    changes: list[XLogData] = []
    for one in envelopes:
        tag = one.data[:1]
        if tag == b"B":
            changes = []
        elif tag in CHANGES:
            changes.append(one)
        elif tag == b"C":
            found.append((changes, one))
            changes = []
    return found


def without_messages(changes: list[XLogData]) -> list[XLogData]:
    """Return the changes without logical messages, of which a streamed transaction has more."""
    return [one for one in changes if one.data[:1] != b"M"]


def after_change(changes: list[XLogData], lsn: int) -> Iterator[XLogData]:
    """Return what is left after the change with this LSN, and after all with the same LSN that follow."""
    from_change = dropwhile(lambda one: one.wal_start != lsn, changes)
    return dropwhile(lambda one: one.wal_start == lsn, from_change)


@pytest.mark.parametrize("name", NAMES)
def test_messages_are_assigned_the_lsns_of_a_walsender(name: str) -> None:
    served_source = source(name)
    found = served(served_source, open_stream(CAPTURES / f"{name}.jsonl.gz").options)
    for one, following in zip(found, [*found[1:], None], strict=True):
        assert one.wal_start == one.wal_end <= served_source.end_lsn
        tag = one.data[:1]
        before_origin = tag in b"BbS" and following is not None and following.data[:1] == b"O"
        assert (one.wal_start == 0) == (tag in b"RY" or before_origin)
        if tag in END_LSN:
            assert one.wal_start == int.from_bytes(one.data[END_LSN[tag] : END_LSN[tag] + 8])


@pytest.mark.parametrize("name", NAMES)
def test_lsns_rise_inside_a_transaction_up_to_its_commit(name: str) -> None:
    found = transactions(served(source(name), DEBEZIUM))
    assert max(len(changes) for changes, _ in found) > 100
    for changes, end in found:
        commit = CODECS[OLDEST].decode(end.data)
        assert isinstance(commit, Commit)
        lsns = [one.wal_start for one in changes]
        assert lsns == sorted(set(lsns))
        assert not lsns or lsns[-1] <= commit.commit_lsn < commit.end_lsn == end.wal_start


@pytest.mark.parametrize("name", ["pg18_p1_messages", "pg18_p2_stream_msg"])
def test_assigned_lsns_are_not_lower_than_those_of_the_server(name: str) -> None:
    real = transactions(served(source("pg18_ws_p4_par_2pc_msg"), DEBEZIUM))
    assigned = transactions(served(source(name), DEBEZIUM))
    compared = 0
    for (changes, end), (real_changes, real_end) in zip(assigned, real, strict=True):
        assert end == real_end
        pairs = zip(without_messages(changes), without_messages(real_changes), strict=True)
        for one, real_one in pairs:
            assert one.data == real_one.data
            assert one.wal_start >= real_one.wal_start
            compared += 1
    assert compared > 300


@pytest.mark.parametrize("name", [*NAMES, "pg18_ws_p4_par_2pc_msg"])
def test_a_client_resumes_inside_a_transaction_by_the_lsn_of_its_last_change(name: str) -> None:
    """The client starts at the LSN of its last change, and skips all messages with that LSN, as Debezium."""
    recorded = source(name)
    found = [changes for changes, _ in transactions(served(recorded, DEBEZIUM))]
    largest = sorted(range(len(found)), key=lambda number: -len(found[number]))[:2]
    for number in largest:
        wanted = [one for changes in found[number:] for one in changes]
        for cut in range(1, len(found[number]), len(found[number]) // 4 + 1):
            last = wanted[cut - 1].wal_start
            resent = [one for changes, _ in transactions(served(recorded, DEBEZIUM, last)) for one in changes]
            rest = after_change(resent, last)
            assert [one.data for one in rest] == [one.data for one in wanted[cut:]], (number, cut)
