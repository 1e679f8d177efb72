"""Delta tables. No other package of logicalrep imports deltalake.

- `table`: the table format Delta: opens, creates and commits tables.
- `log`: the position of a table, and the changes of a commit, as the log stores them.
- `actions`, `vectors`: read and write actions of a commit and deletion vectors, which delta-rs cannot do.
- `cleaning`, `folders`: remove files that a table does not need any more, and move and remove tables.
"""

from __future__ import annotations

from logicalrep.targets.delta.table import DeltaFormat

__all__ = ["DeltaFormat"]
