"""Earlier settings of publications, which older servers can go on using after ALTER PUBLICATION.

A walsender reads the settings of publications again after it has decoded an ALTER PUBLICATION. A transaction
that was open during the ALTER PUBLICATION can commit later. It is decoded with the catalogs as of its own
changes, so the walsender reads the settings from before the ALTER PUBLICATION. The walsender keeps these
settings for all later transactions: their changes are not sent, or not all of them. The minor releases of May
2025 correct this (SnapBuildDistributeSnapshotAndInval in snapbuild.c).

On older servers, another session must begin when all transactions have ended that were open during the ALTER
PUBLICATION. Tables are copied only in that session.
"""

from __future__ import annotations

from typing import Final

from logicalrep.recorder.catalogs import Catalog, CatalogWatch
from logicalrep.recorder.session.start import PreparedSession
from logicalrep.recorder.storage import Folder

FIXED_MINORS: Final = {13: 21, 14: 18, 15: 13, 16: 9, 17: 5}
"""First minor release that uses altered publications correctly, by major version; newer majors all do."""

_NEVER: Final = 1 << 64
"""LSN greater than all LSNs of servers."""


def remembers_publications(server_version: int) -> bool:
    """Return whether a server can go on using old settings of publications after ALTER PUBLICATION.

    `server_version` is the server's `server_version_num`.
    """
    major, minor = divmod(server_version, 10_000)
    return major < min(FIXED_MINORS) or (major in FIXED_MINORS and minor < FIXED_MINORS[major])


class RememberedPublications:
    """Tells when another session must begin, because the server may still use old settings of publications.

    Args:
        folder: Folder of the recording, whose state has the field `altered_xid`.
        start: The prepared session.
        watch: Thread that reads the catalogs.
        server_version: Version of the server, as `server_version_num`.
    """

    def __init__(
        self, folder: Folder, start: PreparedSession, watch: CatalogWatch, server_version: int
    ) -> None:
        self._folder, self._watch = folder, watch
        self._is_affected = remembers_publications(server_version)
        self._lsn = 0
        if start.changes.publications:
            self.note(start.catalog)

    def note(self, catalog: Catalog) -> None:
        """Register a reading of the catalogs that shows an altered publication."""
        if self._is_affected:
            self._lsn = 0
            self._folder.update(altered_xid=catalog.next_xid)

    @property
    def lsn(self) -> int:
        """LSN after which another session must begin; 0 for none, `_NEVER` while the LSN is not known."""
        xid, lsn = self._watch.settled
        if self._folder.state.altered_xid and not self._lsn and xid >= self._folder.state.altered_xid:
            self._lsn = lsn
        return self._lsn or (_NEVER if self._folder.state.altered_xid else 0)

    def forget(self) -> None:
        """Forget the altered publications.

        Must be called only when the session ends, and has recorded everything up to `lsn`.
        """
        self._folder.update(altered_xid=0)
