"""Column types: parsing of declarations such as `numeric(12,2)` or `int8 key`, enums and domains."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from logicalrep import catalog
from logicalrep._type_modifiers import declared_modifier
from logicalrep.errors import ScenarioError
from logicalrep.messages import Type
from logicalrep.synth.identifiers import qualified, split_qualified_name

_ALIASES: Final = {
    "bigint": "int8", "int": "int4", "integer": "int4", "smallint": "int2", "boolean": "bool",
    "real": "float4", "float": "float8", "double precision": "float8", "decimal": "numeric",
    "character varying": "varchar", "character": "bpchar", "char": "bpchar", "bit varying": "varbit",
    "timestamp with time zone": "timestamptz", "timestamp without time zone": "timestamp",
    "time with time zone": "timetz", "time without time zone": "time",
}  # fmt: skip
"""pg_type names of built-in types, by alternative SQL name such as `bigint` (gram.y)."""

_DECLARATION: Final = re.compile(r"\s*(.+?)(\s+key)?\s*", re.DOTALL)
_TYPE: Final = re.compile(r"(.+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\))?\s*(\[\])?")

_DEFAULT_MODIFIERS: Final = {"char": 5, "character": 5, "bit": 1}
"""`atttypmod` by type name, for names with an implicit length: char means char(1)."""


class ColumnType(msgspec.Struct, frozen=True):
    """The type of a table column: OID, type modifier, and the built-in type whose format its values have."""

    oid: int
    """OID of the type (pg_attribute.atttypid)."""
    modifier: int = -1
    """Type modifier, -1 for none (pg_attribute.atttypmod)."""
    base_oid: int = 0
    """OID of the built-in type whose text and binary format the values have: the type itself, the base type
    of a domain, or text for an enum."""
    base_modifier: int = -1
    """Type modifier of the built-in type, -1 for none. For a domain: the type modifier of its base type."""
    type_message: Type | None = None
    """The Type message of a user-defined type; None for built-in types."""
    element_oid: int = 0
    """OID of the element type if this is an array of a user-defined type, otherwise 0."""

    @property
    def is_toastable(self) -> bool:
        """Whether large values of the type are TOASTed (pg_type.typlen is -1)."""
        return self.base_oid in catalog.BY_ARRAY_OID or catalog.FORMS[self.base_oid].name in _TOASTABLE


_TOASTABLE: Final = frozenset((
    "bit", "bpchar", "bytea", "json", "jsonb", "numeric", "path", "polygon", "text", "tsvector", "varbit",
    "varchar", "xml",
))  # fmt: skip


class TypeRegistry:
    """The column types of a scenario: the built-in types, and the enums and domains that a test created."""

    def __init__(self, next_oid: Callable[[], int]) -> None:
        self._next_oid = next_oid
        self._user_types: dict[str, ColumnType] = {}

    def parse_declaration(self, text: str) -> tuple[ColumnType, bool]:
        """Return the type in a column declaration such as `int8 key`, and whether `key` follows the type.

        Raises:
            ScenarioError: The declaration is empty, or the type does not exist.
        """
        match = _DECLARATION.fullmatch(text)
        if match is None:
            raise ScenarioError(
                "the column type is missing; declare it as in CREATE TABLE, such as `int8 key`"
            )
        return self.parse(match[1]), match[2] is not None

    def parse(self, text: str) -> ColumnType:
        """Return the column type that a name such as `text[]` or `numeric(12,2)` denotes.

        Raises:
            ScenarioError: The type does not exist, or does not accept a type modifier.
        """
        text = text.strip()
        match = _TYPE.fullmatch(text)
        name = " ".join(match[1].split()).lower() if match else ""
        builtin = catalog.BY_NAME.get(_ALIASES.get(name, name))
        if builtin is None and "." in text:
            array = "[]" if text.endswith("[]") else ""
            user = self._user_types.get(
                qualified(*split_qualified_name(text.removesuffix("[]").rstrip(), "type")) + array
            )
            if user is not None:
                return user
        if match is None or builtin is None:
            raise ScenarioError(
                f"unknown type {text!r}; use a built-in type by its pg_type name, such as int8, text, "
                "numeric(12,2) or timestamptz, or create it with Scenario.enum or Scenario.domain"
            )
        modifier = _DEFAULT_MODIFIERS.get(name, -1)
        if match[2]:
            declared = declared_modifier(builtin.modifier, int(match[2]), int(match[3] or 0))
            if declared is None:
                raise ScenarioError(
                    f"type {builtin.name} does not accept the modifier ({match[2]}): leave it out"
                )
            modifier = declared
        oid = builtin.array_oid if match[4] else builtin.oid
        return ColumnType(oid, modifier, oid, modifier)

    def create_enum(self, name: str) -> None:
        """Create an enum type and its array type (DefineEnum)."""
        namespace, local = split_qualified_name(name, "type")
        name = qualified(namespace, local)
        array, oid = self._next_oid(), self._next_oid()
        text = catalog.BY_NAME["text"]
        self._add(name, ColumnType(oid, -1, text.oid, -1, Type(oid=oid, namespace=namespace, name=local)))
        type_message = Type(oid=array, namespace=namespace, name=f"_{local}")
        self._add(f"{name}[]", ColumnType(array, -1, text.array_oid, -1, type_message, oid))

    def create_domain(self, name: str, base: str) -> None:
        """Create a domain over the type `base`.

        The Type message of the domain has the OID of the domain, but the name of the base type.
        """
        name = qualified(*split_qualified_name(name, "type"))
        base_type = self.parse(base)
        oid = self._next_oid()
        if base_type.type_message is not None:
            type_message = msgspec.structs.replace(base_type.type_message, oid=oid)
        elif base_type.oid in catalog.BY_ARRAY_OID:
            type_message = Type(oid=oid, namespace="", name=f"_{catalog.BY_ARRAY_OID[base_type.oid].name}")
        else:
            type_message = Type(oid=oid, namespace="", name=catalog.BY_OID[base_type.oid].name)
        self._add(name, ColumnType(oid, -1, base_type.base_oid, base_type.base_modifier, type_message))

    def _add(self, name: str, type_: ColumnType) -> None:
        if name in self._user_types:
            raise ScenarioError(f"type {name} exists already; choose another name")
        self._user_types[name] = type_
