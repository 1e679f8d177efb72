"""The checker handles arbitrary input without exceptions, in linear time, and with valid byte offsets."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from logicalrep import envelope, messages as m, strategies, v4
from logicalrep.messages import Streaming
from logicalrep.stream.check import RULES, Checker, CheckOptions, check, samples as s
from logicalrep.versions import CODECS, OPTIONS
from tests.messages import make_column, make_relation

NAMES = {rule.name for rule in RULES}
SMALL = st.integers(0, 6)
"""Strategy of small numbers for xids, OIDs and LSNs, so that several messages have the same numbers."""


def with_small_numbers(message: m.Message) -> st.SearchStrategy[m.Message]:
    """Return a strategy of copies of the message with small xids, OIDs and LSNs, and the gid g or h."""
    numbers = [name for name in message.__struct_fields__ if isinstance(getattr(message, name), int)]
    numbers = [name for name in numbers if name.endswith(("xid", "oid", "lsn"))]
    fields: dict[str, st.SearchStrategy[object]] = dict.fromkeys(numbers, SMALL)
    if "gid" in message.__struct_fields__:
        fields["gid"] = st.sampled_from("gh")
    changes = st.fixed_dictionaries(fields)
    return changes.map(lambda changed: type(message)(**{**as_dict(message), **changed}))


def as_dict(message: m.Message) -> dict[str, object]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


MESSAGES = st.one_of(
    *(
        strategy.flatmap(with_small_numbers)
        for in_stream in (False, True)
        for strategy in strategies.v4(in_stream, "parallel").values()
    )
)
INPUT = st.one_of(
    MESSAGES.map(v4.encode),
    st.binary(max_size=60),
    st.builds(
        m.XLogData,
        wal_start=SMALL,
        wal_end=SMALL,
        send_time=SMALL,
        data=MESSAGES.map(v4.encode) | st.binary(max_size=9),
    ),
)


@given(
    st.lists(INPUT, max_size=12),
    st.sampled_from(list(CODECS)),
    st.sampled_from(["off", "on", "parallel"]),
    st.booleans(),
    st.sampled_from([None, False, True]),
)
def test_any_stream_is_legal_or_illegal(
    fed: list[bytes | m.XLogData], version: int, streaming: Streaming, two_phase: bool, option: bool | None
) -> None:
    if version < OPTIONS["streaming"][streaming].proto_version:
        streaming = "off"
    checker = Checker(version, streaming=streaming, two_phase=two_phase, binary=option, messages=option)
    for number, data in enumerate(fed):
        found = checker.feed(data)
        if found is not None:
            assert found.rule in NAMES
            assert found.message == number
            inner = data.data if isinstance(data, m.XLogData) else data
            whole = envelope.encode(data) if isinstance(data, m.XLogData) else data
            size = len(whole if found.name == "XLogData" else inner)
            assert 0 <= found.byte <= size
            assert found.because


@given(st.binary(max_size=60))
def test_any_envelope_is_legal_or_illegal(data: bytes) -> None:
    found = Checker(4).feed_envelope(data)
    assert found is None or found.rule in NAMES


WIDE = tuple(make_column(f"c{i}", key=True) for i in range(65_535))
OIDS = tuple(range(16_384, 16_384 + 300_000))


@pytest.mark.parametrize(
    "changes",
    [
        (m.Truncate(options=m.TruncateOption(0), relation_oids=OIDS),),
        (s.truncate(*OIDS, OIDS[-1]),),
        (make_relation(*WIDE[:-1], WIDE[0], oid=s.OID, namespace="p", identity=s.RELATION.replica_identity),),
        (
            make_relation(*WIDE, oid=s.OID, namespace="p", identity=s.RELATION.replica_identity),
            m.Delete(relation_oid=s.OID, key=("x",) * 65_534 + (None,)),
        ),
        tuple(m.Type(oid=20_000 + i, namespace="p", name="t") for i in range(65_535)),
    ],
    ids=["truncate", "truncate twice", "columns", "key", "types"],
)
def test_run_time_is_linear_in_the_width_of_messages(changes: tuple[m.Message, ...]) -> None:
    start = time.process_time()
    list(check(s.transaction(*changes), CheckOptions()))
    assert time.process_time() - start < 60


def test_run_time_is_linear_in_the_number_of_prepared_transactions() -> None:
    checker = Checker(4, two_phase=True)
    start = time.process_time()
    for xid in range(100, 20_100):
        lsn, gid = xid * 100, f"g{xid}"
        at = {"prepare_lsn": lsn, "end_lsn": lsn + 50, "prepare_time": 0, "xid": xid}
        assert checker.feed(m.BeginPrepare(**at, gid=gid)) is None
        assert checker.feed(m.Prepare(**at, gid=gid)) is None
    assert time.process_time() - start < 60
