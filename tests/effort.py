"""Hypothesis profiles, which set the number of examples that each property is tested with.

========== =================================================================================================
profile    used by
========== =================================================================================================
logicalrep   `make test`: the same examples in each run, so that a failure means the same everywhere
quick      `make quick`: half of these examples
nightly    `make nightly`: twenty times as many examples, others in each run
explore    `pytest --hypothesis-profile=explore`: twice as many examples, others in each run
========== =================================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import pytest
from hypothesis import settings

_EXAMPLES: Final = 100


def register_profiles() -> None:
    """Register the Hypothesis profiles, and load the profile of `make test`."""
    # No deadlines: a slow machine is not a failure.
    settings.register_profile("logicalrep", deadline=None, derandomize=True, max_examples=_EXAMPLES // 2)
    settings.register_profile("quick", deadline=None, derandomize=True, max_examples=_EXAMPLES // 4)
    settings.register_profile("nightly", deadline=None, max_examples=10 * _EXAMPLES, print_blob=True)
    settings.register_profile("explore", deadline=None, max_examples=_EXAMPLES)
    settings.load_profile("logicalrep")


def examples(count: int) -> int:
    """Return the number of examples in the loaded profile for a test with `count` examples in `explore`."""
    return max(1, count * settings().max_examples // _EXAMPLES)


def mostly_nightly(values: Iterable[object], kept: Collection[object]) -> list[Any]:
    """Return values for `parametrize`. Values that are not in `kept` run only in `make nightly`."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.nightly) for value in values]
