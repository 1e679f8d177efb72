"""Owner and permissions of the files that a command writes."""

from __future__ import annotations

import os
import pwd

from logicalrep.errors import RecordingError
from logicalrep.recording import locate


def refuse_root(*places: str) -> None:
    """Refuse to write as root into local folders of other users, who could not read root's files.

    Raises:
        RecordingError: The user is root, and a folder belongs to another user.
    """
    if os.geteuid() != 0:
        return
    for place in map(locate, places):
        if not place.is_local or not os.path.isdir(place.path):
            continue
        if owner := os.stat(place.path).st_uid:
            try:
                user = pwd.getpwuid(owner).pw_name
            except KeyError:
                user = f"#{owner}"
            raise RecordingError(
                f"{place}: the folder belongs to the user {user}, whose commands could not read files of "
                f"root: run the command as this user (runuser -u {user} -- logicalrep …)"
            )


def restrict_permissions(target: str) -> None:
    """Set the umask so that new files get no permission that the folder of a replica lacks.

    delta-rs and Arrow create files with all permissions that the umask leaves. If the folder does not exist
    yet, only its owner gets permissions.
    """
    place = locate(target)
    mode = os.stat(place.path).st_mode if place.is_local and os.path.isdir(place.path) else 0o700
    os.umask(os.umask(0o077) | ~mode & 0o777)
