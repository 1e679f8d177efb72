"""Copies of the spec with an unreleased protocol version 5 that changes what exists, and with new types."""

from __future__ import annotations

from tests.codegen.spec_copy import SpecCopy

VERSION = """\
  5:
    server: 20+
    released: false
    doc: An invented version.
"""

FLUSH_LSN = (
    "      - {name: flush_lsn, type: lsn, versions: 5+, doc: The end of what the server has flushed.}\n"
)

ANY = "      ANY: {value: x, versions: 5+, doc: The columns of any unique index.}\n"
"""A value of ReplicaIdentity."""

ONLY = "      ONLY: {value: 4, versions: 5+, doc: TRUNCATE ONLY.}\n"
"""A bit of TruncateOption."""

HIDDEN = "      HIDDEN: {value: 128, versions: 5+, doc: The column is hidden.}\n"
"""A bit of ColumnFlag, which is part of a struct."""

OID8 = """\
  oid8:
    oid: 8600
    array_oid: 8601
    server: 19+
    doc: "An object identifier of 64 bits, unsigned."
    text: Unsigned decimal digits.
    binary: Int64, unsigned.
    output: oid8out
    send: oid8send
    modifier: none
    arrow: decimal128(20, 0)
    spark: DecimalType(20, 0)
    like: xid8
"""

ROWNUM = """\
  rownum:
    oid: 8602
    array_oid: 8603
    server: 20+
    doc: The number of a row.
    text: Decimal digits.
    binary: Int64, signed.
    output: rownumout
    send: rownumsend
    modifier: none
    arrow: int64
    spark: LongType
    like: int8
"""


def add_unreleased_version(spec: SpecCopy) -> None:
    """Add version 5 to a spec: a field of Commit, a value of an enum, and bits of two sets of flags."""
    spec.add("versions:", VERSION)
    spec.add("  Commit:", FLUSH_LSN)
    spec.add("  ReplicaIdentity:", ANY)
    spec.add("  TruncateOption:", ONLY)
    spec.add("  ColumnFlag:", HIDDEN)


def add_types(spec: SpecCopy) -> None:
    """Add built-in types to a spec whose text and binary formats are those of other types."""
    spec.add("types:", OID8 + ROWNUM, "types.yaml")
