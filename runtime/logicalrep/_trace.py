"""Spans of OpenTelemetry. They are recorded only if OpenTelemetry's API and an SDK are installed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any


def span(name: str, **attributes: str | int) -> AbstractContextManager[Any]:
    """Return a context manager that records its `with` block as a span, also if the block fails.

    `with … as` gives the span; None if OpenTelemetry is not installed.

    Args:
        name: Name of the span.
        attributes: Attributes of the span; their names get the prefix `logicalrep.`.
    """
    if (tracer := _find_tracer()) is None:
        return nullcontext()
    named = {f"logicalrep.{key}": value for key, value in attributes.items()}
    block: AbstractContextManager[Any] = tracer.start_as_current_span(name, attributes=named)
    return block


def mark_failed(span: Any, text: str) -> None:
    """Give a span, which may be None, the status ERROR with a description."""
    if span is not None:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR, text)


@cache
def _find_tracer() -> Any:
    """Return the tracer of the library; None if OpenTelemetry is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("logicalrep")
