"""Two threads write and store segments, and no more after an error."""

from __future__ import annotations

import select
from functools import partial
from threading import Event

import pytest

from logicalrep.recorder.storage.writer_threads import WriterThreads

PATIENCE = 120


def test_the_first_error_ends_all_jobs() -> None:
    done: list[str] = []
    release = Event()

    def fail() -> None:
        assert release.wait(PATIENCE)
        raise OSError("the store")

    with WriterThreads(lambda: None) as threads:
        threads.submit(lambda: threads.submit_end(fail))
        threads.submit(lambda: threads.submit_end(lambda: done.append("stored")))
        release.set()
        assert select.select([threads], [], [], PATIENCE)[0]
        with pytest.raises(OSError, match="the store"):
            threads.flush()
        for method in (threads.collect, threads.check, partial(threads.submit, release.set)):
            with pytest.raises(OSError, match="the store"):
                method()
    assert done == []
