"""A fixture that runs the tests of a module with the compiled kernel, and without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logicalrep import compiled
from tests.columns.without_kernel import pure


@pytest.fixture(params=["kernel", "pure"], scope="module")
def with_and_without_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "pure":
        with pure():
            yield
    elif compiled.kernel is None:
        pytest.skip(compiled.HOW)
    else:
        yield
