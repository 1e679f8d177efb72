"""The client of a server: a connection, the server's errors and properties, its slots and timelines.

Imports no other folder of the recorder. The other folders import from `client`, not from its modules.
"""

from logicalrep.recorder.client.connection import (
    Connection as Connection,
    Interrupted as Interrupted,
    PublicationSkipped as PublicationSkipped,
    Row as Row,
    parse_dsn as parse_dsn,
)
from logicalrep.recorder.client.copy_data import CopiedRows as CopiedRows
from logicalrep.recorder.client.errors import (
    CredentialsRefused as CredentialsRefused,
    LateRefusal as LateRefusal,
    LockNotAvailable as LockNotAvailable,
    PermissionDenied as PermissionDenied,
    UndefinedObject as UndefinedObject,
)
from logicalrep.recorder.client.server import (
    Server as Server,
    check_publications as check_publications,
    identify as identify,
)
from logicalrep.recorder.client.slot_status import (
    SlotStatus as SlotStatus,
    read_slot_status as read_slot_status,
)
from logicalrep.recorder.client.slot_wait import SlotWait as SlotWait
from logicalrep.recorder.client.slots import (
    Slot as Slot,
    check_slot as check_slot,
    create_slot as create_slot,
    create_temporary_slot as create_temporary_slot,
    drop_command as drop_command,
    drop_slot as drop_slot,
    find_slot as find_slot,
    start_command as start_command,
)
from logicalrep.recorder.client.timelines import (
    Timeline as Timeline,
    check_fork as check_fork,
    read_timelines as read_timelines,
)
