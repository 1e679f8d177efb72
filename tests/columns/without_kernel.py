"""Compare results with the compiled kernel and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from pgoutput import compiled
from pgoutput.errors import EncodeError


@contextmanager
def pure() -> Iterator[None]:
    """Run the block without the compiled kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "kernel", None)
        yield


def outcome(call: Callable[[], pa.Array]) -> Any:
    """Return the result of a call, or its error, in a form that can be compared."""
    try:
        made = call()
    except EncodeError as error:
        return type(error), str(error), error.message, error.field
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    made.validate(full=True)
    return made.type, made.to_pylist()
