"""No falsified file of a recording or replica makes `verify` say that a table is equal that differs.

A verdict may be "equal" while recorded changes are not applied yet; the next run of the replica applies them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from logicalrep.errors import LogicalrepError
from logicalrep.replica import replica_tables
from logicalrep.verification import verify, verify_tables
from tests.recorder.lab import Lab
from tests.replica.live import Replica
from tests.replica.tables import row_texts
from tests.server import Server

TABLES = "t", "u"
STAGES = (
    ("INSERT INTO t SELECT g, 'one' FROM generate_series(1, 50) g", "INSERT INTO u VALUES (1, 'one')"),
    ("UPDATE t SET a = 'two' WHERE id % 3 = 0", "DELETE FROM t WHERE id < 4", "INSERT INTO u VALUES (2, '')"),
    ("UPDATE t SET a = 'end' WHERE id % 5 = 0", "INSERT INTO u VALUES (3, '')", "DELETE FROM u WHERE id < 2"),
)  # fmt: skip

LAST = len(STAGES) - 1

FORMS = (
    "older",
    "newer",
    "missing",
    "flipped",
    *(pytest.param(one, marks=pytest.mark.nightly) for one in ("cut", "empty")),
)


class Falsified:
    """A recording and its replica, as they were after each stage, and the tables of the source.

    Args:
        lab: The test database.
        folder: Folder for the copies.
    """

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.place = lab.folder.parent
        self.outcomes: Counter[str] = Counter()
        """How often `verify` has found all tables equal or not, or has refused."""
        replica = Replica(lab, self.place / "lake")
        lab.run(
            "CREATE PUBLICATION p FOR ALL TABLES",
            *(f"CREATE TABLE {name} (id int PRIMARY KEY, a text)" for name in TABLES),
        )
        lab.record()
        for number, statements in enumerate(STAGES):
            for statement in statements:
                lab.run(statement)
                lab.record()
                replica.follow()
            for part in ("recording", "lake"):
                shutil.copytree(self.place / part, folder / str(number) / part)
        self.replica = replica

    def restore(self, stage: int = LAST) -> None:
        for part in ("recording", "lake"):
            shutil.rmtree(self.place / part, ignore_errors=True)
            shutil.copytree(self.folder / str(stage) / part, self.place / part)

    def files(self) -> list[str]:
        """Return the paths of all files of the recording and the replica, also those that are gone since."""
        found = {
            str(path.relative_to(self.folder / str(number)))
            for number in range(len(STAGES))
            for path in (self.folder / str(number)).rglob("*")
            if path.is_file()
        }
        return sorted(found)

    def falsify(self, name: str, form: str) -> Iterator[str]:
        """Restore all, and falsify a file or folder; yield a description of each way to do so."""
        path = self.place / name
        if form in ("older", "newer"):
            for number in range(LAST):
                now, then = (LAST, number) if form == "older" else (number, LAST)
                other = self.folder / str(then) / name
                self.restore(now)
                if path.is_dir():
                    shutil.rmtree(path)
                    shutil.copytree(other, path)
                elif other.is_file() and not (path.is_file() and path.read_bytes() == other.read_bytes()):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(other, path)
                else:
                    continue
                yield f"{name} as of stage {then}, all else as of stage {now}"
            return
        self.restore()
        if path.is_dir() and form == "missing":
            shutil.rmtree(path)
        elif path.is_file():
            content = path.read_bytes()
            middle = len(content) // 2
            if form == "missing":
                path.unlink()
            else:
                flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
                path.write_bytes({"cut": content[:middle], "empty": b"", "flipped": flipped}[form])
        else:
            return
        yield f"{name} {form}"

    def lies(self) -> list[str]:
        """Return the tables that `verify` calls equal, and that differ when all changes are applied."""
        try:
            verdicts = [*verify_tables(self.lab.folder, self.replica.target, self.lab.dsn)]
        except (LogicalrepError, OSError):
            self.outcomes["refused"] += 1
            return []
        equal = {one.table.removeprefix("public.") for one in verdicts if one.is_equal}
        self.outcomes["equal" if len(equal) == len(TABLES) else "different"] += 1
        try:
            self.replica.follow()
        except (AssertionError, LogicalrepError, OSError):  # the run ends with an error
            return []
        errors = {one.name for one in replica_tables(self.replica.target).values() if one.error}
        return [name for name in TABLES if name in equal - errors and not self.is_equal(name)]

    def is_equal(self, name: str) -> bool:
        expected = Counter(self.lab.rows(f"SELECT id::text, a FROM {name}"))
        tables = {one.name: one.place for one in replica_tables(self.replica.target).values()}
        if name not in tables:
            return not expected
        rows = map(row_texts, DeltaTable(tables[name]).to_pyarrow_table().to_pylist())
        return Counter((row["id"], row["a"]) for row in rows) == expected


@pytest.fixture(scope="module")
def made(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Falsified]:
    folder = tmp_path_factory.mktemp("falsified")
    with Lab(server, folder / "now") as lab:
        yield Falsified(lab, folder)


@pytest.fixture
def falsified(made: Falsified, monkeypatch: pytest.MonkeyPatch) -> Falsified:
    """The recording is complete. If it were continued, the slot would be ahead of the restored files."""
    monkeypatch.setattr(verify, "_await_recording", lambda *arguments: None)
    made.restore()
    made.outcomes.clear()
    assert made.lies() == []
    assert made.outcomes == {"equal": 1}
    return made


FOLDERS = (
    "recording", "lake", "lake/_relations", "lake/public.t", "lake/public.u",
    "lake/public.t/_delta_log",
)  # fmt: skip


@pytest.mark.parametrize("form", ["older", "newer", "missing"])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_falsified_folder_makes_no_table_equal(falsified: Falsified, name: str, form: str) -> None:
    for text in falsified.falsify(name, form):
        assert falsified.lies() == [], text


@pytest.mark.parametrize("form", FORMS)
def test_a_falsified_file_makes_no_table_equal(falsified: Falsified, form: str) -> None:
    lies = [
        (text, found)
        for name in falsified.files()
        for text in falsified.falsify(name, form)
        if (found := falsified.lies())
    ]
    assert lies == []
