"""Log records of the library: loggers below `pgoutput`, with the event as structured data."""

from __future__ import annotations

import logging

import msgspec

logging.getLogger("pgoutput").addHandler(logging.NullHandler())  # a program without a log prints nothing


def log_event(logger: str, level: int, text: str, event: msgspec.Struct) -> None:
    """Log an event; the attribute `event` of the log record has the event's fields.

    Args:
        logger: Name of the logger.
        level: Level of the record, such as `logging.INFO`.
        text: Message of the record.
        event: The event.
    """
    log = logging.getLogger(logger)
    if log.isEnabledFor(level):
        log.log(level, "%s", text, extra={"event": msgspec.to_builtins(event)})
