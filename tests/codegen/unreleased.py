"""An unreleased protocol version 5 that changes what exists: a field, an enum value and a flag bit."""

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


def add_unreleased_version(spec: SpecCopy) -> None:
    """Add version 5 to a spec: a field of Commit, a value of an enum, and bits of two sets of flags."""
    spec.add("versions:", VERSION)
    spec.add("  Commit:", FLUSH_LSN)
    spec.add("  ReplicaIdentity:", ANY)
    spec.add("  TruncateOption:", ONLY)
    spec.add("  ColumnFlag:", HIDDEN)
