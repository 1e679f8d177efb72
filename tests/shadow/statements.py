"""Parse the statements of a test that begin, change or end a subscription, or change what can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

SUBSCRIPTION: Final = re.compile(
    r"\b(CREATE|ALTER|DROP)\s+SUBSCRIPTION\s+(?:IF\s+EXISTS\s+)?(\w+)\s*((?:'(?:[^']|'')*'|[^;'])*)",
    re.IGNORECASE,
)
CREATED: Final = re.compile(
    r"CONNECTION\s+'((?:[^']|'')*)'\s+PUBLICATION\s+(.*?)(?:\s+WITH\s*\((.*)\))?\s*",
    re.IGNORECASE | re.DOTALL,
)
ALTERED: Final = re.compile(
    r"(SET|ADD|DROP)\s+PUBLICATION\s+(.*?)(?:\s+WITH\s*\(.*\))?\s*", re.IGNORECASE | re.DOTALL
)
RENAMED: Final = re.compile(r"RENAME\s+TO\s+(\w+)\s*", re.IGNORECASE)
UNCONNECTED: Final = re.compile(r"\bconnect\s*=\s*(?:false|off)\b", re.IGNORECASE)
CHANGES: Final = re.compile(
    r"\b(?:(?:DROP|ALTER)\s+PUBLICATION|DROP\s+(?:TABLE|SCHEMA))\b[^;]*", re.IGNORECASE
)


class Statement(msgspec.Struct, frozen=True):
    """A statement about a subscription."""

    does: str
    """`create`, `drop`, `rename`, or for publications `set`, `add` or `remove`."""
    subscription: str
    dsn: str = ""
    publications: tuple[str, ...] = ()
    new_name: str = ""


def parse(sql: str) -> Iterator[Statement]:
    """Yield the statements about subscriptions that logicalrep can follow."""
    for verb, written, rest in SUBSCRIPTION.findall(sql):
        name = written.lower()
        if verb.upper() == "DROP":
            yield Statement("drop", name)
        elif verb.upper() == "CREATE":
            created = CREATED.fullmatch(rest)
            if created and not UNCONNECTED.search(created[3] or ""):
                yield Statement("create", name, created[1].replace("''", "'"), _names(created[2]))
        elif altered := ALTERED.fullmatch(rest):
            does = {"SET": "set", "ADD": "add", "DROP": "remove"}[altered[1].upper()]
            yield Statement(does, name, publications=_names(altered[2]))
        elif renamed := RENAMED.fullmatch(rest):
            yield Statement("rename", name, new_name=renamed[1].lower())


def change(sql: str) -> str:
    """Return the first statement that drops tables or changes publications; empty if there is none."""
    found = CHANGES.search(sql)
    return " ".join(found[0].split()) if found else ""


def _names(written: str) -> tuple[str, ...]:
    """Return the names in a list of publications, as the server folds them."""
    return tuple(
        name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
        for name in (part.strip() for part in written.split(","))
    )
