"""Apply the changes of a relation to the rows of its Delta table.

- `keys`: assign numbers to keys and values, the same number to equal keys or values.
- `lookup`: find the rows of the table that have the keys of the changes.
- `merge`: decide which rows the changes add and which rows they remove or end.
- `builder`: build the rows that the changes add.
- `chunk_writer`: write the data files that a chunk of changes adds to the table.
- `replacement`: write the data files of a table whose rows are all replaced.
- `digests`: compare the rows of two sets of data files by digests.
"""

from __future__ import annotations

from logicalrep.apply.rows.chunk_writer import ChunkWriter
from logicalrep.apply.rows.replacement import Replacement

__all__ = ["ChunkWriter", "Replacement"]
