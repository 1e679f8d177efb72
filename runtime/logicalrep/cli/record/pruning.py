"""The command `logicalrep prune`: prints what was removed from a recording, and who needs the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from logicalrep._text import counted
from logicalrep.cli.common.permissions import refuse_root
from logicalrep.cli.common.printing import complain, print_json, printable
from logicalrep.cli.common.tables import readers_table, table_console
from logicalrep.recording import Pruned, Reader, prune as prune_recording
from logicalrep.wire import format_lsn

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_UNSEEN: Final = timedelta(days=1)
"""Time without a read after which a reader that lags is reported."""


def parse_duration(option: str, text: str) -> float:
    """Return the seconds of a duration such as `7d`.

    Raises:
        typer.BadParameter: The text is not a duration.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration such as 90m, 12h or 7d", param_hint=option)
    return float(found[1]) * _UNITS[found[2]]


def prune(recording: str, keep: str, forget: Sequence[str], *, dry_run: bool, json: bool) -> None:
    """Prune a recording, and print what was removed.

    Raises:
        LogicalrepError: The recording cannot be pruned.
    """
    if not dry_run:
        refuse_root(recording)
    done = prune_recording(
        recording, keep=parse_duration("--keep", keep), forget=frozenset(forget), dry_run=dry_run
    )
    if json:
        print_json(done)
        return
    console = table_console()  # prints the IDs of readers in full: --forget needs them
    if done.readers:
        console.print(readers_table(done.readers), "", sep="\n")
    verb = "would be removed" if dry_run else "removed"
    console.print(f"{counted(done.files, 'file')}, {counted(done.bytes, 'byte')} {verb}.")
    place = f"segment {done.first_segment} (LSN {format_lsn(done.lsn)})"
    console.print(f"The recording begins with {place}: {printable(done.kept)}.")
    for reader in _unseen(done):
        complain(
            f"reader {reader.id} has read nothing since {reader.time}, and needs segment {reader.segment}: "
            f"if it is gone, forget it: --forget {reader.id}"
        )


def _unseen(done: Pruned) -> list[Reader]:
    before = datetime.now(UTC) - _UNSEEN
    return [
        reader
        for reader in done.readers
        if reader.segment < done.last_segment and datetime.fromisoformat(reader.time) < before
    ]
