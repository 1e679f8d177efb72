"""Compare the streams that scenarios and a server send for random sequences of operations (programs).

`python -m tests.synth.compare` runs 1,000 programs in each mode, on PostgreSQL 18. `--server 15` uses a
server of another major version, from the folder in the environment variable LOGICALREP_SERVERS.

One difference is known: a server before 18 repeats a Relation message after a rolled-back ALTER TABLE that
has rewritten a table with an index and rows. The rewrite updates the statistics in pg_class in place
(index_update_stats), which other sessions see at once; PostgreSQL 18 does so only with autovacuum.
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

from logicalrep._servers import newest_version
from logicalrep.messages import XLogData
from logicalrep.synth import Scenario, StreamOptions
from logicalrep.synth.programs import Program, generate_program
from logicalrep.synth.programs.generator import SCHEMA
from logicalrep.synth.scenario import FIRST_TO_PUBLISH_GENERATED
from logicalrep.versions import OPTIONS
from tests.server import WHEEL_VERSION, Server
from tests.synth.normalize import normalize
from tests.synth.oracle import FIRST_IMMEDIATE, FLUSH, Oracle
from tests.versions import OLDEST

MODES: Final[Mapping[str, Mapping[str, Sequence[Any]]]] = {
    "the oldest protocol": {"proto_version": (OLDEST,), "two_phase": (False, True)},
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


def modes(server: int) -> list[str]:
    """Return the modes in which streams of a server of a major version can be compared."""
    return [mode for mode in MODES if all(possible_options(mode, server).values())]


def possible_options(mode: str, server: int) -> dict[str, list[Any]]:
    """Return the possible values of each stream option on a server of a major version.

    Servers before 16 cannot stream each change immediately, so their streams are compared without streaming.
    """
    found = {}
    for name, values in {**MODES[mode], **_ALWAYS}.items():
        if name == "proto_version":
            found[name] = [one for one in values if one <= newest_version(server)]
        elif name == "streaming":
            found[name] = [one for one in values if server >= FIRST_IMMEDIATE or one == "off"]
        elif name == "origin" and server < OPTIONS["origin"]["none"].server:
            found[name] = ["any"]
        else:
            found[name] = list(values)
    return found


@contextmanager
def running_oracle(version: int = WHEEL_VERSION) -> Iterator[Oracle]:
    """Start a server; yield an `Oracle` that runs sequences of database operations on this server."""
    with Server(version, autovacuum="off") as server, server.connect() as connection:
        for slot in range(3):
            connection.execute("SELECT pg_replication_origin_create(%s)", [f"node_{slot}"])
        yield Oracle(server)


def compare(oracle: Oracle, mode: str, number: int) -> tuple[int, Difference | None]:
    """Run program `number` in a scenario and on the server; return message count and any difference."""
    choices = random.Random(f"{mode} {number}")
    given = {name: choices.choice(values) for name, values in possible_options(mode, oracle.version).items()}
    via_root = choices.choice((False, True))
    generated: Any = choices.choice(("none", "stored"))
    if oracle.version < FIRST_TO_PUBLISH_GENERATED:
        generated = "none"
    scenario = Scenario(
        **given,
        server=oracle.version,
        publish_via_partition_root=via_root,
        publish_generated_columns=generated,
        logical_decoding_work_mem=0,
        seed=number,
    )
    program = generate_program(choices, scenario)
    try:
        played = oracle.play(program, scenario.options, via_root, generated=generated)
    except psycopg.Error as error:  # a scenario must refuse what the server refuses
        return 0, Difference(program, scenario.options, [], [("error", str(error))])
    real = normalize(played, scenario.options, namespace=oracle.schema, ignored=FLUSH)
    sent = (one for one in scenario.stream() if isinstance(one, XLogData))
    synthetic = normalize(sent, scenario.options, namespace=SCHEMA)
    same = synthetic == real
    return len(real), None if same else Difference(program, scenario.options, synthetic, real)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1_000, help="in each mode")
    parser.add_argument("--server", type=int, default=WHEEL_VERSION, help="major version of PostgreSQL")
    given = parser.parse_args()
    programs = given.programs
    different = 0
    for mode in modes(given.server):
        began, messages, bad = time.monotonic(), 0, 0
        with running_oracle(given.server) as oracle:
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
