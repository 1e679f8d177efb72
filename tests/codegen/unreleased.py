"""Add built-in types and an unreleased protocol version 5 to copies of the spec."""

from __future__ import annotations

from tests.codegen.spec_copy import SpecCopy

VERSION = """\
  5:
    server: 20+
    released: false
    doc: An invented version.
"""

FLUSH_LSN = """\
      - {name: flush_lsn, type: lsn, versions: 5+, means: none, because: Nothing follows it., doc: X.}
"""

ANY = "      ANY: {value: x, versions: 5+, doc: The columns of any unique index.}\n"
"""YAML of a new value of the enum ReplicaIdentity."""

ONLY = "      ONLY: {value: 4, versions: 5+, doc: TRUNCATE ONLY.}\n"
"""YAML of a new bit of the flags TruncateOption."""

HIDDEN = "      HIDDEN: {value: 128, versions: 5+, doc: The column is hidden.}\n"
"""YAML of a new bit of the flags ColumnFlag, which are a field of a struct."""

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

LABEL = """\
  label:
    oid: 8604
    array_oid: 8605
    server: 20+
    doc: A label.
    text: The characters as they are.
    binary: The characters in the client encoding.
    output: labelout
    send: labelsend
    modifier: length
    arrow: string
    spark: StringType
    like: varchar
"""


def add_unreleased_version(spec: SpecCopy) -> None:
    """Add version 5 to a spec: a field of Commit, a value of an enum, and bits of two sets of flags."""
    spec.add("versions:", VERSION)
    spec.add("  Commit:", FLUSH_LSN)
    spec.add("  ReplicaIdentity:", ANY)
    spec.add("  TruncateOption:", ONLY)
    spec.add("  ColumnFlag:", HIDDEN)


def add_types(spec: SpecCopy) -> None:
    """Add to a spec three built-in types that have the text and binary formats of other types."""
    spec.add("types:", OID8 + ROWNUM + LABEL, "types.yaml")
