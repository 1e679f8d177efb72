"""Commands that show whether recorders and replicas work, or what they lack."""

from __future__ import annotations

from typing import Annotated

import typer

from logicalrep._extras import require
from logicalrep.cli.common.options import Dsn, RecordingPlace


def doctor(
    dsn: Dsn = "",
    publication: Annotated[
        list[str] | None,
        typer.Option(help="A publication to record; repeatable. The default is all.", show_default=False),
    ] = None,
    slot: Annotated[
        str, typer.Option(help="The replication slot; it need not exist.", show_default=False)
    ] = "",
    place: Annotated[
        list[str] | None,
        typer.Option(help="The folder or URL of a recording or replica; repeatable.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a server and this machine before recording: what is wrong, what it costs, and the SQL that helps.

    Nothing is changed, but a file is written to each place and deleted. Exit code 1: recording, copying or
    verifying would fail.
    """
    from logicalrep.cli.operate import doctor as command

    command.examine(dsn, slot, publication or (), place or (), json=json)


def status(
    recording: RecordingPlace,
    dsn: Annotated[
        str | None,
        typer.Option(
            help="Connection string of libpq, to ask about the slot; '' for its environment variables.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="The folder or URI of a replica of the recording; repeatable.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a recording, its slot and recorder, its replicas, and their lag."""
    require("arrow", "pyarrow")
    from logicalrep.cli.operate import status as command

    command.show(recording, dsn, target or (), json=json)
