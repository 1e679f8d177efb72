"""A replica that is kept by `apply_changes` in one process, without Spark.

`python -m tests.crash.apply --segments RECORDING --target TARGET [--history] [--follow]`

Without --follow, the program exits after the last segment. The process exits when its standard input, a pipe
from its parent, is closed.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import Final

from pgoutput.recording import Recording
from pgoutput.replica import Owner, claim_target
from pgoutput.views import plan_changes
from tests.crash.recorder import exit_with_parent
from tests.replica.changes import changes_of_tasks, sorted_changes
from tests.replica.tables import apply

QUERY: Final = "apply"
APPLIED: Final = "_applied"
"""File of the target with the number of the last segment that was applied."""
PLANNED: Final = "_planned"
"""File of the target with the number of the last segment of the batch that is being applied."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--follow", action="store_true")
    arguments = parser.parse_args()
    threading.Thread(target=exit_with_parent, daemon=True).start()
    arguments.target.mkdir(exist_ok=True)
    recording = Recording(arguments.segments, may_be_empty=True)
    while True:
        apply_segments(recording, arguments.target, history=arguments.history)
        if not arguments.follow:
            return
        time.sleep(0.2)
        recording.refresh()


def apply_segments(recording: Recording, target: Path, *, history: bool) -> None:
    """Apply the segments that were not applied yet as one batch; first repeat an interrupted batch."""
    output = "history" if history else "tables"
    while (applied := _read(target / APPLIED)) < max(recording.numbers, default=0):
        if (last := _read(target / PLANNED)) == applied:
            last = recording.numbers[-1]
            _write(target / PLANNED, last)
        owner = Owner(QUERY, output, recording.identity)
        claim_target(target, owner, batch=applied)
        numbers = [number for number in recording.numbers if applied < number <= last]
        changes = sorted_changes(changes_of_tasks(plan_changes(recording, numbers)))
        apply(changes.to_batches(), target, QUERY, last, recording=owner.recording, history=history)
        _write(target / APPLIED, last)


def _read(file: Path) -> int:
    return int(file.read_text()) if file.exists() else 0


def _write(file: Path, number: int) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(str(number))
    partial.replace(file)


if __name__ == "__main__":
    main()
