"""Apply the changes of a relation to the rows of its Delta table.

- `cells`: convert the old and new tuples of changes to columns of text.
- `lookup`: find the rows of the table that have the keys of the changes.
- `merge`: decide which rows the changes add and which rows they remove or end.
- `builder`: build the rows that the changes add.
- `commit`: apply a chunk of changes to the table in one commit.
"""

from __future__ import annotations

from pgoutput.replica.rows.commit import ChunkCommit

__all__ = ["ChunkCommit"]
