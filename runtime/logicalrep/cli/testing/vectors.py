"""The command `logicalrep vectors`: writes test vectors, and runs decoders on them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from logicalrep._extras import require
from logicalrep.cli.common.printing import print_json, printable
from logicalrep.cli.common.tables import make_table

if TYPE_CHECKING:
    from logicalrep.vectors import Vector, Verdict

_MEBIBYTE: Final = 1 << 20

vectors_app = typer.Typer(name="vectors", invoke_without_command=True)

_Captures = Annotated[
    list[Path] | None,
    typer.Option(
        "--capture", help="A capture file to add as a whole stream; repeatable.", show_default=False
    ),
]


@vectors_app.callback()
def vectors(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder of the kit; it is created.", show_default=False),
    ] = None,
    capture: _Captures = None,
) -> None:
    """Write test vectors for decoders in any language, or run a decoder on them.

    The vectors are the same in each run.
    """
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise typer.BadParameter(
            "give a folder for the kit, or the command run or decode", param_hint="--out"
        )
    require("synth", "numpy", "pyarrow")
    from logicalrep.vectors import write_kit

    manifest = write_kit(out, capture or ())
    print(f"{out}: {manifest.vectors} vectors, {manifest.legal} legal and {manifest.illegal} illegal")


@vectors_app.command()
def run(
    command: Annotated[
        list[str],
        typer.Argument(help="The decoder and its arguments, after --.", show_default=False),
    ],
    kit: Annotated[
        Path | None,
        typer.Option(help="The folder of a kit; by default, the vectors are made now.", show_default=False),
    ] = None,
    vector: Annotated[
        list[str] | None,
        typer.Option(help="ID of a vector to run, with more output; repeatable.", show_default=False),
    ] = None,
    capture: _Captures = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Time that a vector may take, in seconds.")] = 5.0,
    memory: Annotated[
        int | None,
        typer.Option(min=1, help="Limit of the memory that the decoder allocates, in MiB (Linux)."),
    ] = None,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Skip illegal vectors that the decoder accepts.")
    ] = False,
    level: Annotated[
        Literal["given", "fields", "exact"],
        typer.Option(
            help="What is compared: the keys that the decoder's answer has (given), also all fields of each "
            "message (fields), or all keys (exact)."
        ),
    ] = "given",
) -> None:
    """Run a decoder on the vectors, and print a scoreboard; exit code 1 if a vector failed or none passed."""
    from logicalrep.vectors import run_decoder

    chosen = _chosen(kit, capture or (), vector or ())
    verdicts = run_decoder(
        command,
        chosen,
        seconds=timeout,
        memory=None if memory is None else memory * _MEBIBYTE,
        lenient=lenient,
        level=level,
        quiet=not vector,
    )
    with closing(verdicts):  # ends the decoder, also after Ctrl-C
        console = Console(soft_wrap=True, highlight=False, markup=False)
        if not _show(console, verdicts, details=bool(vector)):
            raise typer.Exit(1)


@vectors_app.command()
def decode() -> None:
    """Answer requests on standard input as a decoder under test does, with logicalrep's own decoder."""
    from logicalrep.vectors import Request, answer

    for line in sys.stdin.buffer:
        print_json(answer(msgspec.json.decode(line, type=Request)), flush=True)


def _chosen(kit: Path | None, captures: Collection[Path], ids: Collection[str]) -> Iterable[Vector]:
    """Return the vectors to run.

    Raises:
        typer.BadParameter: There is no vector with one of the ids, or both a kit and captures are given.
    """
    if kit is not None and captures:
        raise typer.BadParameter(
            "cannot be combined with a kit, which has its own captures", param_hint="--capture"
        )
    if kit is not None:
        from logicalrep.vectors import read_kit

        found: Iterator[Vector] = read_kit(kit)
    else:
        require("synth", "numpy", "pyarrow")
        from logicalrep.vectors import build_vectors

        found = build_vectors(captures)
    if not ids:
        return found
    by_id = {one.id: one for one in found}
    for name in ids:
        if name not in by_id:
            raise typer.BadParameter(
                f"there is no test vector with the ID {printable(name)}", param_hint="--vector"
            )
    return [by_id[name] for name in ids]


def _show(console: Console, verdicts: Iterable[Verdict], *, details: bool) -> bool:
    """Print the results by group; return whether at least one vector passed and none failed."""
    counts: dict[str, Counter[str]] = {}
    first: dict[str, Verdict] = {}
    for one in verdicts:
        counts.setdefault(one.group, Counter())[one.outcome] += 1
        if one.outcome == "failed":
            first.setdefault(one.group, one)
        if details:
            console.print(Text(printable(f"{one.id}: {one.outcome} {one.reason}".rstrip())))
    table = make_table("group", "passed", "failed", "skipped")
    total: Counter[str] = sum(counts.values(), Counter())
    for group, count in (*sorted(counts.items()), ("total", total)):
        table.add_row(group, *(str(count[one]) for one in ("passed", "failed", "skipped")))
    console.print(table)
    for group, one in first.items():
        console.print(Text(printable(f"first failure of {group}: {one.id}: {one.reason}")))
    if not total["passed"] + total["failed"]:
        console.print("the decoder has skipped all vectors")
    return total["passed"] > 0 and not total["failed"]
