"""Declarations of columns, as `numeric(12,2)` or `int8 key`, and the types that a scenario makes itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from pgoutput import catalog
from pgoutput.errors import ScenarioError
from pgoutput.messages import Type

_ALIASES: Final = {
    "bigint": "int8",
    "int": "int4",
    "integer": "int4",
    "smallint": "int2",
    "boolean": "bool",
    "real": "float4",
    "float": "float8",
    "double precision": "float8",
    "decimal": "numeric",
    "character varying": "varchar",
    "character": "bpchar",
    "char": "bpchar",
    "bit varying": "varbit",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
    "time with time zone": "timetz",
    "time without time zone": "time",
}
"""What SQL calls some types (gram.y)."""

_DECLARATION: Final = re.compile(r"\s*(.+?)(\s+key)?\s*", re.DOTALL)
_TYPE: Final = re.compile(r"(.+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\))?\s*(\[\])?")

_MODIFIERS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "length": lambda length, _: length + 4,
    "bits": lambda bits, _: bits,
    "precision": lambda precision, _: precision,
    "numeric": lambda precision, scale: ((precision << 16) | (scale & 0x7FF)) + 4,
}
"""`atttypmod` of what stands in parentheses, by the catalogue's kind of modifier."""

_DEFAULT_MODIFIERS: Final = {"char": 5, "character": 5, "bit": 1}
"""Where SQL has a length though none is given: char is char(1)."""


class ColumnType(msgspec.Struct, frozen=True):
    """The type of a column."""

    oid: int
    """pg_attribute.atttypid."""
    modifier: int = -1
    """pg_attribute.atttypmod."""
    base_oid: int = 0
    """The built-in type whose form its values have; text for enums."""
    base_modifier: int = -1
    """Its modifier: that of the column itself, or of what its domain is made from."""
    named: Type | None = None
    """The message that names the type, if it is not built in."""
    element_oid: int = 0
    """The type of the elements, if it is an array of a type that is not built in."""

    @property
    def is_variable(self) -> bool:
        """Whether large values are stored out of line (pg_type.typlen is -1)."""
        return self.base_oid in catalog.BY_ARRAY_OID or catalog.BY_OID[self.base_oid].name in _VARIABLE


_VARIABLE: Final = frozenset(
    (
        "bit",
        "bpchar",
        "bytea",
        "json",
        "jsonb",
        "numeric",
        "path",
        "polygon",
        "text",
        "tsvector",
        "varbit",
        "varchar",
        "xml",
    )
)


class Types:
    """The types of a scenario: the built-in ones, and its own.

    Args:
        next_oid: Gives the OID for a new object.
    """

    def __init__(self, next_oid: Callable[[], int]) -> None:
        self._next_oid = next_oid
        self._own: dict[str, ColumnType] = {}

    def declaration(self, text: str) -> tuple[ColumnType, bool]:
        """The type of a column, and whether the column belongs to the primary key.

        Args:
            text: As in CREATE TABLE: `int8 key`, `numeric(12,2)`, `text[]`, `app.mood`.

        Raises:
            ScenarioError: There is no such type.
        """
        match = _DECLARATION.fullmatch(text)
        if match is None:
            raise ScenarioError("a column has no type: give one as in CREATE TABLE, and `key` behind it")
        return self.parse(match[1]), match[2] is not None

    def parse(self, text: str) -> ColumnType:
        """The type with this name.

        Raises:
            ScenarioError: There is none.
        """
        if text in self._own:
            return self._own[text]
        match = _TYPE.fullmatch(text.strip())
        name = " ".join(match[1].split()).lower() if match else ""
        builtin = catalog.BY_NAME.get(_ALIASES.get(name, name))
        if match is None or builtin is None:
            raise ScenarioError(
                f"there is no type {text!r}: built-in types have the names of pg_type, such as int8, text, "
                "numeric(12,2) or timestamptz; others are made first, with Scenario.enum or Scenario.domain"
            )
        modifier = _DEFAULT_MODIFIERS.get(name, -1)
        if match[2]:
            if builtin.modifier not in _MODIFIERS:
                raise ScenarioError(f"the type {builtin.name} takes no ({match[2]})")
            modifier = _MODIFIERS[builtin.modifier](int(match[2]), int(match[3] or 0))
        oid = builtin.array_oid if match[4] else builtin.oid
        return ColumnType(oid, modifier, oid, modifier)

    def make_enum(self, name: str) -> None:
        """CREATE TYPE … AS ENUM, and the type of its arrays, whose OID comes first (DefineEnum)."""
        namespace, local = split_name(name)
        array, oid = self._next_oid(), self._next_oid()
        text = catalog.BY_NAME["text"]
        self._add(name, ColumnType(oid, -1, text.oid, -1, Type(oid, namespace, local)))
        self._add(
            f"{name}[]", ColumnType(array, -1, text.array_oid, -1, Type(array, namespace, f"_{local}"), oid)
        )

    def make_domain(self, name: str, base: str) -> None:
        """CREATE DOMAIN. Its Type message has its OID, and the name of its base type."""
        split_name(name)
        below = self.parse(base)
        oid = self._next_oid()
        if below.named is not None:
            named = msgspec.structs.replace(below.named, oid=oid)
        elif below.oid in catalog.BY_ARRAY_OID:
            named = Type(oid, "", f"_{catalog.BY_ARRAY_OID[below.oid].name}")
        else:
            named = Type(oid, "", catalog.BY_OID[below.oid].name)
        self._add(name, ColumnType(oid, -1, below.base_oid, below.base_modifier, named))

    def _add(self, name: str, type_: ColumnType) -> None:
        if name in self._own:
            raise ScenarioError(f"there is a type {name} already")
        self._own[name] = type_


def split_name(name: str) -> tuple[str, str]:
    """Namespace and name.

    Raises:
        ScenarioError: It has not both.
    """
    namespace, dot, local = name.partition(".")
    if not (namespace and dot and local):
        raise ScenarioError(f"{name!r} is no full name: give the schema too, as in public.orders")
    return namespace, local
