"""After a power failure, a target has what was flushed to the disk, and the next run makes it equal."""

from __future__ import annotations

import os
import random
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from logicalrep.replica import replica_tables, replicate
from tests.recorder.lab import Lab
from tests.replica.live import Replica

pytestmark = pytest.mark.usefixtures("any_format")


class Disk:
    """A folder, of which a power failure leaves only what was flushed (fsync).

    A file is kept with the content that it had when it was flushed, if its folder was flushed after the file
    got its name. An SQLite database, which flushes itself without Python, is kept.

    Args:
        folder: The folder.
        seed: Seed for what is kept of a file or name that was not flushed: a kernel may write any of them.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._draw = random.Random(seed)
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, int] = {}

    def flush(self, descriptor: int) -> None:
        """Flush a file or a folder; called in place of `os.fsync`."""
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._names = {name: node for name, node in self._names.items() if name.parent != path}
            self._names |= {one: one.stat().st_ino for one in path.iterdir()}
        else:
            self._contents[os.fstat(descriptor).st_ino] = path.read_bytes()

    def lose_power(self) -> None:
        """Leave what was flushed, and a part of the rest."""
        files = [one for one in self._folder.rglob("*") if one.is_file()]
        for path in [one for one in files if ".db" not in one.name]:
            node = path.stat().st_ino
            is_named = self._names.get(path) == node or self._draw.random() < 0.3
            if not is_named:
                path.unlink()
            elif node not in self._contents and self._draw.random() < 0.7:
                path.write_bytes(b"")
        for path, node in self._names.items():  # a file that was removed may be there again
            if not path.exists() and node in self._contents:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._contents[node])
        left = [one for one in self._folder.rglob("*") if one.is_file()]  # all of it is on the disk
        self._names = {path: path.stat().st_ino for path in left}
        self._contents = {path.stat().st_ino: path.read_bytes() for path in left}


class PowerFailure(BaseException):
    pass


@pytest.mark.parametrize("seed", range(12))
def test_a_target_is_continued_after_a_power_failure(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    target, draw = tmp_path / "target", random.Random(seed)
    lab.run("CREATE PUBLICATION p FOR ALL TABLES", "CREATE TABLE t (id int PRIMARY KEY, a text)")
    lab.record()
    replica = Replica(lab, target)
    disk = Disk(target, seed)
    for number in range(6):
        lab.run(
            f"INSERT INTO t (id, a) SELECT 100 * {number} + g, 'new' FROM generate_series(1, 20) g",
            f"UPDATE t SET a = 'at {number}' WHERE id % 7 = {number}",
            f"DELETE FROM t WHERE id % 11 = {number}",
            *(
                ["ALTER TABLE t ADD b timestamp", "INSERT INTO t VALUES (-1, 'b', now())"]
                if number == 3
                else []
            ),
        )
        lab.record()
        left = draw.randrange(12)

        def flush(descriptor: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise PowerFailure
            disk.flush(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", flush)
            with suppress(PowerFailure):
                replicate(lab.folder, target)
        if target.exists():
            disk.lose_power()
    replica.follow()
    replica.assert_equal()
    assert [one.error for one in replica_tables(target).values() if one.error] == []


def test_nothing_is_kept_that_was_not_flushed(tmp_path: Path) -> None:
    """The simulated disk loses files."""
    disk = Disk(tmp_path, 1)
    for number in range(40):
        (tmp_path / str(number)).write_text("x")
    disk.lose_power()
    kept = list(tmp_path.iterdir())
    assert 0 < len(kept) < 30
    assert {one.read_text() for one in kept} == {"", "x"}
    shutil.rmtree(tmp_path)
