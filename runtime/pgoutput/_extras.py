"""Errors for missing third-party packages; the text names the extra of `pgoutput` to install."""

from __future__ import annotations

from importlib.util import find_spec


class MissingExtraError(ModuleNotFoundError):
    """A third-party package is missing; the error text has the shell command that installs it.

    Attributes:
        extra: The extra of `pgoutput` that installs the package.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is missing: {install_line(extra)}", name=package)
        self.extra = extra


def require(extra: str, *packages: str) -> None:
    """Check that third-party packages are installed, without importing them.

    Args:
        extra: The extra of `pgoutput` that installs the packages.
        packages: Import names of the packages.

    Raises:
        MissingExtraError: A package is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(package, extra)


def install_line(*extras: str) -> str:
    """Return the shell command that installs `pgoutput` with the given extras."""
    return f"pip install 'pgoutput[{','.join(extras)}]'"
