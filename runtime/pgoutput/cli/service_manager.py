"""Messages to systemd: that a service is ready, that it still works, and that it ends (sd_notify)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Send a state, such as "READY=1", to the service manager; do nothing without one.

    The environment variable NOTIFY_SOCKET names its socket: a path, or an abstract name that begins with `@`.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.connect("\0" + address[1:] if address.startswith("@") else address)
        connection.sendall(state.encode())
