"""The self-check: a replica compares itself with the server while `logicalrep sync` runs.

It is the second line behind the recorder, which decides by the catalogs which tables are copied again. The
self-check shares nothing with `logicalrep.recorder`: its caller gives it a connection, and a function that
requests a copy.

- `check`: compares the tables that are due, marks those that differ, and has them copied.
- `schedule`: which tables are due.
- `published`: what the publications publish, as the server says it.
- `comparison`: two looks at a table on the server, with a look at the replica between them.
- `source`, `replica`: rows of a table on both sides.
"""

from logicalrep.verification.selfcheck.check import Replicated as Replicated, SelfCheck as SelfCheck
from logicalrep.verification.selfcheck.published import Publications as Publications
