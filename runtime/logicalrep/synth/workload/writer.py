"""Write a workload as a recording, a capture file or CopyData messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from logicalrep.synth.atomic_output import new_output
from logicalrep.synth.workload.definition import Workload
from logicalrep.synth.workload.expected_rows import ExpectedRowsWriter
from logicalrep.synth.workload.outputs import (
    capture_file_header,
    capture_file_lines,
    copy_data,
    write_segments,
)
from logicalrep.synth.workload.plan import WINDOW_MESSAGES, plan_windows
from logicalrep.synth.workload.processes import PrepareWindow, WindowTask, prepare_windows

Progress: TypeAlias = Callable[[int, int], None]
"""Callback that receives the numbers of transactions and messages written since its last call."""

_PROCESSES: Final = 2
"""Number of worker processes that generate a large workload."""
_SINGLE_PROCESS_MESSAGES: Final = 1_000_000
"""Minimum number of messages for which worker processes are started. Generating fewer messages takes less
time than starting processes."""

EXPECTED_ROWS: Final = "expected_rows"
"""Name of the folder of expected rows inside a recording, and suffix of such a folder of a capture file."""


def write_recording(
    workload: Workload,
    recording: str | Path,
    on_progress: Progress | None = None,
    window_messages: int = WINDOW_MESSAGES,
) -> None:
    """Write a workload as a recording, with the expected rows in its subfolder `expected_rows`.

    Args:
        workload: The workload.
        recording: A folder that does not exist or is empty.
        on_progress: Callback for the progress, or None.
        window_messages: Approximate number of messages that are generated and written at a time.

    Raises:
        RecordingError: The folder is not empty, or another process is writing to it.
        OSError: The folder cannot be written. No partial output is left.
    """
    folder = Path(recording)
    with new_output(folder, folder=True) as (temporary,):
        temporary.mkdir()
        with ExpectedRowsWriter(workload, temporary / EXPECTED_ROWS) as expected_rows:
            prepare = partial(write_segments, workload, temporary)
            _write_windows(workload, prepare, None, expected_rows, on_progress, window_messages)


def write_capture_file(
    workload: Workload,
    path: str | Path,
    on_progress: Progress | None = None,
    window_messages: int = WINDOW_MESSAGES,
) -> None:
    """Write a workload as a capture file, with the expected rows in a folder beside the file.

    The folder for `x.jsonl` or `x.jsonl.gz` is `x.expected_rows`.

    Args:
        workload: The workload.
        path: A file that does not exist yet; compressed if the name ends in .gz.
        on_progress: As in `write_recording`.
        window_messages: As in `write_recording`.

    Raises:
        RecordingError: The file or the folder exists, or another process is writing the file.
        OSError: The file or the folder cannot be written. No partial output is left.
    """
    path = Path(path)
    expected_folder = path.with_name(
        f"{path.name.removesuffix('.gz').removesuffix('.jsonl')}.{EXPECTED_ROWS}"
    )
    with (
        new_output(path, expected_folder) as (temporary, temporary_folder),
        temporary.open("wb") as file,
        ExpectedRowsWriter(workload, temporary_folder) as expected_rows,
    ):
        compress = path.suffix == ".gz"
        file.write(capture_file_header(workload, compress))
        prepare = partial(capture_file_lines, compress)
        _write_windows(workload, prepare, file, expected_rows, on_progress, window_messages)


def write_copy_data(
    workload: Workload,
    file: BinaryIO,
    on_progress: Progress | None = None,
    window_messages: int = WINDOW_MESSAGES,
) -> None:
    """Write a workload as CopyData messages with XLogData, as a walsender sends them, without expected rows.

    Args:
        workload: The workload.
        file: File to write to.
        on_progress: As in `write_recording`.
        window_messages: As in `write_recording`.

    Raises:
        OSError: The file cannot be written.
    """
    _write_windows(workload, copy_data, file, None, on_progress, window_messages)


def _write_windows(
    workload: Workload,
    prepare: PrepareWindow,
    file: BinaryIO | None,
    expected_rows: ExpectedRowsWriter | None,
    progress: Progress | None,
    window_messages: int,
) -> None:
    message_count = workload.transactions * workload.mean_transaction_messages
    processes = _PROCESSES if message_count >= _SINGLE_PROCESS_MESSAGES else 0
    windows = plan_windows(workload, window_messages)
    with closing(prepare_windows(WindowTask(workload, prepare), windows, processes)) as prepared:
        for window in prepared:
            if file is not None:
                file.write(window.content)
            if expected_rows is not None:
                expected_rows.add(window.remaining_rows)
                expected_rows.add_tables(window.varied_rows)
            if progress is not None:
                progress(window.transactions, window.messages)
