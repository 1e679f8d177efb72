"""Start the stream of a slot, for START_REPLICATION and for functions that return changes (logical.c)."""

from __future__ import annotations

from collections.abc import Iterator

from logicalrep.errors import LogicalrepError
from logicalrep.standin.protocol import ServerError
from logicalrep.standin.replication.plugin_options import parse_plugin_options
from logicalrep.standin.replication.scanner import OptionList
from logicalrep.standin.server_state import ServerState
from logicalrep.standin.slots import Slot
from logicalrep.standin.source import Envelope, PluginOptions


def start_decoding(
    server: ServerState, slot: Slot, given: OptionList, after_lsn: int
) -> tuple[PluginOptions, Iterator[Envelope | None]]:
    """Return the plugin options parsed from `given`, and the source's stream after `after_lsn`.

    The stream yields None while the next message is not available yet.

    Raises:
        ServerError: The plugin refuses the options, a publication does not exist, or the source fails.
    """
    server.check_plugin("pgoutput")
    options = parse_plugin_options(given, server.major_version, slot.two_phase and server.major_version >= 15)
    publications = server.source.publications
    for name in options.publication_names:
        if publications is not None and name not in publications:
            hint = f"The stream was recorded with the publications {', '.join(publications)}."
            raise ServerError("42704", f'publication "{name}" does not exist', hint)
    try:
        return options, server.source.start(options, after_lsn)
    except LogicalrepError as error:
        raise ServerError("0A000", str(error)) from None
    except Exception as error:  # a source is user code and may raise any exception
        raise source_failed(error) from None


def source_failed(error: Exception) -> ServerError:
    """Return the ServerError that reports a source's exception to the client."""
    return ServerError("XX000", f"the stand-in server's source has failed: {type(error).__name__}: {error}")
