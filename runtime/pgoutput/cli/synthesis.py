"""What `pgoutput synth` takes and shows."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pgoutput.cli.printing import printable
from pgoutput.synth.workload import (
    Mix,
    Range,
    Workload,
    write_capture_file,
    write_copy_data,
    write_recording,
)
from pgoutput.synth.workload import Progress as Told
from pgoutput.wire import is_utf8

_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")
_MOST: Final = 1e15
"""No number of an option is higher: it would be a slip of the finger."""


def parse_number(option: str, text: str) -> int:
    """A whole number, also as 1e6.

    Raises:
        typer.BadParameter: It is none.
    """
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        number = -1
    if not (0 <= number <= _MOST and number == int(number)):
        raise typer.BadParameter(f"a whole number as 1000 or 1e6, not {text!r}", param_hint=option)
    return int(number)


def parse_range(option: str, text: str) -> Range:
    """A number, or two with a hyphen between.

    Raises:
        typer.BadParameter: It is neither.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"a number, or a range as 10-200, not {text!r}", param_hint=option)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise typer.BadParameter(f"the range {text} ends before it begins", param_hint=option)
    return Range(first, last)


def parse_mix(text: str) -> Mix:
    """The argument of --mix; kinds that are not named do not come.

    Raises:
        typer.BadParameter: It is none.
    """
    kinds = Mix.__struct_fields__
    given: dict[str, float] = dict.fromkeys(kinds, 0.0)
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            if name.strip() not in kinds:
                raise ValueError
            given[name.strip()] = float(value)
        except ValueError:
            wanted = "insert=6,update=3,delete=1"
            raise typer.BadParameter(f"as {wanted}; {part!r} is not of it", param_hint="--mix") from None
    return msgspec.convert(given, Mix)


def make_workload(**given: Any) -> Workload:
    """The workload of these options.

    Raises:
        typer.BadParameter: There is none.
    """
    try:
        return Workload(**given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def synthesize(workload: Workload, out: str) -> None:
    """Make a workload, with a progress bar where standard error is a terminal.

    SIGINT and SIGTERM end it with nothing left.

    Raises:
        PgoutputError: As `write_recording` and the like.
        OSError: Likewise.
        typer.BadParameter: The name is not valid UTF-8.
    """
    if not is_utf8(out):
        raise typer.BadParameter(f"{printable(out)} is not valid UTF-8", param_hint="--out")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _progress(workload) as told:
        if out == "-":
            write_copy_data(workload, sys.stdout.buffer, told)
        elif out.endswith((".jsonl", ".jsonl.gz")):
            write_capture_file(workload, Path(out), told)
        else:
            write_recording(workload, Path(out), told)


@contextmanager
def _progress(workload: Workload) -> Iterator[Told]:
    console = Console(stderr=True)
    counted = TextColumn("transactions, {task.fields[messages]:,} messages")
    columns = (BarColumn(), MofNCompleteColumn(), counted, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=workload.transactions, messages=0)
        sent = 0

        def told(transactions: int, messages: int) -> None:
            nonlocal sent
            sent += messages
            progress.update(task, advance=transactions, messages=sent)

        yield told
