"""Write the page with the results of PostgreSQL's tests: `docs/postgresql-tests.md`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.shadow.results import KINDS, Outcome, Result, load, load_names

PAGE: Final = Path(__file__).parents[2] / "docs/postgresql-tests.md"

HEAD: Final = """# PostgreSQL's own tests

`make shadow` runs tests from the sources of PostgreSQL with `logicalrep sync` beside them, and writes this
page. The tests run unchanged, on a server of the same version with more slots than they ask for:

| tests | where they are in the sources | publication of the `sync` beside them |
| --- | --- | --- |
| `subscription/…` | `src/test/subscription/t` | those of each `CREATE SUBSCRIPTION` |
| `recovery/…` | `src/test/recovery/t`, those of logical slots | `FOR ALL TABLES` |
| `traffic/core` | `src/test/regress`, in the parallel schedule | `FOR ALL TABLES` |
| `traffic/regress` | the same, each file alone | `FOR ALL TABLES` |
| `traffic/isolation` | `src/test/isolation` | `FOR ALL TABLES` |
| `traffic/decoding`, `traffic/isolation-decoding` | `contrib/test_decoding` | `FOR ALL TABLES` |
| `traffic/contrib` | the SQL files of the other modules of `contrib` | `FOR ALL TABLES` |

Except in `traffic/core`, each file of the traffic has a schema of its own, and its last statements, which
drop the tables, are left out.

A name that ends with `+kills` is the same test while `kill -9` ends `sync` at random, every 2 to 10 seconds.
`+short` and `+long` have segments of 0.1 and 10 seconds, `+events` has the [event
trigger](howto/alter-table.md), and with `+roots` partitions are published through their roots.

At the end of a test, and before a statement that ends a comparison (`DROP SUBSCRIPTION`, `DROP TABLE`, a
change of a publication), each published table is compared with its Delta table. The server casts each value
of the Delta table to the type of its column. A difference counts if it remains when the replica has reached
the end of the server's WAL. The numbers are those of tables. If a table is compared several times, its worst
result counts.

| result | meaning |
| --- | --- |
| equal | The rows are those of the publisher, or those of the server's own subscriber. |
| not applicable | There is nothing to compare. |
| reported | The rows differ, and `may_differ`, the table's error or `logicalrep status` says so. |
| refused | `sync` does not begin, and says why. |
| ended | `sync` has ended, and its error or `logicalrep status` says why. |
| SILENT | The rows differ, and nothing says so. |

`marked` are those of the equal tables that are reported all the same. `own` is what the test itself found;
what traffic prints is not looked at."""


SERVER: Final = {
    "there is no publication": "PostgreSQL 15 creates the subscription, and then refuses to send any change."
    " 18 skips the publication with a warning, and its changes are lost.",
    'publication ".*" does not exist': "The server's own subscriber stops with this error too.",
    "different column lists": "The server refuses this too.",
    "was dropped and created anew": "It goes on. Changes that were made meanwhile are not sent.",
}
"""By a pattern of the reason why `sync` was refused or has ended, what the server does."""


def page(folder: Path) -> str:
    """Return the text of the page, from the outcomes below `folder`, which has a folder for each version."""
    parts = [HEAD]
    for kept in sorted(folder.iterdir(), key=lambda path: int(path.name)):
        parts += _section(kept.name, load(kept), load_names(kept))
    return "\n\n".join(parts) + "\n"


def _section(major: str, outcomes: list[Outcome], tests: list[str]) -> Iterable[str]:
    """Yield the parts of the page about one major version, whose sources have these tests."""
    dates = sorted({outcome.date for outcome in outcomes})
    servers, versions = (
        ", ".join(sorted({getattr(o, name) for o in outcomes})) for name in ("server", "version")
    )
    ran = [outcome for outcome in outcomes if not outcome.skipped]
    yield f"## PostgreSQL {major}"
    yield f"Server {servers}, logicalrep {versions}, {' to '.join(dates[:: max(len(dates) - 1, 1)])}."
    rows = [_row(outcome) for outcome in ran]
    total = ["all", *(str(sum(int(row[n]) for row in rows)) for n in range(1, len(KINDS) + 3)), "", ""]
    yield _table(["test", *KINDS, "marked", "kills", "own", "seconds"], [*rows, total])
    for kind in reversed(KINDS[1:]):
        if lines := list(_reasons(kind, ran)):
            yield f"### {kind} ({major})"
            told = kind in ("refused", "ended")
            yield _table(["test", "table", "reason", *["the server"] * told], lines)
    if skipped := [[_escaped(outcome.test), outcome.skipped] for outcome in outcomes if outcome.skipped]:
        yield f"### Not applicable as a whole ({major})"
        yield _table(["test", "reason"], skipped)
    if missing := set(tests) - {outcome.test for outcome in outcomes}:
        names = _some(sorted(missing, key=_variant))
        yield f"{len(missing)} of {len(tests)} tests have not been run: {names}."


def _variant(test: str) -> tuple[bool, str]:
    """Return a key that sorts the tests as they are before their variants."""
    return "+" in test, test


def _row(outcome: Outcome) -> list[str]:
    worst = outcome.worst()
    counts = Counter(result.kind for result in worst)
    marked = sum(result.reason.startswith("marked") for result in worst if result.kind == "equal")
    return [
        _escaped(outcome.test),
        *(str(counts[kind]) for kind in KINDS),
        str(marked),
        str(outcome.kills),
        outcome.own or "-",
        str(outcome.seconds),
    ]


def _reasons(kind: str, outcomes: Iterable[Outcome]) -> Iterable[list[str]]:
    """Yield test, tables and reason of each result of one kind; tables with the same reason share a line."""
    for outcome in outcomes:
        alike: dict[str, list[Result]] = {}
        for result in outcome.worst():
            if result.kind == kind:
                alike.setdefault(_shown(result.reason), []).append(result)
        for reason, results in alike.items():
            names = sorted({result.table or f"({', '.join(result.publications)})" for result in results})
            told = [next((text for one, text in SERVER.items() if re.search(one, results[0].reason)), "-")]
            yield [_escaped(outcome.test), _some(names), reason, *told * (kind in ("refused", "ended"))]


def _some(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return _escaped(", ".join(names[:8]) + more)


def _shown(reason: str) -> str:
    """Return a reason in one line, without what differs from run to run."""
    text = re.sub(r"/\S*/(?=[\w.@-]+)", "…/", " ".join(reason.split()))
    text = re.sub(r"\bshadow_\d+_", "shadow_", re.sub(r"\b[0-9A-F]+/[0-9A-F]{4,}\b", "…", text))
    return _escaped(text if len(text) <= 240 else text[:239] + "…")


def _escaped(text: str) -> str:
    return re.sub(r"([|<>*_`\\])", r"\\\1", text)


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
