"""Errors for missing third-party packages; the text names the extra of `logicalrep` to install."""

from __future__ import annotations

from importlib.util import find_spec

from logicalrep.errors import MissingExtraError as MissingExtraError, install_line as install_line


def require(extra: str, *packages: str) -> None:
    """Check that third-party packages are installed, without importing them.

    Args:
        extra: The extra of `logicalrep` that installs the packages.
        packages: Import names of the packages.

    Raises:
        MissingExtraError: A package is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(package, extra)
