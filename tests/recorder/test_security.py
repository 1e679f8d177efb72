"""The recorder checks passwords and certificates, which may be replaced while it records.

TLS is tested with the stand-in server: the PostgreSQL server of these tests is built without TLS.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from logicalrep.errors import ReplicationError
from logicalrep.recorder import Connected, Reconnecting, Recorder
from logicalrep.recording import RecordingReader
from logicalrep.standin import StandIn
from tests.recorder.lab import Lab
from tests.server import Server
from tests.standin.streams import Repeated


@pytest.fixture
def rotating(guarded: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(guarded, tmp_path) as lab:
        lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        lab.run("GRANT SELECT ON t TO scram", "SET password_encryption = 'scram-sha-256'")
        yield lab
        lab.run("ALTER ROLE scram PASSWORD 'right'")


def test_a_password_that_is_rotated_while_recording(rotating: Lab, tmp_path: Path) -> None:
    """The server changes the password first; the recorder retries until the password file has changed too."""
    passwords = tmp_path / "passwords"

    def write_password(password: str) -> None:
        passwords.touch(mode=0o600)
        passwords.write_text(f"*:*:{rotating.name}:scram:{password}\n")

    write_password("right")
    dsn = f"{rotating.dsn} user=scram passfile={passwords}"
    with rotating.recording(dsn=dsn, snapshot=True) as recording:
        recording.wait(Connected)
        rotating.run("ALTER ROLE scram PASSWORD 'newer'", "INSERT INTO t VALUES (1)")
        pid = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{rotating.slot}'"
        rotating.run(f"SELECT pg_terminate_backend(({pid}))")
        recording.wait(Reconnecting, 2)
        assert "password authentication failed" in recording.events_of(Reconnecting)[-1].reason
        write_password("newer")
        recording.wait(Connected, 2)
        rotating.run("INSERT INTO t VALUES (2)")
    assert all(secret not in str(recording.events) for secret in ("right", "newer"))
    rotating.record(dsn=dsn, snapshot=True)
    rotating.assert_equal()


# TLS


class Authority:
    """Issues certificates for `localhost`, and starts stand-in servers that use these certificates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._authority = trustme.CA()
        self.root = folder / "root.pem"
        self._authority.cert_pem.write_to_path(str(self.root))

    def server(self, *, binds: bool = True, binds_to: bytes | None = None) -> StandIn:
        leaf = self._authority.issue_cert("localhost")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        leaf.configure_cert(context)
        der = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
        certificate_hash = hashlib.sha256(binds_to or der).digest() if binds else None
        return StandIn(
            Repeated(2), tls=context, certificate_hash=certificate_hash, user="me", password="secret"
        )


def record(dsn: str, folder: Path) -> int:
    """Record up to the end of the WAL; return the number of recorded messages."""
    Recorder(dsn, "lake", ["p"], folder, create_slot=True).run(until="now")
    with RecordingReader(folder) as segments:
        return sum(1 for _ in segments.records())


def test_a_verified_certificate_is_accepted(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    with authority.server() as server:
        dsn = f"{server.dsn} host=localhost sslmode=verify-full sslrootcert={authority.root}"
        assert record(dsn, tmp_path / "recording") == 201


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("sslrootcert={other}", "certificate verify failed"),
        ("host=127.0.0.1", 'certificate for "localhost" .*does not match host name "127.0.0.1"'),
        ("sslrootcert=/nowhere/root.pem", 'root certificate file "/nowhere/root.pem" does not exist'),
        ("password=wrong", 'password authentication failed for user "me"'),
        ("passfile=/nowhere/passwords password=", "no password supplied"),
    ],
)
def test_connections_refused_at_once(change: str, reason: str, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "authority"), Authority(tmp_path / "other")
    with authority.server() as server:
        dsn = f"{server.dsn} host=localhost sslmode=verify-full sslrootcert={authority.root}"
        with pytest.raises(ReplicationError, match=reason):
            record(f"{dsn} {change.format(other=other.root)}", tmp_path / "recording")


def test_channel_binding(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    required = f"sslmode=verify-full sslrootcert={authority.root} channel_binding=require host=localhost"
    with authority.server() as server:
        assert record(f"{server.dsn} {required}", tmp_path / "recording") == 201
    with authority.server(binds=False) as server, pytest.raises(ReplicationError, match="channel binding"):
        record(f"{server.dsn} {required}", tmp_path / "none")
    with (
        StandIn(Repeated(2), user="me", password="secret") as server,
        pytest.raises(ReplicationError, match=r"server does not support SSL|channel binding"),
    ):
        record(f"{server.dsn} {required}", tmp_path / "plain")


def test_channel_binding_detects_another_certificate(tmp_path: Path) -> None:
    """A machine in the middle has a trusted certificate, which differs from the server's certificate."""
    authority = Authority(tmp_path / "authority")
    with authority.server(binds_to=b"another certificate") as server:
        dsn = f"{server.dsn} host=localhost sslmode=verify-full sslrootcert={authority.root}"
        with pytest.raises(ReplicationError, match="SCRAM channel binding check failed"):
            record(dsn, tmp_path / "recording")


def test_no_secret_in_errors(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    with authority.server() as server, pytest.raises(ReplicationError) as caught:
        record(f"{server.dsn} password=SECRET host=localhost", tmp_path / "recording")
    assert "SECRET" not in str(caught.value)
