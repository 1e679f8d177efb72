"""Passwords and certificates: what is checked, and what happens when they are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgoutput.capture import Connected, Reconnecting
from tests.capture.lab import Lab
from tests.server import Server


@pytest.fixture
def rotating(guarded: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(guarded, tmp_path) as lab:
        lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        lab.run("GRANT SELECT ON t TO scram")
        yield lab
        lab.run("ALTER ROLE scram PASSWORD 'right'")


def test_a_password_that_is_rotated_while_recording(rotating: Lab, tmp_path: Path) -> None:
    """The server has the new password first; the recorder retries until the password file has it too."""
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
        assert "password authentication failed" in recording.told(Reconnecting)[-1].reason
        write_password("newer")
        recording.wait(Connected, 2)
        rotating.run("INSERT INTO t VALUES (2)")
    assert all(secret not in str(recording.events) for secret in ("right", "newer"))
    rotating.record(dsn=dsn, snapshot=True)
    rotating.assert_equal()
