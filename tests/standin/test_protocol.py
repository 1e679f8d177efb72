"""A stand-in server sends the protocol's bytes: startup, replication commands, streams and errors."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from logicalrep import envelope
from logicalrep.messages import HotStandbyFeedback, PrimaryKeepalive, StandbyStatusUpdate, XLogData
from logicalrep.standin import RecordedSource, StandIn
from logicalrep.standin.sql import extended_query
from logicalrep.synth import Scenario
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS, format_lsn
from tests.standin.raw_client import RawClient, connect_walsender, error_fields
from tests.standin.streams import STEP, Repeated, inserts, write_capture_file
from tests.versions import CAPTURES, OLDEST, RELEASED, UNKNOWN

PROTO = f"'{OLDEST}'"
START = f"START_REPLICATION SLOT a LOGICAL 0/0 (proto_version '{OLDEST}', publication_names 'p')"
CREATE = "CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT"


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn(Repeated(3)) as server:
        yield server


def test_startup_sends_the_messages_of_a_real_server(server: StandIn) -> None:
    with RawClient(server) as raw:
        raw.socket.sendall(struct.pack(">II", 8, 80877103))  # SSLRequest
        assert raw.file.read(1) == b"N"
        raw.socket.sendall(struct.pack(">II", 8, 80877104))  # GSSENCRequest
        assert raw.file.read(1) == b"N"
        raw.startup(application_name="me")
        began = raw.read_to(b"Z")
    assert began[0] == (b"R", b"\0\0\0\0")
    assert (b"S", b"server_version\0%b\0" % Scenario().server_version.encode()) in began
    assert (b"S", b"application_name\0me\0") in began
    assert [tag for tag, _ in began[-2:]] == [b"K", b"Z"]
    assert began[-1] == (b"Z", b"I")


def test_newer_protocol_versions_are_negotiated_down(server: StandIn) -> None:
    with RawClient(server) as raw:
        raw.startup(version=3 << 16 | 2, **{"_pq_.command_tag_format": "x"})
        assert raw.read() == (b"v", struct.pack(">ii", 3 << 16, 1) + b"_pq_.command_tag_format\0")
        assert raw.read() == (b"R", b"\0\0\0\0")
    with RawClient(server) as raw:
        raw.startup(version=2 << 16)
        error = error_fields(raw.read()[1])
        assert (error["S"], error["C"]) == ("FATAL", "0A000")
        assert error["M"].startswith("unsupported frontend protocol 2.0")
        assert raw.has_ended


def test_identify_system_reports_the_source(server: StandIn) -> None:
    with connect_walsender(server) as raw:
        described, row, complete, ready = raw.ask("IDENTIFY_SYSTEM")
    assert described[1][:2] == b"\0\4"
    assert [name in described[1] for name in (b"systemid\0", b"timeline\0", b"xlogpos\0", b"dbname\0")]
    assert row[1].endswith(b"\0\0\0\x011" + b"\0\0\0\x050/FA0" + b"\0\0\0\x08postgres")
    assert complete == (b"C", b"IDENTIFY_SYSTEM\0")
    assert ready == (b"Z", b"I")


@pytest.mark.parametrize(
    ("command", "sqlstate", "text"),
    [
        ("START_REPLICATION SLOT b LOGICAL 0/0", "42704", 'replication slot "b" does not exist'),
        (CREATE, "42710", 'replication slot "a" already exists'),
        (
            "CREATE_REPLICATION_SLOT A-B LOGICAL pgoutput",
            "42601",
            "syntax error",
        ),
        (
            'CREATE_REPLICATION_SLOT "A" LOGICAL pgoutput',
            "42602",
            'replication slot name "A" contains invalid character',
        ),
        (
            "CREATE_REPLICATION_SLOT b LOGICAL wal2json",
            "58P01",
            'could not access file "wal2json": No such file or directory',
        ),
        (
            "CREATE_REPLICATION_SLOT b LOGICAL pgoutput (SNAPSHOT 'export')",
            "0A000",
            "a stand-in server has no tables, and so no snapshot to export",
        ),
        ("CREATE_REPLICATION_SLOT b PHYSICAL", "0A000", "a stand-in server has logical slots only"),
        ("DROP_REPLICATION_SLOT b", "42704", 'replication slot "b" does not exist'),
        (
            "READ_REPLICATION_SLOT a",
            "0A000",
            "cannot use READ_REPLICATION_SLOT with a logical replication slot",
        ),
        ("START_REPLICATION SLOT a LOGICAL 0/0", "22023", 'option "proto_version" missing'),
        (
            f"START_REPLICATION SLOT a LOGICAL 0/0 (proto_version '{OLDEST}')",
            "22023",
            'option "publication_names" missing',
        ),
        (
            START.replace(PROTO, f"'{UNKNOWN}'"),
            "0A000",
            f"client sent proto_version={UNKNOWN} but server only supports protocol {RELEASED[-1]} or lower",
        ),
        (
            START.replace(PROTO, "'0'"),
            "0A000",
            f"client sent proto_version=0 but server only supports protocol {OLDEST} or higher",
        ),
        *(
            (START.replace(PROTO, f"'{one}'"), "22023", "invalid proto_version")
            for one in ("x", "1 ", "9" * 20)
        ),
        (
            START.replace(PROTO, "'3', streaming 'parallel'"),
            "22023",
            "requested proto_version=3 does not support parallel streaming, need 4 or higher",
        ),
        (
            START.replace(PROTO, "'2', two_phase 'on'"),
            "22023",
            "requested proto_version=2 does not support two-phase commit, need 3 or higher",
        ),
        (
            START.replace(PROTO, f"{PROTO}, nonsense 'on'"),
            "XX000",
            "unrecognized pgoutput option: nonsense",
        ),
        (START.replace(PROTO, f"{PROTO}, binary 'maybe'"), "42601", "binary requires a Boolean value"),
        (START.replace(PROTO, f"{PROTO}, origin 'me'"), "22023", 'unrecognized origin value: "me"'),
        (START.replace("'p'", "'p q'"), "42602", "invalid publication_names syntax"),
        (f"START_REPLICATION SLOT a LOGICAL 0/0 (proto_version '{OLDEST}'", "42601", "syntax error"),
        (
            "BASE_BACKUP",
            "0A000",
            "a stand-in server does not support BASE_BACKUP, which is not for logical replication",
        ),
        ("CREATE TABLE t ()", "0A000", None),
    ],
)
def test_rejected_commands_have_the_errors_of_a_real_server(
    server: StandIn, command: str, sqlstate: str, text: str | None
) -> None:
    with connect_walsender(server) as raw:
        raw.ask(CREATE)
        (tag, body), ready = raw.ask(command)
        assert tag == b"E"
        error = error_fields(body)
        assert error["C"] == sqlstate
        assert text in (None, error["M"])
        assert ready == (b"Z", b"I")
        # The connection is still usable.
        assert raw.ask("IDENTIFY_SYSTEM")[-2] == (b"C", b"IDENTIFY_SYSTEM\0")


def test_an_unknown_publication_is_rejected_with_the_known_ones(tmp_path: Path) -> None:
    source = RecordedSource(write_capture_file(tmp_path / "p.jsonl", list(inserts(1))))
    with StandIn(source) as server, connect_walsender(server) as raw:
        raw.ask(CREATE)
        (_, body), _ = raw.ask(START.replace("'p'", "'q'"))
    error = error_fields(body)
    assert (error["C"], error["M"]) == ("42704", 'publication "q" does not exist')
    assert error["H"] == "The stream was recorded with the publications p."


def test_a_stream_is_sent_and_ended_as_by_a_real_server(server: StandIn) -> None:
    with connect_walsender(server) as raw:
        raw.ask(CREATE)
        raw.query(START)
        assert raw.read() == (b"W", b"\0\0\0")
        received = []
        while not isinstance(one := envelope.decode(raw.read()[1]), PrimaryKeepalive):
            assert isinstance(one, XLogData)
            received.append(one)
        assert [one.data for one in received] == Repeated(3).payloads()
        assert abs(received[0].send_time + EPOCH_UNIX_MICROSECONDS - time.time_ns() // 1000) < 60_000_000
        assert (one.wal_end, one.reply_requested) == (4 * STEP, False)

        raw.send(
            b"d",
            envelope.encode(
                HotStandbyFeedback(send_time=0, xmin=0, xmin_epoch=0, catalog_xmin=0, catalog_xmin_epoch=0)
            ),
        )
        raw.send(
            b"d",
            envelope.encode(
                StandbyStatusUpdate(
                    written_lsn=3 * STEP,
                    flushed_lsn=2 * STEP,
                    applied_lsn=2 * STEP,
                    send_time=0,
                    reply_requested=True,
                )
            ),
        )
        answer = envelope.decode(raw.read()[1])
        assert isinstance(answer, PrimaryKeepalive)
        assert answer.wal_end == 4 * STEP

        raw.send(b"c")
        ended = raw.read_to(b"Z")
        assert [tag for tag, _ in ended] == [b"c", b"C", b"C", b"Z"]
        assert [body for _, body in ended[1:3]] == [b"COPY 0\0", b"START_REPLICATION\0"]

        # A second stream on the same connection repeats what was not confirmed, with its Relation.
        raw.query(START)
        assert raw.read()[0] == b"W"
        again = [envelope.decode(raw.read()[1]) for _ in range(102)]
        payloads = [one.data for one in again if isinstance(one, XLogData)]
        assert payloads == Repeated(3).payloads(2 * STEP)[:101]


def test_a_stream_starts_at_the_later_of_the_requested_and_the_confirmed_lsn(server: StandIn) -> None:
    with connect_walsender(server) as raw:
        raw.ask(CREATE)
        raw.query(START.replace("0/0", f"0/{3 * STEP:X}"))
        raw.read()
        first = envelope.decode(raw.read()[1])
        assert isinstance(first, XLogData)
        assert first.data == Repeated(3).payloads(3 * STEP)[0]
        raw.send(
            b"d",
            envelope.encode(
                StandbyStatusUpdate(
                    written_lsn=4 * STEP,
                    flushed_lsn=4 * STEP,
                    applied_lsn=4 * STEP,
                    send_time=0,
                    reply_requested=False,
                )
            ),
        )
        raw.send(b"c")
        raw.read_to(b"Z")
        raw.query(START)
        raw.read()
        assert isinstance(envelope.decode(raw.read()[1]), PrimaryKeepalive)  # no messages remain


def test_a_stream_that_goes_on_begins_with_its_position(server: StandIn) -> None:
    """Without it, the workers of a subscriber that copy tables stop at once after a lost connection."""
    with connect_walsender(server) as raw:
        raw.ask(CREATE)
        raw.ask(f"SELECT pg_replication_slot_advance('a', '{format_lsn(3 * STEP)}')")
        raw.query(START)
        assert raw.read()[0] == b"W"
        first = envelope.decode(raw.read()[1])
        assert isinstance(first, PrimaryKeepalive)
        assert first.wal_end == 3 * STEP
        second = envelope.decode(raw.read()[1])
        assert isinstance(second, XLogData)


def test_a_server_tells_what_its_clients_have_acknowledged(server: StandIn) -> None:
    began = datetime.now(UTC)
    with connect_walsender(server) as raw:
        raw.ask(CREATE)
        raw.query(START)
        raw.read()
        for lsn in (2 * STEP, 2 * STEP, STEP, 4 * STEP):
            flushed = StandbyStatusUpdate(
                written_lsn=4 * STEP, flushed_lsn=lsn, applied_lsn=0, send_time=0, reply_requested=False
            )
            raw.send(b"d", envelope.encode(flushed))
        raw.send(b"c")
        raw.read_to(b"Z")
        raw.ask("DROP_REPLICATION_SLOT a")
    assert list(server.acknowledged) == ["a"]
    assert list(server.acknowledged["a"]) == [2 * STEP, 4 * STEP]
    assert began <= server.acknowledged["a"][2 * STEP] <= server.acknowledged["a"][4 * STEP]


def test_a_slot_streams_to_one_client_at_a_time(server: StandIn) -> None:
    with connect_walsender(server) as one, connect_walsender(server) as other:
        one.ask(CREATE)
        one.query(START)
        one.read()
        for command in (START, "DROP_REPLICATION_SLOT a", "SELECT pg_drop_replication_slot('a')"):
            error = error_fields(other.ask(command)[0][1])
            assert error["C"] == "55006"
            assert error["M"].startswith('replication slot "a" is active for PID 10')
        other.query("DROP_REPLICATION_SLOT a WAIT")
        time.sleep(0.05)
        one.send(b"X")
        assert other.read() == (b"C", b"DROP_REPLICATION_SLOT\0")


def test_temporary_slots_are_dropped_with_their_connection(server: StandIn) -> None:
    with connect_walsender(server) as raw:
        raw.ask("CREATE_REPLICATION_SLOT a TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing', TWO_PHASE)")
    with connect_walsender(server) as raw:
        deadline = time.monotonic() + 60
        while raw.ask("SELECT slot_name FROM pg_replication_slots")[1][0] == b"D":
            assert time.monotonic() < deadline
        assert raw.ask(CREATE)[-2] == (b"C", b"CREATE_REPLICATION_SLOT\0")


def test_alter_replication_slot_changes_flags(server: StandIn) -> None:
    with connect_walsender(server) as raw:
        raw.ask(CREATE)
        assert raw.ask("ALTER_REPLICATION_SLOT a (FAILOVER true, TWO_PHASE)")[0][0] == b"C"
        row = raw.ask("SELECT failover, two_phase FROM pg_replication_slots")[1]
        assert row == (b"D", b"\0\2\0\0\0\x01t\0\0\0\x01t")


@pytest.mark.parametrize(
    ("version", "command"),
    [(16, "ALTER_REPLICATION_SLOT a (FAILOVER)"), (14, "READ_REPLICATION_SLOT a")],
)
def test_commands_of_later_versions_are_syntax_errors(version: int, command: str) -> None:
    with StandIn(Scenario(server=version)) as server, connect_walsender(server) as raw:
        assert error_fields(raw.ask(command)[0][1])["C"] == "42601"


def test_only_failover_can_be_altered_before_18() -> None:
    with StandIn(Scenario(server=17)) as server, connect_walsender(server) as raw:
        raw.ask(CREATE)
        refused = raw.ask("ALTER_REPLICATION_SLOT a (TWO_PHASE)")
        assert error_fields(refused[0][1])["M"] == "unrecognized option: two_phase"
        assert raw.ask("ALTER_REPLICATION_SLOT a (FAILOVER)")[0][0] == b"C"


def test_a_refused_request_does_not_change_the_slot() -> None:
    source = RecordedSource(CAPTURES / "pg18_p1.jsonl.gz")
    start = "START_REPLICATION SLOT a LOGICAL 0/0 (proto_version '{}', publication_names 'p'{})"
    flags = "SELECT failover, two_phase FROM pg_replication_slots"
    with StandIn(source) as server, connect_walsender(server) as raw:
        raw.ask(CREATE)
        (refused, _) = raw.ask(start.format(3, ", two_phase 'on'"))
        assert "request these options instead of two_phase on" in error_fields(refused[1])["M"]
        raw.ask("ALTER_REPLICATION_SLOT a (TWO_PHASE true, NONSENSE true)")
        assert raw.ask(flags)[1] == (b"D", b"\0\2\0\0\0\x01f\0\0\0\x01f")
        raw.query(start.format(OLDEST, ""))
        assert raw.read()[0] == b"W"


def test_a_stream_is_cancelled_only_with_the_right_key(server: StandIn) -> None:
    with RawClient(server) as raw:
        raw.startup(replication="database")
        key = dict(raw.read_to(b"Z"))[b"K"]
        raw.ask(CREATE)
        raw.query(START)
        raw.read()
        with RawClient(server) as other:
            other.socket.sendall(struct.pack(">II", 16, 80877102) + key[:4] + b"\0\0\0\0")  # a wrong key
            assert other.has_ended
        with RawClient(server) as other:
            other.socket.sendall(struct.pack(">II", 16, 80877102) + key)
        read = raw.read_to(b"Z")
        assert error_fields(read[-2][1])["C"] == "57014"
        raw.send(b"c")  # copy messages after the error are ignored
        assert raw.ask("SHOW server_version")[0][0] == b"T"


def test_a_silent_client_is_asked_for_a_reply_and_then_disconnected() -> None:
    with StandIn(Repeated(0), wal_sender_timeout=2.0) as server, connect_walsender(server) as raw:
        raw.ask(CREATE)
        raw.query(START)
        raw.read()
        kept = [envelope.decode(raw.read()[1]) for _ in range(2)]
        assert [one.reply_requested for one in kept if isinstance(one, PrimaryKeepalive)] == [False, True]
        raw.send(
            b"d",
            envelope.encode(
                StandbyStatusUpdate(
                    written_lsn=1, flushed_lsn=1, applied_lsn=1, send_time=0, reply_requested=False
                )
            ),
        )
        asked = envelope.decode(raw.read()[1])
        assert isinstance(asked, PrimaryKeepalive)
        assert asked.reply_requested
        assert raw.has_ended


def test_the_extended_query_protocol(server: StandIn) -> None:
    with RawClient(server) as raw:
        raw.startup()
        raw.read_to(b"Z")
        raw.send(b"P", b"s\0SELECT name, setting FROM pg_settings WHERE name = $1\0\0\0")
        raw.send(b"D", b"Ss\0")
        raw.send(b"B", b"\0s\0" + b"\0\0" + b"\0\1\0\0\0\x09wal_level" + b"\0\0")
        raw.send(b"E", b"\0\0\0\0\0")
        raw.send(b"S")
        assert [tag for tag, _ in raw.read_to(b"Z")] == [b"1", b"t", b"T", b"2", b"D", b"C", b"Z"]
        raw.send(b"P", b"\0DELETE FROM t\0\0\0")
        raw.send(b"B", b"\0\0\0\0\0\0\0\0")
        raw.send(b"E", b"\0\0\0\0\0")
        raw.send(b"E", b"\0\0\0\0\0")  # skipped: an error skips messages up to Sync
        raw.send(b"S")
        assert [tag for tag, _ in raw.read_to(b"Z")] == [b"1", b"2", b"E", b"Z"]


def test_unnamed_statements_and_portals_are_replaced_at_the_limit(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extended_query, "_MAX_STATEMENTS", 1)
    with RawClient(server) as raw:
        raw.startup()
        raw.read_to(b"Z")
        for _ in range(2):
            raw.send(b"P", b"\0SELECT 1\0\0\0")
            raw.send(b"B", b"\0" + bytes(7))
        raw.send(b"S")
        assert [tag for tag, _ in raw.read_to(b"Z")] == [b"1", b"2", b"1", b"2", b"Z"]
        for _ in range(2):
            raw.send(b"B", b"c\0" + bytes(7))
        raw.send(b"S")
        _, (tag, body), _ = raw.read_to(b"Z")
        assert (tag, error_fields(body)["C"]) == (b"E", "42P03")
