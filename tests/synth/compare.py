"""Compare the streams that scenarios and PostgreSQL 18 send for random sequences of operations (programs).

`python -m tests.synth.compare` runs 1,000 programs in each mode.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import psycopg

from pgoutput.messages import XLogData
from pgoutput.synth import Scenario, StreamOptions
from pgoutput.testing.programs import Program
from pgoutput.testing.random_programs import generate_program
from tests.server import Server
from tests.synth.normalize import normalize
from tests.synth.oracle import FLUSH, Oracle

MODES: Final[Mapping[str, Mapping[str, Sequence[Any]]]] = {
    "protocol 1": {"proto_version": (1,)},
    "protocol 2, streaming": {"proto_version": (2,), "streaming": ("on",)},
    "protocol 3, two-phase": {"proto_version": (3,), "two_phase": (True,), "streaming": ("off", "on")},
    "protocol 4, parallel": {
        "proto_version": (4,),
        "streaming": ("parallel",),
        "two_phase": (False, True),
    },
}
"""Possible values of stream options, by mode and option. Each program uses one value of each option."""

_ALWAYS: Final[Mapping[str, Sequence[Any]]] = {
    "binary": (False, False, True),
    "messages": (False, True),
    "origin": ("any", "any", "none"),
}


class Difference(msgspec.Struct):
    """A program for which the scenario and the server send different streams."""

    program: Program
    options: StreamOptions
    synthetic: list[tuple[str, ...]]
    real: list[tuple[str, ...]]

    def __str__(self) -> str:
        both = zip(self.synthetic, self.real, strict=False)
        same = next((i for i, (a, b) in enumerate(both) if a != b), min(len(self.synthetic), len(self.real)))
        lines = [f"{self.options}", *map(str, self.program.tables), *map(str, self.program.steps)]
        for name, stream in (("synthetic", self.synthetic), ("real", self.real)):
            lines += [f"{name}, from message {same}:", *map(str, stream[same : same + 3])]
        return "\n".join(line[:300] for line in lines)


@contextmanager
def running_oracle() -> Iterator[Oracle]:
    """Start a server; yield an `Oracle` that runs sequences of database operations on this server."""
    with Server(autovacuum="off") as server, server.connect() as connection:
        for slot in range(3):
            connection.execute("SELECT pg_replication_origin_create(%s)", [f"node_{slot}"])
        yield Oracle(server)


def compare(oracle: Oracle, mode: str, number: int) -> tuple[int, Difference | None]:
    """Run program `number` in a scenario and on the server; return message count and any difference."""
    choices = random.Random(f"{mode} {number}")
    given = {name: choices.choice(values) for name, values in {**MODES[mode], **_ALWAYS}.items()}
    via_root = choices.choice((False, True))
    scenario = Scenario(
        **given, publish_via_partition_root=via_root, logical_decoding_work_mem=0, seed=number
    )
    program = generate_program(choices, scenario)
    try:
        played = oracle.play(program, scenario.options, via_root)
    except psycopg.Error as error:  # a scenario must refuse what the server refuses
        return 0, Difference(program, scenario.options, [], [("error", str(error))])
    real = normalize(played, scenario.options, namespace=oracle.schema, ignored=FLUSH)
    sent = (one for one in scenario.stream() if isinstance(one, XLogData))
    synthetic = normalize(sent, scenario.options, namespace="s")
    same = synthetic == real
    return len(real), None if same else Difference(program, scenario.options, synthetic, real)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1_000, help="in each mode")
    programs = parser.parse_args().programs
    different = 0
    for mode in MODES:
        began, messages, bad = time.monotonic(), 0, 0
        with running_oracle() as oracle:
            for number in range(programs):
                count, difference = compare(oracle, mode, number)
                messages += count
                if difference is not None:
                    bad += 1
                    print(f"{mode}, program {number}: {difference}", file=sys.stderr)
        seconds = time.monotonic() - began
        print(
            f"{mode}: {programs} programs, {messages:,} messages, {bad} different; {seconds:.0f} s",
            flush=True,
        )
        different += bad
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
