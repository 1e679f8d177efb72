"""A workload from its first window to its last, in several processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from pgoutput.recording import sync_path
from pgoutput.synth.staging import new_file, new_folder, staged
from pgoutput.synth.workload import Workload
from pgoutput.synth.workload_outputs import Output, ToCapture, ToFrames, ToSegments
from pgoutput.synth.workload_plan import WINDOW_MESSAGES, windows
from pgoutput.synth.workload_truth import Truth
from pgoutput.synth.workload_worker import Task, workers

Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many transactions and messages have come since it was told last."""

_WORKERS: Final = 2
_SMALL: Final = 1_000_000
"""Messages that are made before others would have begun."""

TRUTH: Final = "truth"


def write_recording(
    workload: Workload, folder: Path, told: Progress, window_messages: int = WINDOW_MESSAGES
) -> None:
    """Write a workload as a recording, with its truth in the folder `truth` inside.

    The folder is there when all of it is; if anything fails, nothing is left.

    Args:
        workload: The workload.
        folder: A new folder, or an empty one.
        told: Is told how it goes.
        window_messages: As for `windows`.

    Raises:
        RecordingError: The folder is not empty, or is being made by another.
        OSError: It cannot be written.
    """
    new_folder(folder)
    with staged(folder) as stage:
        made = stage / folder.name
        made.mkdir()
        with Truth(workload, made / TRUTH) as truth:
            _run(workload, ToSegments(workload, made), truth, told, window_messages)
        made.rename(folder)
    sync_path(folder.parent)


def write_capture_file(
    workload: Workload, path: Path, told: Progress, window_messages: int = WINDOW_MESSAGES
) -> None:
    """Write a workload as a capture file, with its truth in a folder beside it: `x.truth` for `x.jsonl.gz`.

    Args:
        workload: The workload.
        path: Where no file is yet; compressed, if it ends in .gz.
        told: Is told how it goes.
        window_messages: As for `windows`.

    Raises:
        RecordingError: The file or the folder is there already, or is being made by another.
        OSError: They cannot be written.
    """
    beside = path.with_name(f"{path.name.removesuffix('.gz').removesuffix('.jsonl')}.{TRUTH}")
    for one in (path, beside):
        new_file(one)
    with staged(path) as stage:
        output = ToCapture(workload, stage / path.name)
        with Truth(workload, stage / beside.name) as truth, output:
            _run(workload, output, truth, told, window_messages)
        (stage / beside.name).rename(beside)
        (stage / path.name).rename(path)
    sync_path(path.parent)


def write_frames(
    workload: Workload, file: BinaryIO, told: Progress, window_messages: int = WINDOW_MESSAGES
) -> None:
    """Write what a walsender would send: CopyData with XLogData. There is no truth beside it.

    Raises:
        OSError: It cannot be written.
    """
    _run(workload, ToFrames(file), None, told, window_messages)


def _run(
    workload: Workload, output: Output, truth: Truth | None, told: Progress, window_messages: int
) -> None:
    task = Task(workload, window_messages, output.prepare)
    is_small = workload.transactions * workload.transaction_messages < _SMALL
    with nullcontext(task.run()) if is_small else workers(task, _WORKERS) as prepared:
        for window, done in zip(windows(workload, window_messages), prepared, strict=True):
            output.write(done.content)
            if truth is not None:
                truth.add(done.left)
            told(len(window.sizes) + len(window.streamed), window.messages)
