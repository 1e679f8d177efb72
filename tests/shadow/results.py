"""Results of the comparison of replicas with the server, and the files that keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["equal", "not applicable", "reported", "refused", "ended", "SILENT"]

KINDS: Final[tuple[Kind, ...]] = ("equal", "not applicable", "reported", "refused", "ended", "SILENT")
"""All kinds of results, the worst last."""


class Result(msgspec.Struct, frozen=True):
    """What became of one table, or with an empty name of one subscription, at one moment of a test."""

    table: str
    kind: Kind
    reason: str = ""
    publications: tuple[str, ...] = ()
    moment: str = ""


class Outcome(msgspec.Struct):
    """Everything that is kept of one run of one test."""

    test: str
    server: str
    """Version of the server, such as 18.6."""
    version: str
    """Version of logicalrep."""
    date: str
    seconds: int = 0
    own: str = ""
    """What the test found itself, such as `37 ok`."""
    kills: int = 0
    """How often `kill -9` has ended `sync`."""
    skipped: str = ""
    """Why the test cannot run with this server; empty if it can."""
    results: list[Result] = []

    def worst(self) -> list[Result]:
        """Return the worst result of each table and set of publications, then one of each other reason."""
        found: dict[tuple[object, ...], Result] = {}
        for result in self.results:
            key = (result.publications, result.table, "" if result.table else (result.kind, result.reason))
            if key not in found or KINDS.index(result.kind) > KINDS.index(found[key].kind):
                found[key] = result
        return list(found.values())


def save(outcome: Outcome, folder: Path) -> None:
    """Write the outcome of a test into a file in `folder`, in place of that of an earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{outcome.test.replace('/', '-')}.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(outcome)) + b"\n"
    )


def load(folder: Path) -> list[Outcome]:
    """Return the outcomes of all tests in a folder, in the order of their names."""
    outcomes = [msgspec.json.decode(path.read_bytes(), type=Outcome) for path in folder.glob("*.json")]
    return sorted(outcomes, key=lambda outcome: outcome.test)


def save_names(tests: list[str], folder: Path) -> None:
    """Write the names of all tests into a file in `folder`: the page names those that did not run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tests").write_text("\n".join(tests))


def load_names(folder: Path) -> list[str]:
    return (folder / "tests").read_text().splitlines()
