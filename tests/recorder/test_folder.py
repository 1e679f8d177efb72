"""Missing files of a recording are noticed; concurrent changes of the recording's state file are kept."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from logicalrep.errors import RecordingError
from logicalrep.messages import Begin, Commit, XLogData
from logicalrep.recorder.catalogs.catalog import Catalog
from logicalrep.recorder.catalogs.changes import CatalogChanges
from logicalrep.recorder.storage.folder import LEASE_FILE, Folder, State
from logicalrep.recorder.storage.lease import is_leased
from logicalrep.recording import (
    Directory,
    IncompleteTable,
    PublicationChange,
    SegmentWriter,
    locate,
    replace_file,
    segment_name,
)
from logicalrep.stream import encode_for
from tests.recording.recordings import FIRST, PARALLEL

WHOSE = (PARALLEL.slot, PARALLEL.system_identifier, PARALLEL.database)


def test_removed_segments_are_noticed(tmp_path: Path) -> None:
    """The acknowledged LSN exceeds all LSNs in segments, so only the number of segments shows the loss."""
    writer = SegmentWriter(tmp_path, PARALLEL, FIRST)
    for lsn in (10, 20):
        transaction = (
            Begin(final_lsn=lsn, commit_time=0, xid=1),
            Commit(commit_lsn=lsn, end_lsn=lsn + 1, commit_time=0),
        )
        writer.write(
            [
                XLogData(wal_start=lsn, wal_end=lsn, send_time=0, data=encode_for(message, 4))
                for message in transaction
            ],
            0,
        )
        writer.rotate()
    slot, system, database = WHOSE
    state = State(
        recording=PARALLEL.recording,
        slot=slot,
        system_identifier=system,
        database=database,
        acknowledged_lsn=30,
        last_segment=2,
    )
    with pytest.raises(RecordingError, match=r"_recording\.json is missing"), Folder(tmp_path):
        pass
    (tmp_path / "_recording.json").touch()
    with pytest.raises(RecordingError, match=r"recording\.json: the file is damaged"), Folder(tmp_path):
        pass
    (tmp_path / "_recording.json").unlink()
    (tmp_path / segment_name(1)).rename(tmp_path / ".1")
    (tmp_path / segment_name(2)).rename(tmp_path / ".2")
    with Folder(tmp_path) as folder:
        folder.save(state)
        (tmp_path / ".1").rename(tmp_path / segment_name(1))
        with pytest.raises(RecordingError, match="segments are missing, up to 0000000002"):
            folder.state_for(*WHOSE)
        (tmp_path / ".2").rename(tmp_path / segment_name(2))
        assert folder.state_for(*WHOSE) == state
        assert folder.stored_lsn(state) == 30
        with pytest.raises(RecordingError, match="the recording has the slot slot, not other"):
            folder.state_for("other", *WHOSE[1:])


def test_a_change_saved_while_the_state_is_saved_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow, and a second thread changes the state while the first thread still saves a change."""
    old, new = (
        PublicationChange(publication="p", after_lsn=1, before_lsn=2, time=time, changes=())
        for time in (1, 2)
    )
    slot, system, database = WHOSE
    with Folder(tmp_path) as folder:
        folder.save(State(slot=slot, system_identifier=system, database=database))
        folder.update(publication_changes=(old,))
        catalog = Catalog(1, 1, (), {}, {})
        noting = Thread(target=folder.save_changes, args=(catalog, CatalogChanges((new,), ())))
        replace = folder.directory.replace

        def slow(name: str, content: bytes) -> None:
            if not noting.ident:
                noting.start()
                noting.join(0.2)  # the other thread waits for this one
            replace(name, content)

        monkeypatch.setattr(folder.directory, "replace", slow)
        folder.update(publication_changes=lambda state: ())  # a segment has the change
        noting.join()
        assert folder.state.publication_changes == (new,)


@pytest.mark.parametrize("content", [b"{", b'{"owner": "\xff"}'])
def test_a_damaged_lease_is_an_error_of_the_recording(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LEASE_FILE).write_bytes(content)
    with pytest.raises(RecordingError, match=r"_lease\.json: the lease is damaged \("):
        is_leased(locate(tmp_path / LEASE_FILE))


def test_an_incomplete_table_keeps_its_first_and_its_latest_reason(tmp_path: Path) -> None:
    reasons = "a dropped; b renamed after 0/1", "rewritten after 0/2", "altered after 0/3"
    slot, system, database = WHOSE
    with Folder(tmp_path) as folder:
        folder.save(State(slot=slot, system_identifier=system, database=database))
        for lsn, lost in enumerate(reasons):
            table = IncompleteTable(oid=1, namespace="public", name="t", lsn=lsn, lost=lost)
            for _ in range(2):
                folder.save_changes(Catalog(1, 1, (), {}, {}), CatalogChanges((), (table,)))
        assert folder.state.incomplete[0].lost == f"{reasons[0]}; then {reasons[-1]}"


def test_a_file_is_written_while_a_recorder_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder removes unfinished files whenever the file is about to be renamed."""
    removals: list[Directory] = []
    remove, rename = Directory.remove_partial, Directory.rename
    monkeypatch.setattr(Directory, "remove_partial", lambda directory: removals.append(directory))
    with Folder(tmp_path):
        assert removals

        def rename_after_removal(directory: Directory, old: str, new: str) -> None:
            if removals:
                remove(removals.pop())
            rename(directory, old, new)

        monkeypatch.setattr(Directory, "rename", rename_after_removal)
        replace_file(locate(tmp_path) / "request", b"content")
    assert (tmp_path / "request").read_bytes() == b"content"
