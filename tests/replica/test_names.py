"""A table is in the folder of its relation's name, while relations are renamed, exchanged and made again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from logicalrep.apply import rename_columns
from logicalrep.messages import Insert, Message
from logicalrep.recording import GoneTable, PathOrUri, Remarks, RenamedTable, SegmentWriter, locate
from logicalrep.replica import names as replica_names, replica_tables, replicate
from logicalrep.targets import KEY, MAY_DIFFER, ConflictError, registry
from logicalrep.targets.delta import table as delta
from tests import store
from tests.kills import Killed, Kills
from tests.messages import make_column, make_relation, transaction_of
from tests.recording.recordings import FIRST, PARALLEL, wrapped
from tests.replica.tables import open_table, read_table
from tests.targets.formats import Format

AGAIN = "drop t, make t, put t"
SWAP = "make new, put new, rename t old, rename new t"
T, TU, AB = (
    "make t, put t",
    "make t, put t, make u, put u, apply",
    "make a, put a, make b, put b, read, apply",
)
CASES: Mapping[str, str] = {
    "dropped and made again": f"{T}, {AGAIN}, apply, {AGAIN}, {AGAIN}, put t, apply, read, {AGAIN}",
    "the same, and the catalogs are read each time": f"{T}, read, {f'{AGAIN}, read, apply, ' * 4}put t",
    "the same, and the replica begins late": f"{T}, {f'{AGAIN}, read, ' * 4}put t",
    "renamed": f"{T}, apply, rename t u, read, apply, put u, rename u v",
    "renamed to the name of a dropped table": f"{TU}, drop u, rename t u, put u",
    "the same without a change": f"{TU}, drop u, read, apply, rename t u",
    "exchanged": f"{AB}, swap a b, put a, apply, put b, swap a b, put b, put a, apply",
    "exchanged without a change": f"{AB}, {'swap a b, read, apply, ' * 3}",
    "exchanged between two readings": f"{AB}, swap a b, put a, apply, swap a b",
    "exchanged in a ring": f"{AB}, make c, put c, apply, swap a b, swap b c, read, apply, put c",
    "shadow table": f"{T}, apply, {SWAP}, drop old, put t, apply, {SWAP}, drop old",
    "shadow table, and a reading comes late": f"{T}, apply, {SWAP}, put t, apply, read, drop old",
    "shadow table without a change": f"{T}, make new, put new, read, apply, rename t old, rename new t",
    "shadow table between two readings": f"{T}, read, apply, {SWAP}, drop old, read, apply, put t",
    "schemas": "make b.t, put b.t, make b.u, put b.u, make g.t, put g.t, make g.u, put g.u, apply, "
    "rename b.t x.t, rename b.u x.u, rename g.t b.t, rename g.u b.u, put b.t, apply, drop x.t, drop x.u",
    "a name like that of a folder with an OID": f"{T}, make t@1, put t@1, apply, swap t t@1, put t",
}


class Simulated:
    """A server whose stream is recorded, and a replica of it."""

    def __init__(self, folder: Path, target: PathOrUri, *, history: bool = False) -> None:
        self.folder, self.target, self.history = folder / "recording", target, history
        self.folder.mkdir()
        self.tables: dict[str, int] = {}
        self.rows: dict[int, list[str]] = {}
        self._known: dict[int, str] = {}
        """Names in the catalogs as last read, by OID."""
        self._sent: dict[int, str] = {}
        """Names in the last Relation messages, by OID."""
        self._lsn = self._oid = 0
        self._messages: list[Message] = []
        self._remarks = Remarks()
        self._writer = SegmentWriter(self.folder, PARALLEL, FIRST, remarks=lambda *_: self._remarks)

    def run(self, steps: str) -> None:
        for step in filter(None, map(str.strip, steps.split(","))):
            action, *names = step.split()
            getattr(self, f"_{action}")(*names)

    def _make(self, name: str) -> None:
        self._oid += 1
        self.tables[name], self.rows[self._oid] = self._oid, []

    def _drop(self, name: str) -> None:
        del self.tables[name]

    def _rename(self, name: str, to: str) -> None:
        self.tables[to] = self.tables.pop(name)

    def _swap(self, one: str, other: str) -> None:
        self.tables[one], self.tables[other] = self.tables[other], self.tables[one]

    def _put(self, name: str) -> None:
        self._lsn += 100
        oid, key = self.tables[name], str(self._lsn)
        self.rows[oid].append(key)
        relation = make_relation(make_column("k", key=True), oid=oid, **named(name))
        described = () if self._sent.get(oid) == name else (relation,)
        self._sent[oid] = name
        row = Insert(relation_oid=oid, new=(key,))
        self._messages += transaction_of(self._lsn, self._lsn, *described, row)

    def _read(self) -> None:
        """Read the catalogs; the metadata of the segment say what was found."""
        self._lsn += 100
        self._messages += transaction_of(self._lsn, self._lsn)
        now = {oid: name for name, oid in self.tables.items()}
        known = self._sent | self._known
        self._remarks = Remarks(
            gone=tuple(
                GoneTable(oid=oid, after_lsn=self._lsn, time=0, **named(name))
                for oid, name in known.items()
                if oid not in now
            ),
            renamed=tuple(
                RenamedTable(oid=oid, lsn=self._lsn, **named(name))
                for oid, name in now.items()
                if {known.get(oid, name), self._sent.get(oid, name)} != {name}
            ),
        )
        self._known, self._sent = now, {oid: name for oid, name in self._sent.items() if oid in now}
        self._end_segment()

    def _end_segment(self) -> None:
        if self._messages:
            self._writer.write(wrapped(*self._messages, lsn=self._lsn), 1_000_000)
            self._messages.clear()
        self._writer.rotate()
        self._remarks = Remarks()

    def _apply(self) -> None:
        self._end_segment()
        replicate(self.folder, self.target, history=self.history)

    def check(self) -> dict[str, str]:
        """Check that each folder has the rows of its name, or a mark; return the folder of each name."""
        found = replica_tables(self.target)
        names = {oid: name for name, oid in self.tables.items()}
        for folder in registry.table_names(locate(self.target)):
            if (table := registry.format_of(locate(self.target)).open(locate(self.target) / folder)) is None:
                continue
            oid = int(table.properties[registry.OID])
            if oid in names and folder == folder_of(names[oid]):
                rows = read_table(table.place.place).to_pylist()
                assert sorted(row["k"] for row in rows) == sorted(self.rows[oid]), folder
            elif "@" not in folder:
                assert table.properties.get(registry.DROPPED) or "folder" in table.properties[MAY_DIFFER], (
                    folder
                )
        for oid, name in names.items():
            assert (found[oid].namespace, found[oid].name) == tuple(named(name).values())
        return {name: found[oid].place.rpartition("/")[2] for oid, name in names.items()}


def named(name: str) -> dict[str, Any]:
    namespace, _, table = name.rpartition(".")
    return {"namespace": namespace or "public", "name": table}


def folder_of(name: str) -> str:
    return registry.folder_name(*named(name).values())


@pytest.fixture(autouse=True)
def _no_pause(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("nightly") is None:
        monkeypatch.setattr(delta, "_PAUSE", 0.0)


@pytest.mark.parametrize("case", CASES)
def test_each_name_gives_the_rows_of_its_relation(case: str, any_format: Format, tmp_path: Path) -> None:
    simulated = Simulated(tmp_path, tmp_path / "lake", history=case == "shadow table")
    simulated.run(f"{CASES[case]}, read, apply")
    assert simulated.check() == {name: folder_of(name) for name in simulated.tables}


KILLED = ["dropped and made again", "exchanged", "exchanged in a ring", "shadow table"]


@pytest.mark.parametrize("case", KILLED)
def test_a_kill_at_any_step_leaves_work_for_the_next_run(
    case: str, any_format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, kills, number = Kills(), 0, 1
    for module, name in (
        (type(any_format.format), "move"),
        (registry, "register_table"),
        (any_format.table, "set_properties"),
    ):
        monkeypatch.setattr(module, name, times.watch(getattr(module, name), after=True))
    simulated = Simulated(tmp_path, tmp_path / "lake")
    for step in f"{CASES[case]}, read, apply".split(","):
        while True:
            times.left = number if step.strip() == "apply" else 0
            with suppress(Killed):
                simulated.run(step)
                number = 1
                break
            number, kills = number + 1, kills + 1
    assert simulated.check() == {name: folder_of(name) for name in simulated.tables}
    assert kills > 8


def test_a_key_column_whose_renaming_was_killed_is_renamed_again(
    any_format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated, renamed = Simulated(tmp_path, tmp_path / "lake"), [("k", "x")]
    simulated.run(f"{T}, read, apply")
    open_table(tmp_path / "lake" / "public.t").set_properties({KEY: '["k"]'})
    times = Kills()
    with monkeypatch.context() as patched:
        patched.setattr(any_format.table, "commit", times.watch(any_format.table.commit))
        times.left = 1
        with pytest.raises(Killed):
            rename_columns(open_table(tmp_path / "lake" / "public.t"), renamed)
    rename_columns(open_table(tmp_path / "lake" / "public.t"), renamed)
    table = open_table(tmp_path / "lake" / "public.t")
    assert (table.schema.names[0], table.properties[KEY]) == ("x", '["x"]')


def test_a_name_is_known_before_the_next_change(any_format: Format, tmp_path: Path) -> None:
    simulated = Simulated(tmp_path, tmp_path / "lake")
    simulated.run(f"{T}, apply, rename t s.u, read, apply")
    (table,) = replica_tables(tmp_path / "lake").values()
    assert (table.namespace, table.name, Path(table.place).name, table.may_differ) == ("s", "u", "s.u", ())
    assert table.shown_name == "s.u"


@pytest.mark.delta
def test_a_folder_of_another_program_keeps_its_name(any_format: Format, tmp_path: Path) -> None:
    simulated = Simulated(tmp_path, tmp_path / "lake")
    simulated.run(f"{T}, apply")
    (tmp_path / "lake" / "public.u").mkdir()
    simulated.run("rename t u, read, apply")
    (table,) = replica_tables(tmp_path / "lake").values()
    assert table.shown_name == "public.u (in the folder public.t)"
    (tmp_path / "lake" / "public.u").rmdir()
    simulated.run("put u, apply")
    assert simulated.check() == {"u": "public.u"}


@pytest.mark.delta
def test_a_commit_does_not_reach_the_table_that_has_got_the_folder(
    any_format: Format, tmp_path: Path
) -> None:
    """Another thread or process has opened a table before its name was given to another table."""
    simulated = Simulated(tmp_path, tmp_path / "lake")
    simulated.run(AB)
    opened = open_table(tmp_path / "lake" / "public.a")
    simulated.run("swap a b, read, apply")
    changes: list[Callable[[], object]] = [lambda: opened.set_properties({"x": "y"}), opened.remove_unused]
    for change in changes:
        with pytest.raises(ConflictError, match=r"public\.a: the table was moved to another folder"):
            change()
    assert simulated.check() == {"a": "public.a", "b": "public.b"}


@pytest.mark.delta
@pytest.mark.parametrize(
    "case",
    [
        "shadow table",
        *(pytest.param(one, marks=pytest.mark.nightly) for one in ("renamed", "exchanged", KILLED[0])),
    ],
)
def test_folders_in_an_object_store_keep_their_names(
    case: str, any_format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moto: int
) -> None:
    for name, value in store.settings(moto).items():
        monkeypatch.setenv(name, value)
    simulated = Simulated(tmp_path, f"s3://{store.BUCKET}/{tmp_path.name}")
    simulated.run(f"{CASES[case]}, read, apply")
    found = simulated.check()
    assert (found == {name: folder_of(name) for name in found}) == (case in ("exchanged", KILLED[0]))


@pytest.mark.nightly
def test_readers_never_mix_tables_that_exchange_their_names(any_format: Format, tmp_path: Path) -> None:
    """Ten exchanges in ten seconds; a reader finds a state of one table, or for less than a second none."""
    simulated = Simulated(tmp_path, tmp_path / "lake")
    simulated.run("make a, make b, put a, put b, read, apply")
    stop, gaps, wrong = Event(), list[float](), list[object]()

    def read(place: str) -> None:
        since = time.monotonic()
        while not stop.is_set():
            began = time.monotonic()
            with suppress(Exception):
                rows = sorted((row["k"] for row in any_format.read(place, None).to_pylist()), key=int)
                gaps.append(began - since)  # from the end of the last good reading
                if not any(rows and rows == known[: len(rows)] for known in simulated.rows.values()):
                    wrong.append((place, rows))
                since = time.monotonic()

    places = [str(tmp_path / "lake" / f"public.{name}") for name in "aabb"]
    threads = [Thread(target=read, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for number in range(10):
        began = time.monotonic()
        simulated.run(f"{'put a, ' * number}swap a b, put a, put b, read, apply")
        time.sleep(max(0.0, began + 1 - time.monotonic()))
    stop.set()
    for thread in threads:
        thread.join()
    assert simulated.check() == {"a": "public.a", "b": "public.b"}
    assert not wrong
    assert len(gaps) > 40
    assert max(gaps) < 1.0, max(gaps)


@pytest.mark.parametrize("case", ["exchanged without a change", "dropped and made again"])
def test_a_name_is_free_before_it_gets_another_table(
    case: str, any_format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, names = list[float](), list[list[str]]()
    simulated = Simulated(tmp_path, tmp_path / "lake")
    monkeypatch.setattr(delta, "_PAUSE", 0.01)

    def sleep(seconds: float) -> None:
        free.append(seconds)
        names.append(registry.table_names(locate(tmp_path / "lake")))

    # Not the function `time.sleep` itself: threads of other tests call it too.
    for module in (replica_names, registry):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    simulated.run(f"{CASES[case]}, read, apply")
    pause = registry.rename_pause(locate(tmp_path / "lake"))
    assert free
    assert {*free} == {pause}
    wanted = {folder_of(name) for name in simulated.tables}
    assert all(wanted - {*one} for one in names)
