"""Credentials of an object store that expire and are renewed while recorder and replica run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logicalrep.errors import RecordingError
from logicalrep.recorder import Connected, Reconnecting, Stored
from logicalrep.recording import object_store
from logicalrep.replica import replica_tables
from tests import store
from tests.conftest import Run
from tests.recorder.lab import Lab
from tests.replica.tables import rows_of

SECONDS = 3
"""Lifetime of credentials."""


@pytest.fixture
def credentials(
    proxy: store.Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[store.Credentials]:
    """Let the store accept only credentials of a server that gives them to containers."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text(store.Credentials.TOKEN)
    with store.Credentials(SECONDS) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url)
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        proxy.is_valid = server.is_valid
        yield server


def test_credentials_are_renewed(lab: Lab, url: str, credentials: store.Credentials, tmp_path: Path) -> None:
    """Recorder and replica run for longer than credentials are valid. Both write to the store."""
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    target = url.replace("recording", "lake")
    command = [
        sys.executable,
        "-m",
        "logicalrep.cli",
        "replicate",
        f"--recording={url}",
        f"--target={target}",
    ]
    with lab.recording(recording=url, segment_seconds=0.2) as recording:
        recording.wait(Connected)
        lab.run("INSERT INTO t VALUES (0)")
        recording.wait(Stored)
        with subprocess.Popen([*command, "--follow"], stderr=subprocess.PIPE, text=True) as replica:
            try:
                for number in range(1, 4):
                    time.sleep(SECONDS)
                    lab.run(f"INSERT INTO t VALUES ({number})")
                    recording.wait(Stored, number + 1)
            finally:
                time.sleep(SECONDS)
                replica.send_signal(signal.SIGTERM)
                _, err = replica.communicate()
        assert recording.events_of(Reconnecting) == []
    assert (replica.returncode, err) == (0, "")
    assert len(credentials.given) >= 4
    done = subprocess.run([*command, "--log=json"], capture_output=True, text=True, check=True)
    assert done.stdout == "", "the query had applied everything"
    tables = subprocess.run(
        [sys.executable, "-m", "logicalrep.cli", "verify", f"--recording={url}", f"--target={target}"],
        env=os.environ | {"LOGICALREP_VERIFY_DSN": lab.dsn},
        capture_output=True,
        text=True,
    )
    assert tables.returncode == 0, tables.stderr


@pytest.fixture
def profile(proxy: store.Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store accept only the keys of an AWS profile, which also has the region."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    keys = "aws_access_key_id = OF-THE-PROFILE\naws_secret_access_key = s3kr3t\n"
    (tmp_path / "config").write_text(f"[profile lake]\nregion = eu-central-1\n{keys}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_PROFILE", "lake")
    proxy.is_valid = lambda key: key == "OF-THE-PROFILE"


def test_keys_of_a_profile(lab: Lab, url: str, profile: None) -> None:
    """Recorder, replica and readers use the keys."""
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    with lab.recording(recording=url) as recording:
        recording.wait(Connected)
        lab.run("INSERT INTO t VALUES (1)")
        recording.wait(Stored)
    target = url.replace("recording", "lake")
    words = "replicate", f"--recording={url}", f"--target={target}"
    done = subprocess.run([sys.executable, "-m", "logicalrep.cli", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (oid,) = replica_tables(target)
    assert rows_of(target, oid)["id"].to_pylist() == [1]


@pytest.mark.parametrize("name", ["unknown", "empty"])
def test_a_profile_without_keys_is_refused(
    url: str, profile: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    with (tmp_path / "config").open("a") as config:
        config.write("[profile empty]\nregion = eu-central-1\n")
    monkeypatch.setenv("AWS_PROFILE", name)
    with pytest.raises(RecordingError, match=f"{url}: the AWS profile {name} gives no credentials: "):
        object_store.ObjectStore(url)


@pytest.mark.parametrize("status", [404, 500])
def test_the_service_that_gives_credentials_fails_for_a_while(
    lab: Lab, url: str, credentials: store.Credentials, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(object_store, "_RETRIES", 0)
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    with lab.recording(recording=url) as recording:
        recording.wait(Connected)
        credentials.status = status
        lab.run("INSERT INTO t VALUES (1)")
        assert "no credentials were found on this machine" in recording.wait(Reconnecting).reason
        credentials.status = 200
        recording.wait(Connected, 2)
        lab.run("INSERT INTO t VALUES (2)")
        recording.wait(Stored)
    assert lab.segments(url)


def test_3_the_service_that_gives_credentials_fails(
    run: Run, credentials: store.Credentials, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_RETRIES", 0)
    credentials.status = 500
    for command in (
        f"record --slot s --publication p --retry-for 0 --recording {url}",
        f"segments {url}",
        f"replicate --recording {url} --target {url}/lake",
        f"tables {url}/lake",
    ):
        done = run(*command.split())
        assert (done.code, done.err.count("\n")) == (3, 1), (command, done.err)
