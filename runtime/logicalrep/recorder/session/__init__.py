"""Sessions: record the stream of one connection, from its start to its end.

Imports all other folders of the recorder. `recorder` imports from `session`, not from its modules.

- `start`: checks server, slot and folder against each other. `upgrade`: the same after pg_upgrade.
- `session`: stores the stream, then acknowledges it.
- `loop`: runs a session, and inserts copied rows. `remarks`: tables that a session finds to be incomplete.
- `remembered`: earlier settings of publications, which older servers go on using after ALTER PUBLICATION.
- `reports`: the events of a recorder.
"""

from logicalrep.recorder.session.loop import SessionLoop as SessionLoop
from logicalrep.recorder.session.remembered import FIXED_MINORS as FIXED_MINORS
from logicalrep.recorder.session.reports import Reporter as Reporter
from logicalrep.recorder.session.start import SessionStarter as SessionStarter
