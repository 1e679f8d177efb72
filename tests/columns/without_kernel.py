"""Helpers of tests that compare results with and without the compiled kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from logicalrep import compiled
from logicalrep.errors import EncodeError


@contextmanager
def pure() -> Iterator[None]:
    """Run the `with` block without the compiled kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "kernel", None)
        yield


def outcome(call: Callable[[], pa.Array]) -> Any:
    """Return the array that `call` returns, or the error that it raises, as values that can be compared."""
    try:
        made = call()
    except EncodeError as error:
        return type(error), str(error), error.message, error.field
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    made.validate(full=True)
    return made.type, made.to_pylist()
