"""The command `logicalrep snapshot`: asks a recorder to add the rows of tables to its recording."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rich.console import Console

from logicalrep.cli.common.permissions import refuse_root
from logicalrep.cli.common.printing import complain
from logicalrep.recorder import is_recording, is_requested, request_snapshot

_TICK: Final = 0.2
"""Seconds between two checks whether the request is done."""


def snapshot(
    recording: str, tables: Sequence[str], keys: Mapping[str, Collection[tuple[str, ...]]] = {}
) -> None:
    """Ask the recorder of a recording to add the rows of tables, and wait until they are stored.

    Args:
        recording: Folder or URL of the recording.
        tables: Names of the tables.
        keys: By table name, the keys of the rows to add; of other tables, all rows are added.

    Raises:
        RecordingError: The folder is not a recording of a server, or the recorder cannot copy the tables.
        OSError: The request cannot be written.
    """
    refuse_root(recording)
    request = request_snapshot(recording, tables, keys)
    if not is_recording(recording):
        complain(
            f"no recorder writes {recording}: start one, which copies the tables, with `logicalrep record`; "
            "Ctrl-C ends this command, and keeps the request"
        )
    with Console(stderr=True, highlight=False).status("the recorder copies the tables"):
        while is_requested(request):
            time.sleep(_TICK)
    complain(f"the rows of {', '.join(tables)} are stored in {recording}")
