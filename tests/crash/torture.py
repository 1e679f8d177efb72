"""Random rounds of each kind of fault that a recording must survive or report, for a given time.

`python -m tests.crash.torture --minutes 60 --seed 1`. A failure prints the command that repeats its
round, such as `python -m tests.crash.torture --round crash --seed 17`.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest import mock

from logicalrep.errors import DecodeError, LogicalrepError
from logicalrep.recorder import Connected, Recorder, RecorderOptions, Stored
from logicalrep.recording import RecordingReader, find_inconsistencies, list_segments, read_metadata
from logicalrep.standin import Faults, RecordedSource, StandIn
from tests.crash.ddl import run_program, shown
from tests.crash.replication import Engine, replicate
from tests.crash.run import crash
from tests.recorder.lab import Lab
from tests.server import WHEEL_VERSION, Server

LONGEST: Final = 1800
"""Maximum duration of a round, in seconds. A longer round is terminated and counts as failed."""

COMMAND: Final = sys.executable, "-m", "tests.crash.torture"

ROOT: Final = Path(__file__).parents[2]


def versions() -> list[int]:
    """Return the server versions to test: that of the wheel, and those from 14 on in $LOGICALREP_SERVERS."""
    folder = os.environ.get("LOGICALREP_SERVERS")
    found = [int(one.name) for one in Path(folder).glob("[0-9]*")] if folder else []
    return [WHEEL_VERSION, *sorted(version for version in found if version >= 14)]


# Rounds: each function returns its result as one line, and raises an error if the result is wrong


def crash_round(random: Random, folder: Path) -> str:
    """Run the crash test of the recorder, with kills, restarts, failovers and altered publications."""
    version, kills = random.choice(versions()), random.randint(6, 30)
    failovers = random.randint(0, 3) if version == WHEEL_VERSION else 0
    seed, longest = random.randrange(1 << 30), random.choice([1.0, 3.0, 6.0])
    outcome = crash(folder, version, kills, kills // 5, failovers, seed, rows=50_000, longest=longest)
    assert outcome.comparison.equal, outcome
    return str(outcome)


def replica_round(random: Random, folder: Path) -> str:
    """Run the crash test of a replica, in which recorder, replica and server are killed."""
    seconds, tables = random.choice([25, 60]), random.randint(20, 40)
    engine: Engine = random.choice(["spark", "direct", "mixed"])
    outcome = replicate(folder, tables, seconds, random.randrange(1 << 30), engine=engine)
    assert not outcome.different, outcome
    return str(outcome)


def ddl_round(random: Random, folder: Path) -> str:
    """Run a random program of DDL, publication changes and kills; each difference must be reported."""
    version = random.choice(versions())
    outcome = run_program(random, folder, version, random.randint(1, 6))
    assert not outcome.silent, outcome.silent
    return f"PostgreSQL {version}: {shown(outcome)}"


def stand_in_round(random: Random, folder: Path) -> str:
    """Record from a stand-in server with network faults; compare the recording with the served stream."""
    often = random.randint(5_000, 15_000)
    faults = random.choice(
        [
            Faults(drop_after=often),
            Faults(delay=1),
            Faults(truncate_message=often),
            Faults(flip_bit=often),
        ]
    )
    streaming: Any = random.choice(["off", "on", "parallel"])
    size = 300 if faults.delay else 2000
    made, recorded = folder / "made", folder / "recorded"
    generated = run_cli(
        *("synth", "--out", made, "--transactions", size, "--seed", random.randrange(1 << 30)),
        *("--large", 0.005, "--large-changes", 500, "--streaming", streaming),
    )
    assert generated.returncode == 0, generated.stderr
    source = read_metadata(list_segments(made)[0]).source
    refusals = 0
    with StandIn(RecordedSource(made), faults=faults) as server:
        while True:
            recorder = Recorder(
                server.dsn,
                "torture",
                source.publications,
                recorded,
                options=RecorderOptions(proto_version=source.proto_version, streaming=streaming),
                create_slot=True,
                segment_seconds=0.2,
            )
            try:
                recorder.run(until="now")
                break
            except DecodeError:  # the message is not recorded, and sent again undamaged
                refusals += 1
    actual, expected = committed(recorded), committed(made)
    assert len(actual) == len(expected)
    assert faults.flip_bit or actual == expected, "other transactions than the stand-in's"
    return f"{faults}, streaming {streaming}: {len(actual)} transactions, {refusals} messages refused"


def damage_round(random: Random, folder: Path) -> str:
    """Flip single bits in segments; check that each is reported with the file's name, or has no effect."""
    with Server() as server, Lab(server, folder) as lab:
        prepare(lab)
        lab.record()
        for _ in range(8):
            change(random, lab)
            lab.record()
        segments, expected = list_segments(lab.folder), committed(lab.folder)
        named = 0
        for _ in range(200):
            path = random.choice(segments)
            whole = path.read_bytes()
            damaged = bytearray(whole)
            damaged[random.randrange(len(whole))] ^= 1 << random.randrange(8)
            path.write_bytes(damaged)
            try:
                assert committed(lab.folder) == expected, f"a flipped bit in {path.name} was not noticed"
            except LogicalrepError as error:
                if path.name not in str(error):
                    raise AssertionError("the error does not name the damaged segment") from error
                named += 1
            path.write_bytes(whole)
        change(random, lab)
        return f"200 bits flipped in {len(segments)} segments, {named} of them refused; then {judge(lab)}"


def disturbance_round(random: Random, folder: Path) -> str:
    """Disturb a recorder's folder, disk or clock; check that nothing is lost without a report."""
    name = random.choice(list(DISTURBANCES))
    with Server(random.choice(versions())) as server, Lab(server, folder) as lab:
        prepare(lab)
        lab.record()
        DISTURBANCES[name](random, lab)
        change(random, lab)
        return f"{name}, PostgreSQL {server.version}: {judge(lab)}"


ROUNDS: Final[dict[str, tuple[int, Callable[[Random, Path], str]]]] = {
    "crash": (4, crash_round),
    "replica": (1, replica_round),
    "stand-in": (3, stand_in_round),
    "damage": (2, damage_round),
    "disturbance": (6, disturbance_round),
    "ddl": (6, ddl_round),
}
"""Relative frequency and function of each kind of round, by name."""


# Disturbances


def move(random: Random, lab: Lab) -> None:
    """Move the folder of a running recorder elsewhere, and back when the recorder has ended."""
    place = lab.folder.with_name("moved")
    record_while(random, lab, lambda: lab.folder.rename(place))
    shutil.rmtree(lab.folder, ignore_errors=True)
    place.rename(lab.folder)


def remove(random: Random, lab: Lab) -> None:
    """Remove the folder of a running recorder with all segments."""
    record_while(random, lab, lambda: shutil.rmtree(lab.folder))


def delete(random: Random, lab: Lab) -> None:
    """Delete one segment, more often the last segment than another."""
    record_while(random, lab, lambda: None)
    segments = list_segments(lab.folder)
    random.choice([segments[-1], *segments]).unlink()


def rename(random: Random, lab: Lab) -> None:
    """Rename a segment to the name of another segment or to a name that no segment has yet."""
    record_while(random, lab, lambda: None)
    segments = list_segments(lab.folder)
    names = [*segments, segments[-1].with_stem(f"{int(segments[-1].stem) + 1:010}")]
    one, other = random.sample(names, 2)
    if one.exists():
        one.rename(other)


def fill(random: Random, lab: Lab) -> None:
    """Record with a limit on file sizes (RLIMIT_FSIZE), so that writing fails as on a full disk."""
    limit = random.randint(1_000, 30_000)
    for _ in range(5):
        change(random, lab)
    run_cli(
        *("record", "--dsn", lab.dsn, "--slot", lab.slot, "--publication", "p", "--recording", lab.folder),
        *("--until", "now"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )


def turn_clock(random: Random, lab: Lab) -> None:
    """Record while the clock jumps by up to a day, forwards and backwards."""
    clock = time.time_ns

    def jump() -> int:
        return clock() + random.randint(-86_400, 86_400) * 10**9

    with mock.patch("time.time_ns", jump):
        record_while(random, lab, lambda: None)


DISTURBANCES: Final[dict[str, Callable[[Random, Lab], None]]] = {
    "move": move,
    "remove": remove,
    "delete": delete,
    "rename": rename,
    "fill": fill,
    "turn clock": turn_clock,
}


def record_while(random: Random, lab: Lab, disturb: Callable[[], object]) -> None:
    """Record several changes and call `disturb` between them. The recorder may end with an error."""
    try:
        with lab.recording(segment_seconds=random.choice([0.05, 0.3])) as recording:
            recording.wait(Connected)
            for number in range(6):
                stored = len(recording.events_of(Stored))
                if number == 3:
                    disturb()
                change(random, lab)
                recording.wait(Stored, stored + 1)
    except (LogicalrepError, OSError):
        pass


def prepare(lab: Lab) -> None:
    lab.run(
        "CREATE TABLE t (id int, a text)",
        "ALTER TABLE t REPLICA IDENTITY NOTHING",
        "CREATE PUBLICATION p FOR TABLE t",
    )


def change(random: Random, lab: Lab) -> None:
    """Insert random rows into the table `t` in one transaction."""
    rows, size = random.choice([1, 10, 300]), random.choice([10, 200])
    lab.run(f"INSERT INTO t SELECT g, repeat(md5(g::text), {size} / 10) FROM generate_series(1, {rows}) g")


def judge(lab: Lab) -> str:
    """Record to the end of the WAL; return "equal", or the report: a gap, an incomplete table or an error."""
    try:
        lab.record()
        metadata = [read_metadata(path) for path in list_segments(lab.folder)]
        if list(find_inconsistencies(metadata)):
            return "a gap is reported"
        if metadata[-1].incomplete:
            return "an incomplete table is reported"
        lab.assert_equal()
    except LogicalrepError as error:
        return f"refused: {error}"
    return "equal"


def run_cli(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command `logicalrep` in another process."""
    command = [sys.executable, "-m", "logicalrep.cli", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, **options)


def committed(folder: Path) -> list[tuple[object, ...]]:
    """Return the committed transactions of a recording, as tuples that can be compared."""
    with RecordingReader(folder) as segments:
        return [
            (one.xid, one.commit_lsn, one.commit_time, one.gid, [change.message for change in one.changes])
            for one in segments.transactions()
        ]


# The program


def run_round(name: str, seed: int) -> None:
    """Run the round with this name and seed in this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders are removed
    random = Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory(prefix="logicalrep-torture-") as folder:
        print(ROUNDS[name][1](random, Path(folder)))


def run_rounds(minutes: float, seed: int) -> None:
    """Run random rounds, each in a new process, until the given time has passed or one round fails."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = time.monotonic() + 60 * minutes
    names, weights = list(ROUNDS), [weight for weight, _ in ROUNDS.values()]
    while time.monotonic() < end:
        (name,) = Random(seed).choices(names, weights)
        began = time.monotonic()
        code, output = finish([*COMMAND, "--round", name, "--seed", str(seed)])
        print(
            f"{name} {seed}, {time.monotonic() - began:.0f} s: {'; '.join(output.splitlines())}", flush=True
        )
        if code != 0:
            print(output)
            raise SystemExit(
                f"FAILED; to repeat it: python {' '.join(COMMAND[1:])} --round {name} --seed {seed}"
            )
        seed += 1


def finish(command: list[str]) -> tuple[int, str]:
    """Run a program until it ends; return its exit code and output.

    The program has an operating system session of its own. After `LONGEST` seconds, or if this function is
    interrupted, the program is terminated.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=LONGEST)
        except BaseException as error:
            process.terminate()
            try:
                output, _ = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return 1, f"{output}\nit did not end within {LONGEST} seconds"
        return process.returncode, output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--round", choices=ROUNDS, help="run this one only")
    arguments = parser.parse_args()
    if arguments.round is not None:
        run_round(arguments.round, arguments.seed)
    else:
        run_rounds(arguments.minutes, arguments.seed)


if __name__ == "__main__":
    main()
