"""Distribution of the tests over pytest-xdist's workers: module by module, the longest first.

A module stays on one worker, since its tests share servers and parametrized fixtures of the module.
The modules of a group in `SPARK` stay on one worker too: they share its Spark, and no more than two Sparks
run at a time. Spark gives a Python worker ten seconds to connect, which more Sparks at once would exceed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

SPARK: Final = (
    (
        "tests/spark/test_source.py",
        "tests/spark/test_replicate.py",
        "tests/spark/test_decode.py",
        "tests/spark/test_functions.py",
        "tests/spark/test_engines.py",
        "tests/spark/test_demo.py",
        "tests/spark/test_writer.py",
    ),
    (
        "tests/crash/test_replication.py",
        "tests/cli/test_replicate.py",
        "tests/spark/test_session.py",
        "tests/spark/test_live.py",
        "tests/spark/test_pipeline.py",
        "tests/docs/test_pages.py",
    ),
)
"""The test modules that start Spark, in two groups that take about equally long."""

LONGEST: Final = (
    *SPARK[0],
    *SPARK[1],
    "tests/crash/test_crash.py",
    "tests/grid/test_grid.py",
    "tests/recorder/test_running.py",
    "tests/recorder/test_failover.py",
    "tests/replica/test_replica.py",
    "tests/recorder/test_catalog_changes.py",
    "tests/recorder/test_errors.py",
    "tests/synth/test_workload.py",
    "tests/columns/test_index.py",
    "tests/cli/test_surroundings.py",
    "tests/columns/test_decode.py",
    "tests/recording/test_batches.py",
    "tests/crash/test_memory.py",
    "tests/cli/test_commands.py",
    "tests/synth/test_oracle.py",
    "tests/recorder/test_waiting.py",
    "tests/codegen/test_mistakes.py",
    "tests/testing/test_strategies.py",
    "tests/codegen/test_version_five_kernel.py",
    "tests/recorder/test_snapshot.py",
    "tests/views/test_changes.py",
    "tests/codec/test_kernel.py",
    "tests/codec/test_properties.py",
    "tests/codegen/test_version_five.py",
    "tests/codegen/test_evolution.py",
    "tests/views/test_table.py",
    "tests/standin/test_clients.py",
    "tests/recording/test_captures.py",
    "tests/recorder/test_replay.py",
    "tests/standin/test_scenarios.py",
    "tests/recording/test_memory.py",
)
"""The test modules that take longest: first the modules that use Spark, then others by duration."""


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]
    """A scheduler of pytest-xdist that gives workers whole modules or `SPARK` groups, in collection order."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return next((group[0] for group in SPARK if module in group), module)


def by_duration(items: Iterable[Any]) -> list[Any]:
    """Return the collected tests with the longest modules first."""
    order = {module: number for number, module in enumerate(LONGEST)}
    return sorted(items, key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))
