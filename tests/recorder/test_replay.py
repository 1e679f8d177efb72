"""Tables replayed from a recording equal the server's tables, for every protocol version and option."""

from __future__ import annotations

import pytest

from logicalrep.recorder import Connected, RecorderOptions
from tests.effort import mostly_nightly
from tests.recorder import workload
from tests.recorder.lab import Lab
from tests.server import VERSION
from tests.versions import OLDEST

OPTIONS = {
    10: {"default": RecorderOptions(), "1": RecorderOptions(proto_version=OLDEST)},
    14: {
        "2": RecorderOptions(proto_version=2),
        "2-off-messages": RecorderOptions(proto_version=2, streaming="off", messages=True),
        "2-binary": RecorderOptions(proto_version=2, binary=True),
    },
    15: {
        "3-two-phase": RecorderOptions(proto_version=3, two_phase=True, messages=True),
        "3-two-phase-off": RecorderOptions(proto_version=3, two_phase=True, streaming="off"),
    },
    16: {
        "4-on": RecorderOptions(proto_version=4, streaming="on", origin="any"),
        "4-all": RecorderOptions(two_phase=True, messages=True, binary=True, streaming="parallel"),
    },
}
"""Recorder options, by the first server version that supports them, then by test ID."""
POSSIBLE = {name: one for since, some in OPTIONS.items() if since <= VERSION for name, one in some.items()}


DAILY = "1", "2-off-messages", "3-two-phase", "4-all"
"""The options that `make test` records with; together they have each version and each option."""


@pytest.mark.parametrize("name", mostly_nightly(POSSIBLE, DAILY))
def test_all_changes_are_recorded(lab: Lab, name: str) -> None:
    options = POSSIBLE[name]
    workload.create(lab)
    workload.work(lab, 1)
    workload.finish(lab, 1)  # the slot waits for the end of prepared transactions
    with lab.recording(options=options, snapshot=True) as recording:
        recording.wait(Connected)
        workload.work(lab, 21)
    workload.work(lab, 41)
    workload.finish(lab, 21)
    lab.record(options=options)
    workload.finish(lab, 41)
    lab.record(options=options)
    lab.assert_equal()
