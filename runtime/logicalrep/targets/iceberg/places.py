"""Convert the URIs of Iceberg tables to locations, and errors of catalogues and files to `ReplicaError`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from logicalrep._text import one_line
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets.protocol import ConflictError


def folder_uri(place: Location) -> str:
    """Return the URI of a folder, as Iceberg's metadata contain it."""
    return f"file://{os.path.abspath(place.path)}" if place.is_local else place.place.partition("?")[0]


def locate_part(place: Location, uri: str) -> Location:
    """Return the location of a file or folder of a table.

    Args:
        place: The place of the table in its target.
        uri: URI of the file or folder, without a slash at its end.

    Raises:
        ReplicaError: The file or folder is not in the target.
    """
    root = folder_uri(place.parent)
    if not uri.startswith(f"{root}/"):
        raise ReplicaError(
            f"{place}: the catalogue has another Iceberg table of this name, at {uri}. "
            "Write the tables of this target to a namespace of their own (`--iceberg CATALOG.NAMESPACE`)"
        )
    return place.parent / uri.removeprefix(f"{root}/")


@contextmanager
def errors(place: Location) -> Iterator[None]:
    """Raise the errors of catalogues, pyiceberg and filesystems in a `with` block as `ReplicaError`."""
    try:
        yield
    except (CommitFailedException, CommitStateUnknownException) as error:
        raise ConflictError(f"{place}: the commit failed: {one_line(error)}. Repeat the command") from error
    except ReplicaError:
        raise
    except Exception as error:  # an error of the catalogue, filesystem or network, or a damaged file
        raise ReplicaError(
            f"{place}: access to the table or catalogue failed: {one_line(error) or type(error).__name__}"
        ) from error
