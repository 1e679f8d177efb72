"""Other users can neither read what logicalrep writes nor prepare a folder for it, and find no secret."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from logicalrep.errors import RecordingError
from logicalrep.recorder.client import parse_dsn
from logicalrep.recorder.storage.folder import Folder
from logicalrep.recorder.storage.store_folder import _state_folder
from tests.conftest import Run
from tests.recorder.lab import Lab, wait_until
from tests.server import Server

SECRET = "s3kr3t"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that asks the role `clerk` for the password SECRET."""
    with Server() as server:
        hba = server.data / "pg_hba.conf"
        hba.write_text(f"local all clerk scram-sha-256\n{hba.read_text()}")
        with server.connect() as connection:
            connection.execute(f"CREATE ROLE clerk LOGIN REPLICATION SUPERUSER PASSWORD '{SECRET}'")
            connection.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(server, tmp_path) as lab:
        lab.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t")
        lab.run("INSERT INTO t VALUES (1, 'private')")
        yield lab


def permissions(folder: Path) -> tuple[set[int], set[int]]:
    """Return the permissions of a folder and the folders below, and of all files in them."""
    found = [folder, *folder.rglob("*")]
    folders, files = (
        {stat.S_IMODE(one.stat().st_mode) for one in found if one.is_dir() == is_folder}
        for is_folder in (True, False)
    )
    return folders, files


def record_and_replicate(run: Run, lab: Lab, lake: Path) -> None:
    """Run `logicalrep record`, `logicalrep replicate` and `logicalrep verify`, each with the usual umask."""
    for command in (
        lab.command("--until=now", "--snapshot")[3:],
        ["replicate", f"--recording={lab.folder}", f"--target={lake}"],
        ["verify", f"--recording={lab.folder}", f"--target={lake}", f"--dsn={lab.dsn}"],
    ):
        os.umask(0o022)
        done = run(*command)
        assert done.code == 0, done.err


def test_new_folders_are_for_their_owner_only(lab: Lab, run: Run) -> None:
    lake = lab.folder.with_name("missing") / "lake"
    record_and_replicate(run, lab, lake)
    assert permissions(lab.folder) == ({0o700}, {0o600})
    assert permissions(lake.parent) == ({0o700}, {0o600})


def test_an_existing_folder_says_who_may_read(lab: Lab, run: Run) -> None:
    lake = lab.folder.with_name("lake")
    for folder in (lab.folder, lake):
        folder.mkdir()
        folder.chmod(0o750)
    record_and_replicate(run, lab, lake)
    assert permissions(lab.folder) == ({0o750}, {0o640})
    assert permissions(lake) == ({0o750}, {0o640})


def test_another_user_reads_nothing(lab: Lab, run: Run) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    lake = lab.folder.with_name("lake")
    record_and_replicate(run, lab, lake)
    readable = Path(shutil.copytree(lab.folder, lab.server.folder / "readable"))
    readable.chmod(0o755)  # otherwise the test would not notice that the user reaches no folder at all
    for path in readable.rglob("*"):
        path.chmod(0o755)
    search: list[str | Path] = [
        "setpriv",
        "--reuid=nobody",
        "--regid=nogroup",
        "--clear-groups",
        "find",
        readable,
        "-type",
        "f",
    ]
    assert subprocess.run(search, check=True, capture_output=True).stdout
    secret = Path(shutil.move(lab.folder, lab.server.folder / "secret"))
    search[-3] = secret
    done = subprocess.run(search, check=False, capture_output=True, text=True)
    assert (done.stdout, "Permission denied" in done.stderr) == ("", True)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    else:
        shutil.chown(folder, "nobody")
    with pytest.raises(RecordingError, match="recording: the folder belongs to another user"):
        Folder(folder)


def test_a_folder_that_all_users_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(
        RecordingError, match=r"recording: all users can write to the folder: run `chmod o-w`"
    ):
        Folder(folder)
    assert not list(folder.iterdir())


def test_root_is_refused_where_its_files_would_stop_another_user(
    lab: Lab, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lab.folder.with_name("lake")
    record_and_replicate(run, lab, lake)
    of_recording, of_lake = f"--recording={lab.folder}", f"--target={lake}"
    writing = {
        lake: [["replicate", of_recording, of_lake], ["verify", of_recording, of_lake, f"--dsn={lab.dsn}"]],
        lab.folder: [["snapshot", of_recording, "--table=public.t"], ["prune", of_recording, "--keep=0s"]],
    }
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    for folder, commands in writing.items():
        if folder.owner() == "root":
            shutil.chown(folder, "nobody")
        before = sorted(lab.folder.parent.rglob("*"))
        for command in commands:
            done = run(*command)
            assert (done.code, done.out) == (2, "")
            # A test that is not run by root has made both folders, and the recording is checked first.
            named = folder if lab.folder.owner() == "root" else lab.folder
            assert f"{named}: the folder belongs to the user {named.owner()}, whose" in done.err
            assert f"(runuser -u {folder.owner()} -- logicalrep …)" in done.err
        assert sorted(lab.folder.parent.rglob("*")) == before
    assert run("prune", of_recording, "--keep=0s", "--dry-run").code == 0
    assert run("status", of_recording).code == 0


def test_the_working_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No user can create it first, unlike a folder in /tmp with a predictable name."""
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _state_folder() == tmp_path / ".local/state/logicalrep"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert _state_folder() == Path("/state/logicalrep")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/logicalrep:/var/lib/other")
    assert _state_folder() == Path("/var/lib/logicalrep/working")


WORDS: Final = "user=clerk password={}"
URI: Final = "postgresql://clerk:{}@/{name}?host={folder}"


@pytest.mark.parametrize(
    ("command", "form"),
    [
        ("record", WORDS),
        ("sync", URI),
        pytest.param("record", URI, marks=pytest.mark.nightly),
        pytest.param("sync", WORDS, marks=pytest.mark.nightly),
    ],
)
def test_no_secret_in_processes_and_logs(lab: Lab, run: Run, tmp_path: Path, command: str, form: str) -> None:
    def configure(secret: str) -> None:
        dsn = form.format(secret, name=lab.name, folder=lab.server.folder)
        password.write_text(dsn if "://" in dsn else f"{lab.dsn} {dsn}")

    password, file, lake = tmp_path / "dsn", tmp_path / "shop.toml", tmp_path / "lake"
    place = f'target = "{lake}"' if command == "sync" else f'recording = "{lab.folder}"\nsnapshot = true'
    options = f'dsn = {{ file = "{password}" }}\nslot = "{lab.slot}"\npublication = ["p"]\n{place}\n'
    file.write_text(f"[{command}]\n{options}")
    arguments = [*lab.command()[:3], command, f"--config={file}", "--log=json"]
    found = lake / "_recording" if command == "sync" else lab.folder
    configure(SECRET)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        wait_until(lambda: any(found.rglob("0*.parquet")) or process.poll() is not None)
        processes = subprocess.run(["ps", "-eww", "-o", "args"], check=True, capture_output=True, text=True)
        process.terminate()
        printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert str(file) in processes.stdout
    for wrong in (f"{SECRET}-wrong", f"{SECRET}:/"):  # refused by the server, and in a URI by libpq
        configure(wrong)
        done = run(*arguments[3:])
        assert done.code in (2, 3)
        printed += done.out + done.err
    files = [one.read_bytes() for one in tmp_path.rglob("*") if one.is_file() and one != password]
    assert SECRET not in printed + processes.stdout
    assert not any(SECRET.encode() in one for one in files)


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://clerk:{SECRET}@x{SECRET}@localhost/shop",
        f"postgresql://clerk:x/{SECRET}@localhost/shop",
        f"postgresql://clerk:{SECRET}:x@localhost:y/shop",
        f"host=localhost password=x {SECRET}",
    ],
)
def test_a_dsn_that_is_cut_inside_the_password_is_not_quoted(dsn: str) -> None:
    with pytest.raises(ValueError, match="special characters of the password are percent-encoded") as caught:
        parse_dsn(dsn)
    assert SECRET not in str(caught.value)
