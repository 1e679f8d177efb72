"""Permissions of the files that a command writes."""

from __future__ import annotations

import os

from pgoutput.recording import locate


def restrict_permissions(target: str) -> None:
    """Let this process give new files no permission that the folder of a replica lacks.

    delta-rs and Arrow create files with all permissions that the umask leaves. A folder that does not exist
    yet will be its owner's only.
    """
    place = locate(target)
    mode = os.stat(place.path).st_mode if place.is_local and os.path.isdir(place.path) else 0o700
    os.umask(os.umask(0o077) | ~mode & 0o777)
