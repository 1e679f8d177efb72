"""Startup and authentication of the stand-in server: passwords, TLS and databases."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import struct
import time
from pathlib import Path

import psycopg
import psycopg2
import psycopg2.extras
import pytest
import trustme

from logicalrep.standin import StandIn
from tests.standin.raw_client import RawClient, error_fields
from tests.standin.streams import Repeated
from tests.versions import OLDEST

STREAM = Repeated(1)


@pytest.mark.parametrize(
    "password", ["secret", "pass word, with = and ,", "I\u00adX \u2168 \u00e4", "a" * 200]
)
def test_scram_accepts_only_the_right_user_and_password(password: str) -> None:
    with StandIn(STREAM, user="me", password=password) as server:
        with psycopg.connect(server.dsn, password=password) as connection:
            assert connection.execute("SELECT current_user").fetchone() == ("me",)
        psycopg2.connect(server.dsn, password=password).close()
        with pytest.raises(psycopg.OperationalError, match='password authentication failed for user "me"'):
            psycopg.connect(server.dsn, password="wrong")
        with pytest.raises(psycopg.OperationalError, match='password authentication failed for user "you"'):
            psycopg.connect(server.dsn, password=password, user="you")


def test_scram_rejects_an_empty_proof() -> None:
    with StandIn(STREAM, user="me", password="secret") as server, RawClient(server) as raw:
        raw.startup(user="me")
        assert raw.read() == (b"R", b"\0\0\0\x0aSCRAM-SHA-256\0\0")
        first = b"n,,n=,r=abc"
        raw.send(b"p", b"SCRAM-SHA-256\0" + len(first).to_bytes(4, "big") + first)
        _, challenge = raw.read()
        assert challenge[:4] == b"\0\0\0\x0b"
        nonce = challenge[4:].split(b",")[0]
        assert nonce.startswith(b"r=abc")
        raw.send(b"p", b"c=biws," + nonce + b",p=" + base64.b64encode(bytes(32)))
        assert error_fields(raw.read()[1])["C"] == "28P01"
        assert raw.has_ended


@pytest.mark.parametrize(
    "first", [b"", b"n,,", b"p=tls-unique,,n=,r=a", b"n,,n=,r=", b"n,a=b,n=,r=a", b"\xff", b"y,,n=,x=a"]
)
def test_malformed_scram_messages_are_rejected(first: bytes) -> None:
    with StandIn(STREAM, user="me", password="secret") as server, RawClient(server) as raw:
        raw.startup(user="me")
        raw.read()
        raw.send(b"p", b"SCRAM-SHA-256\0" + len(first).to_bytes(4, "big") + first)
        assert error_fields(raw.read()[1])["C"] == "08P01"
        assert raw.has_ended


def _scram(raw: RawClient, password: str, proof: str = "") -> tuple[str, dict[str, str]]:
    """Authenticate with SCRAM (RFC 5802). Send `proof`, or the right proof if `proof` is empty.

    Return the right proof and the fields of the error response, if there is one.
    """

    def mac(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, "sha256")

    raw.startup(user="me")
    raw.read()
    first = "n,,n=,r=abc"
    raw.send(b"p", b"SCRAM-SHA-256\0" + len(first).to_bytes(4, "big") + first.encode())
    challenge = raw.read()[1][4:].decode()
    nonce, salt, iterations = (part[2:] for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(iterations))
    key = mac(salted, b"Client Key")
    auth_message = f"n=,r=abc,{challenge},c=biws,r={nonce}"
    signature = mac(hashlib.sha256(key).digest(), auth_message.encode())
    right_proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    raw.send(b"p", f"c=biws,r={nonce},p={proof or right_proof}".encode())
    tag, body = raw.read()
    return right_proof, error_fields(body) if tag == b"E" else {}


def test_a_scram_proof_cannot_be_replayed() -> None:
    with StandIn(STREAM, user="me", password="secret") as server:
        with RawClient(server) as raw:
            proof, error = _scram(raw, "secret")
            assert error == {}
        for other, sqlstate in ((proof, "28P01"), (proof[:-8], "08P01"), ("A" * 44, "08P01"), ("?", "08P01")):
            with RawClient(server) as raw:
                assert _scram(raw, "secret", other)[1]["C"] == sqlstate
                assert raw.has_ended


@pytest.mark.parametrize(
    "sent", [b"", b"x" * 1000, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600)]
)
def test_invalid_tls_data_does_not_disturb_other_clients(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with StandIn(STREAM, tls=context) as server:
        with RawClient(server) as raw:
            raw.socket.sendall(struct.pack(">II", 8, 80877103))
            assert raw.file.read(1) == b"S"
            raw.socket.sendall(sent)
            raw.socket.shutdown(socket.SHUT_WR)
            while raw.file.read(1000):
                pass
        psycopg.connect(server.dsn).close()
    assert caplog.records == []


def test_tls_with_password_and_replication(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    root = tmp_path / "root.pem"
    authority.cert_pem.write_to_path(str(root))
    with StandIn(STREAM, tls=context, user="me", password="secret") as server:
        dsn = f"{server.dsn} sslmode=verify-full sslrootcert={root}"
        with psycopg.connect(dsn) as connection:
            assert connection.pgconn.ssl_in_use
        replication = psycopg2.connect(dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
        with replication.cursor() as cursor:
            cursor.create_replication_slot("a", output_plugin="pgoutput")
            cursor.start_replication("a", options={"proto_version": str(OLDEST), "publication_names": "p"})
            deadline = time.monotonic() + 60
            while cursor.read_message() is None:
                assert time.monotonic() < deadline
        replication.close()
        with psycopg.connect(f"{server.dsn} sslmode=disable") as connection:
            assert not connection.pgconn.ssl_in_use
    with StandIn(STREAM) as server, pytest.raises(psycopg.OperationalError, match="does not support SSL"):
        psycopg.connect(f"{server.dsn} sslmode=require")


def test_an_unknown_database_is_rejected() -> None:
    class NamedDatabase(Repeated):
        database = "shop"

    with StandIn(NamedDatabase(1)) as server:
        assert "dbname=shop" in server.dsn
        psycopg.connect(server.dsn).close()
        with pytest.raises(psycopg.OperationalError, match='database "other" does not exist'):
            psycopg.connect(server.dsn, dbname="other")


def test_a_user_without_a_password_is_rejected() -> None:
    with (
        pytest.raises(ValueError, match="both a user and a password, or neither"),
        StandIn(STREAM, user="me"),
    ):
        pass
