"""The recording as the recorder writes it: its folder, or its objects in a store under a lease.

Imports `client` and `catalogs`. The other folders of the recorder use only the names that this module
imports.
"""

from logicalrep.recorder.storage.folder import Folder as Folder, State as State
from logicalrep.recorder.storage.packing import Packer as Packer, PackerThread as PackerThread
from logicalrep.recorder.storage.status import (
    check_place as check_place,
    current_place as current_place,
    is_recording as is_recording,
    stored_lsn as stored_lsn,
)
from logicalrep.recorder.storage.store_folder import open_folder as open_folder
from logicalrep.recorder.storage.writer_threads import WriterThreads as WriterThreads
