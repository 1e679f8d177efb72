"""Names of schemas, tables, types and columns, as SQL identifiers and within the server's limits."""

from __future__ import annotations

import re
from typing import Final

from logicalrep.errors import ScenarioError
from logicalrep.wire import is_utf8

MAX_NAME_BYTES: Final = 63
"""Maximum length of a name in bytes (NAMEDATALEN less the zero byte). A server cuts off the rest."""

MAX_COLUMNS: Final = 1600
"""Maximum number of columns of a table, including dropped columns (MaxHeapAttributeNumber)."""

_SYSTEM_COLUMNS: Final = frozenset(("tableoid", "cmax", "xmax", "cmin", "xmin", "ctid"))

_PART: Final = re.compile(r'"((?:[^"]|"")*)"|([^".]+)')
_PLAIN: Final = re.compile(r"[a-z_\x80-\U0010ffff][a-z0-9_$\x80-\U0010ffff]*")


def check_name(name: str, what: str) -> str:
    """Return a name, or refuse it if the server would refuse or shorten it.

    Args:
        name: The name without quotes.
        what: What the name is of, such as `column`.

    Raises:
        ScenarioError: The name is empty, longer than 63 bytes, or has a zero byte or invalid UTF-8.
    """
    if not name:
        raise ScenarioError(f"the name of a {what} is empty; give a name")
    if "\0" in name or not is_utf8(name):
        raise ScenarioError(f"{what} {name!r} contains a zero byte or invalid UTF-8; give another name")
    if (size := len(name.encode())) > MAX_NAME_BYTES:
        raise ScenarioError(
            f"{what} {name!r} has {size} bytes, more than {MAX_NAME_BYTES}; give a shorter name"
        )
    return name


def check_column_names(names: list[str], attribute_count: int) -> None:
    """Refuse the columns of a table if the server would.

    Args:
        names: Names of the columns, as they are written in the stream.
        attribute_count: Number of columns, including dropped columns.

    Raises:
        ScenarioError: There are too many columns, or a name is not valid.
    """
    if attribute_count > MAX_COLUMNS:
        raise ScenarioError(f"tables can have at most {MAX_COLUMNS} columns; dropped columns count too")
    for name in names:
        if check_name(name, "column") in _SYSTEM_COLUMNS:
            raise ScenarioError(
                f'column name "{name}" conflicts with a system column name; choose another name'
            )


def parse_identifiers(text: str, what: str) -> list[str]:
    """Return the parts of an SQL name such as `public."Kunden"`, without quotes.

    Raises:
        ScenarioError: The text is no SQL name, or has upper-case letters outside quotes.
    """
    parts = []
    for match in _PART.finditer(text if text else " "):
        quoted, plain = match.groups()
        parts.append(plain if quoted is None else quoted.replace('""', '"'))
    written = ".".join(match[0] for match in _PART.finditer(text))
    if written != text:
        raise ScenarioError(f"{text!r} is no name of a {what}; write it as in SQL, such as public.orders")
    for match in _PART.finditer(text):
        if (plain := match[2]) is not None and not _PLAIN.fullmatch(plain):
            lower = f"{text.lower()} or " if _PLAIN.fullmatch(plain.lower()) else ""
            quotes = ".".join(quote(part, always=part == plain) for part in parts)
            raise ScenarioError(f"{text!r} needs quotes around {plain!r}; write {lower}{quotes}")
    for part in parts:
        check_name(part, what)
    return parts


def split_qualified_name(text: str, what: str = "table") -> tuple[str, str]:
    """Split a qualified SQL name such as `public.orders` into schema and local name, without quotes.

    Raises:
        ScenarioError: The schema or the local name is missing or not valid, or there are more parts.
    """
    parts = parse_identifiers(text, what)
    if len(parts) == 1:
        raise ScenarioError(f"{text!r} has no schema; use a qualified name such as public.orders")
    if len(parts) > 2:
        first = quote(".".join(parts[:-1]), always=True)
        raise ScenarioError(
            f"{text!r} has {len(parts)} parts; write schema and name, with a dot inside a name in quotes: "
            f"{first}.{quote(parts[-1])}"
        )
    return parts[0], parts[1]


def local_name(text: str, what: str = "table") -> str:
    """Return an SQL name without schema, such as `"Kunden"`, without its quotes.

    Raises:
        ScenarioError: The name is not valid, or has several parts.
    """
    parts = parse_identifiers(text, what)
    if len(parts) > 1:
        raise ScenarioError(
            f"{text!r} has a schema; give the name of the {what} alone, such as {quote(parts[-1])}"
        )
    return parts[0]


def check_schema(namespace: str, local: str) -> None:
    """Refuse a table in a schema of the system.

    Raises:
        ScenarioError: The server would refuse the table, or would not publish it.
    """
    if namespace == "pg_catalog":
        raise ScenarioError(
            f'permission denied to create "{namespace}.{local}"; use another schema, such as public'
        )
    if namespace.startswith("pg_"):
        raise ScenarioError(
            f'unacceptable schema name "{namespace}": the prefix "pg_" is reserved for system schemas; '
            "use another schema, such as public"
        )


def quote(name: str, *, always: bool = False) -> str:
    """Return a name in quotes, if it has a dot or quotes, which separate names."""
    return '"' + name.replace('"', '""') + '"' if always or re.search('[."]', name) else name


def qualified(namespace: str, local: str) -> str:
    """Return schema and name as one text, from which both can be told: `public.Kunden`, `"a.b".c`."""
    return f"{quote(namespace)}.{quote(local)}"
