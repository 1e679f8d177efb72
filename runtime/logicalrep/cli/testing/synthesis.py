"""The command `logicalrep synth`: parses the arguments, and shows a progress bar."""

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

from logicalrep._stored_stream import StoredStream
from logicalrep.cli.common.printing import printable
from logicalrep.errors import RecordingError
from logicalrep.synth.workload import (
    PROFILES,
    Mix,
    Profile,
    Progress as ReportProgress,
    Range,
    Workload,
    all_messages,
    default_profile,
    fit_profile,
    write_capture_file,
    write_copy_data,
    write_recording,
)
from logicalrep.wire import is_utf8

_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")
_MAX_NUMBER: Final = 1e15
"""Largest whole number that an option accepts; a larger number is probably a mistake."""


def parse_number(option: str, text: str) -> int:
    """Parse the value of an option as a whole number, written as 1000 or 1e3.

    Raises:
        typer.BadParameter: The text is not a whole number from 0 to 1e15.
    """
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        number = -1
    if not (0 <= number <= _MAX_NUMBER and number == int(number)):
        raise typer.BadParameter(f"expected a whole number like 1000 or 1e6, not {text!r}", param_hint=option)
    return int(number)


def parse_range(option: str, text: str) -> Range:
    """Parse the value of an option as a range, such as 10-200; a single number is a range too.

    Raises:
        typer.BadParameter: The text is neither a number nor a range, or the range ends before it begins.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"expected a number, or a range like 1-20, not {text!r}", param_hint=option)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        text = f"expected a range with the smaller number first, such as 1-20, not {text}"
        raise typer.BadParameter(text, param_hint=option)
    return Range(first, last)


def parse_mix(text: str) -> Mix:
    """Parse the value of --mix: the relative frequency of each kind of change, 0 for kinds not in `text`.

    Raises:
        typer.BadParameter: The text is not a list of KIND=NUMBER, separated by commas.
    """
    kinds = Mix.__struct_fields__
    frequencies: dict[str, float] = dict.fromkeys(kinds, 0.0)
    for part in text.split(","):
        name, _, value = part.partition("=")
        if value and name.strip() not in kinds:
            text = f"unknown kind {name.strip()!r}; the kinds are {', '.join(kinds)}"
            raise typer.BadParameter(text, param_hint="--mix")
        try:
            if name.strip() not in kinds:
                raise ValueError
            frequencies[name.strip()] = float(value)
        except ValueError:
            text = f"expected KIND=NUMBER, as in insert=6,update=3,delete=1, found {part!r}"
            raise typer.BadParameter(text, param_hint="--mix") from None
    return msgspec.convert(frequencies, Mix)


def fit(stream: StoredStream) -> Profile:
    """Return a profile that is fitted to a recording or capture file.

    Raises:
        RecordingError: The stream has no row changes, or cannot be read.
    """
    try:
        return fit_profile(stream.transactions())
    except RecordingError as error:
        raise RecordingError(
            str(error) if str(stream.path) in str(error) else f"{stream.path}: {error}"
        ) from None


def make_workload(
    profile: str | None, fitted: Profile | None, *, transactions: int, **options: Any
) -> Workload:
    """Return the workload that the options of `logicalrep synth` describe.

    Args:
        profile: Name of the profile; None for the default, which depends on the number of transactions.
        fitted: The profile that --like has fitted, or None.
        transactions: Number of transactions.
        options: Fields of the workload; None for the profile's value.

    Raises:
        typer.BadParameter: The profile does not exist, or an option is out of range.
    """
    if profile is not None and fitted is not None:
        raise typer.BadParameter(
            "cannot be combined with --like, which makes a profile of its own", param_hint="--profile"
        )
    name = profile or default_profile(transactions)
    if name not in PROFILES:
        text = f"there is no profile {name!r}; the profiles are {', '.join(PROFILES)}"
        raise typer.BadParameter(text, param_hint="--profile")
    fields = msgspec.structs.asdict(fitted or PROFILES[name]) | {"transactions": transactions}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        if name == "everything" and fitted is None:
            plain = Workload(server=options["server"], proto_version=options["proto_version"])
            fields |= all_messages(plain.server_major, plain.options.proto_version)
        return Workload(**fields | given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def synthesize(workload: Workload, out: str) -> None:
    """Write the stream of a workload to the file or folder `out`, or to standard output if `out` is "-".

    A progress bar is shown if standard error is a terminal. SIGINT and SIGTERM end the command and remove its
    partial output.

    Raises:
        LogicalrepError: The output folder is not empty.
        OSError: The output cannot be written.
        typer.BadParameter: The name of the output is not valid UTF-8.
    """
    if not is_utf8(out):
        raise typer.BadParameter(f"{printable(out)} is not valid UTF-8", param_hint="--out")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _progress(workload) as report:
        if out == "-":
            write_copy_data(workload, sys.stdout.buffer, report)
        elif out.endswith((".jsonl", ".jsonl.gz")):
            write_capture_file(workload, Path(out), report)
        else:
            write_recording(workload, Path(out), report)


@contextmanager
def _progress(workload: Workload) -> Iterator[ReportProgress]:
    console = Console(stderr=True)
    counted = TextColumn("transactions, {task.fields[messages]:,} messages")
    columns = (BarColumn(), MofNCompleteColumn(), counted, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=workload.transactions, messages=0)
        sent = 0

        def report(transactions: int, messages: int) -> None:
            nonlocal sent
            sent += messages
            progress.update(task, advance=transactions, messages=sent)

        yield report
