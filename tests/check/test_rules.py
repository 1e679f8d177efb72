"""Every rule has a legal and an illegal example; streams of real servers break no rule."""

from __future__ import annotations

import copy

import msgspec
import pytest
from msgspec.structs import replace

from logicalrep import envelope, messages as m
from logicalrep.stream import StreamDecoder, encode_for
from logicalrep.stream.check import RULES, Checker, CheckOptions, Violation, check, samples as s
from logicalrep.stream.check.model import Rule, rule
from logicalrep.stream.check.rules import find_rule
from logicalrep.testing import Stream, shop
from logicalrep.versions import CODECS
from tests.check.streams import check_capture, check_options, make_checker
from tests.codec.corpus import CAPTURES, read
from tests.messages import make_relation
from tests.versions import OLDEST, WRITTEN, WRITTEN_CODEC

STREAMED = CheckOptions(proto_version=WRITTEN, streaming="on", two_phase=True)


def rule_names(violations: list[Violation]) -> list[str]:
    return [violation.rule for violation in violations]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_legal_example_passes_and_the_illegal_one_breaks_only_its_rule(rule: Rule) -> None:
    assert rule_names(list(check(rule.legal, rule.options))) == []
    assert rule_names(list(check(rule.illegal, rule.options))) == [rule.name]
    assert rule.legal != rule.illegal


def test_a_rule_without_example_and_an_example_without_rule_are_named() -> None:
    with pytest.raises(LookupError, match=r'write rule\("new", illegal=…\) in .*/check/examples\.py$'):
        find_rule("new")
    with pytest.raises(LookupError, match=r"^rule\(.old., …\) gives examples for a rule that spec"):
        rule("old", illegal=())


@pytest.mark.parametrize("name", CAPTURES)
def test_streams_of_real_servers_are_legal(name: str) -> None:
    assert list(check_capture(name)) == []


# Violations


def test_a_violation_names_message_and_byte() -> None:
    (found,) = check(s.transaction(s.RELATION, m.Insert(relation_oid=s.OID, new=("1",))), STREAMED)
    because = "Insert.new.count: new has 1 columns, but public.t has 2"
    assert Violation("column-count", 2, 6, "Insert", "new.count", because) == found
    assert found.text == f"illegal at message 2, byte 6, because {because}"


@pytest.mark.parametrize("rule", ["commit-as-begun", "prepare-as-begun", "resolved-as-prepared"])
def test_lsns_in_violations_have_postgresqls_format(rule: str) -> None:
    begin = replace(s.BEGIN_PREPARE, prepare_lsn=0x1_000003E8, end_lsn=0x1_000003F0, xid=760)
    prepare = replace(s.PREPARE, prepare_lsn=begin.prepare_lsn, end_lsn=begin.end_lsn, xid=760)
    streams: dict[str, tuple[m.Message, ...]] = {
        "commit-as-begun": (
            replace(s.BEGIN, final_lsn=0x1_000003E8, xid=740),
            replace(s.COMMIT, commit_lsn=0x1_000003E9, end_lsn=0x1_000003F0),
        ),
        "prepare-as-begun": (begin, msgspec.structs.replace(prepare, prepare_lsn=0x1_000003E9)),
        "resolved-as-prepared": (
            begin,
            prepare,
            replace(
                s.ROLLBACK_PREPARED, prepare_end_lsn=0x1_000003E9, rollback_end_lsn=0x1_00000400, xid=760
            ),
        ),
    }
    (found,) = check(streams[rule], CheckOptions(proto_version=2, two_phase=True))
    assert found.rule == rule
    assert found.because.endswith(" 1/3E8, not 1/3E9") or found.because.endswith(" 1/3F0, not 1/3E9")


def test_the_byte_of_a_violation_is_the_start_of_the_field() -> None:
    (found,) = check((*s.BLOCK[:-1], m.Insert(relation_oid=s.OID, new=("4", ""), xid=s.TOP - 1)), STREAMED)
    assert (found.rule, found.message, found.byte, found.field) == ("block-xid", 4, 1, "xid")
    raw = WRITTEN_CODEC.encode(m.Delete(relation_oid=s.OID, key=("1", "x")))
    (found,) = check((s.BEGIN, s.RELATION, raw), STREAMED)
    assert (found.rule, found.field) == ("key-only", "key[1]")
    assert raw[found.byte :] == b"x"


def test_the_byte_of_a_violation_in_an_envelope_is_the_start_of_the_field() -> None:
    outer = m.XLogData(wal_start=1_000, wal_end=1_001, send_time=0, data=WRITTEN_CODEC.encode(s.BEGIN))
    (found,) = check([outer], STREAMED)
    assert (found.rule, found.name, found.byte, found.field) == (
        "envelope-lsns-equal",
        "XLogData",
        9,
        "wal_end",
    )


def test_an_undecodable_message_is_a_violation() -> None:
    checker = Checker(WRITTEN)
    for raw in (b"", b"\xff", b"B\0", WRITTEN_CODEC.encode(s.BEGIN) + b"\0"):
        found = checker.feed(raw)
        assert found is not None
        assert found.rule == "message"
    assert checker.feed(memoryview(WRITTEN_CODEC.encode(s.BEGIN))) is None
    found = checker.feed(replace(s.BEGIN, final_lsn=-1, xid=1))
    assert found is not None
    assert (found.rule, found.message, found.field) == ("message", 5, "final_lsn")
    found = checker.feed_envelope(b"w\0")
    assert found is not None
    assert (found.rule, found.message) == ("envelope", 6)
    with pytest.raises(TypeError):
        checker.feed("B")  # type: ignore[arg-type]


# A fault is reported once


ROWS = [m.Insert(relation_oid=s.OID, new=(str(i), "x")) for i in range(100)]
STREAM = [*s.BLOCK, s.NEXT, s.STREAMED, s.STOP, s.STREAM_COMMIT]
WHOLE = [
    s.BEGIN,
    s.RELATION,
    *ROWS,
    s.COMMIT,
    replace(s.BEGIN, final_lsn=2_000, xid=731),
    *ROWS,
    replace(s.COMMIT, commit_lsn=2_000, end_lsn=2_048),
]


@pytest.mark.parametrize(
    ("stream", "missing"),
    [
        *((STREAM, place) for place in (0, 1, len(s.BLOCK) - 1, len(s.BLOCK), len(s.BLOCK) + 2)),
        *((WHOLE, place) for place in (0, 1, 102, 103)),
    ],
)
def test_a_missing_message_is_reported_once(stream: list[m.Message], missing: int) -> None:
    assert rule_names(list(check(stream, STREAMED))) == []
    assert len(list(check([*stream[:missing], *stream[missing + 1 :]], STREAMED))) == 1


@pytest.mark.parametrize("size", [1, 3])
def test_only_the_first_message_after_a_damaged_opener_is_reported(size: int) -> None:
    """The transaction of the block is unknown until the next message has an xid."""
    opener, *others = (encode_for(one, WRITTEN) for one in STREAM)
    checker = Checker(WRITTEN, streaming=STREAMED.streaming)
    found = [checker.feed(one) for one in (opener[:size], *others)]
    assert [one and one.rule for one in found[:2]] == ["message", "xid-in-blocks"]
    assert found[2:] == [None] * (len(others) - 1)


def test_a_wrong_relation_is_reported_once_until_it_is_sent_again() -> None:
    narrow = make_relation(*(s.COLUMNS[:1]), oid=s.OID, identity=s.RELATION.replica_identity)
    rows = (s.INSERT, s.INSERT)
    found = list(check(s.transaction(narrow, *rows, narrow, *rows, s.RELATION, *rows), STREAMED))
    assert [violation.message for violation in found] == [2, 5]


# Envelopes


def test_every_flipped_bit_in_an_envelopes_lsns_is_detected() -> None:
    lines = [line.envelope for line in read("pg18_ws_p4_par_2pc_msg")[1][:60]]
    sent = [one for one in lines if isinstance(one, m.XLogData | m.PrimaryKeepalive)]
    checker = make_checker(check_options(read("pg18_ws_p4_par_2pc_msg")[0]))
    for one in sent:
        raw = envelope.encode(one)
        if isinstance(one, m.XLogData):
            for bit in range(8, 8 * 17, 5):
                flipped = bytearray(raw)
                flipped[bit // 8] ^= 1 << bit % 8
                found = copy.deepcopy(checker).feed_envelope(flipped)
                assert found is not None
                assert found.rule == "envelope-lsns-equal"
        assert checker.feed_envelope(raw) is None


# Reconnecting


def test_only_prepared_transactions_survive_a_reconnect() -> None:
    checker = Checker(WRITTEN, streaming="on", two_phase=True)
    for message in (*s.BLOCK, *s.PREPARED):
        assert checker.feed(message) is None
    checker.reconnect(STREAMED)
    found = checker.feed(s.BEGIN), checker.feed(s.INSERT), checker.feed(s.COMMIT)
    assert [one and one.rule for one in found] == [None, "relation-before-use", None]
    again = (*s.BLOCK, s.STREAM_COMMIT)  # the open streamed transaction was discarded
    assert [checker.feed(message) for message in again] == [None] * len(again)


def test_a_prepared_transaction_may_be_sent_again_after_a_reconnect() -> None:
    checker = Checker(WRITTEN, streaming="on", two_phase=True)
    assert [checker.feed(message) for message in s.PREPARED] == [None] * len(s.PREPARED)
    checker.reconnect(STREAMED)
    again = (*s.PREPARED, s.COMMIT_PREPARED)
    assert [checker.feed(message) for message in again] == [None] * len(again)


# Unusual but legal streams


def test_a_transaction_prepared_before_the_stream_may_be_resolved() -> None:
    assert list(check((s.COMMIT_PREPARED,), STREAMED)) == []
    assert list(check((s.ROLLBACK_PREPARED,), STREAMED)) == []


def test_a_stream_may_stop_anywhere() -> None:
    for end in range(len(s.BLOCK)):
        assert list(check(s.BLOCK[:end], STREAMED)) == []


def test_an_abort_of_an_unstreamed_subtransaction_is_reported_in_any_version() -> None:
    raw = WRITTEN_CODEC.encode(s.SAVEPOINT_ABORT)
    for options in (CheckOptions(proto_version=OLDEST), CheckOptions(proto_version=2), STREAMED):
        assert rule_names(list(check((raw,), options))) == ["savepoint-of-streamed"]
    assert rule_names(list(check((raw,), CheckOptions(proto_version=WRITTEN, streaming="parallel")))) == [
        "message"
    ]


def test_relations_of_a_streamed_transaction_are_known_after_its_commit() -> None:
    def rules(*end: m.Message) -> list[str]:
        return rule_names(
            list(check((*s.BLOCK, *end, replace(s.BEGIN, final_lsn=3_000, xid=750), s.INSERT), STREAMED))
        )

    assert rules(s.STREAM_COMMIT) == []
    assert rules() == rules(s.STREAM_ABORT) == ["relation-before-use"]
    assert rules(s.STREAM_PREPARE) == ["relation-before-use"]


def test_relations_are_sent_again_after_a_subtransaction_abort() -> None:
    again = (*s.BLOCK, s.SAVEPOINT_ABORT, s.NEXT)
    assert rule_names(list(check((*again, s.STREAMED), STREAMED))) == ["relation-before-use"]
    assert rule_names(list(check((*again, s.STREAMED_RELATION, s.STREAMED), STREAMED))) == []


def test_rows_of_a_partition_follow_its_own_replica_identity() -> None:
    """With publish_via_partition_root, PostgreSQL 18 sends a partition's rows under the partitioned table.

    The old values follow the partition's replica identity, even if the partitioned table has another one.
    """
    leaf = make_relation(*s.COLUMNS, oid=s.OID + 1, name="t1", identity=s.RELATION.replica_identity)
    whole_key = m.Update(relation_oid=s.OID, new=("1", "y"), key=("1", "x"))
    assert rule_names(list(check(s.transaction(s.RELATION, leaf, whole_key), STREAMED))) == []
    assert rule_names(list(check(s.transaction(s.RELATION, whole_key), STREAMED))) == ["key-only"]
    no_old = m.Update(relation_oid=s.OID, new=("1", "y"))
    assert rule_names(list(check(s.transaction(s.FULL, leaf, no_old), STREAMED))) == []
    assert rule_names(list(check(s.transaction(s.FULL, no_old), STREAMED))) == ["old-row-needed"]


def test_a_transaction_prepared_before_two_phase_is_sent_right_before_its_commit() -> None:
    """If two_phase is enabled after the prepare, PostgreSQL 18 sends the LSNs of the earlier prepare."""
    before = (
        replace(s.BEGIN, final_lsn=2_000, xid=731),
        s.RELATION,
        s.INSERT,
        replace(s.COMMIT, commit_lsn=2_000, end_lsn=2_048),
    )
    assert rule_names(list(check((*before, *s.PREPARED, s.COMMIT_PREPARED), STREAMED))) == []
    late = (
        *before,
        *s.PREPARED,
        m.LogicalMessage(flags=m.MessageFlag(0), lsn=2_100, prefix="p", content=b""),
    )
    assert rule_names(list(check(late, STREAMED))) == ["prepare-order"]


def test_rules_can_be_disabled() -> None:
    checker = Checker(WRITTEN, without=["relation-before-use"])
    assert [checker.feed(one) for one in s.transaction(s.INSERT)] == [None] * 3
    with pytest.raises(ValueError, match=r"^there is no rule nonsense; logicalrep\.stream\.check\.RULES has"):
        Checker(WRITTEN, without=["nonsense"])


def test_impossible_options_are_rejected() -> None:
    with pytest.raises(ValueError, match="needs protocol version 4"):
        Checker(OLDEST, streaming="parallel")


@pytest.mark.parametrize("version", CODECS)
def test_a_scenario_of_each_version_is_legal_and_decoded(version: int) -> None:
    stream = Stream.of(shop(proto_version=version))
    assert list(check(stream.messages, stream.options)) == []
    decoder = StreamDecoder(version)
    assert [type(decoder.decode(data)).__name__ for data in stream.messages].count("Commit") > 5
