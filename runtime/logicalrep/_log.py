"""Log events of the library with loggers below `logicalrep`; a log record has the data of its event."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from logicalrep._text import LINE_CHARACTERS, SHOWN, bounded

logging.getLogger("logicalrep").addHandler(logging.NullHandler())  # a program without logging prints nothing


def log_event(logger: str, level: int, text: str, event: msgspec.Struct) -> None:
    """Log an event; the attribute `event` of the log record has the event's fields.

    The attribute has all elements of lists if the logger has the level DEBUG; otherwise it is the result of
    `bounded_fields`.

    Args:
        logger: Name of the logger.
        level: Level of the record, such as `logging.INFO`.
        text: Message of the record.
        event: The event.
    """
    log = logging.getLogger(logger)
    if log.isEnabledFor(level):
        fields = msgspec.to_builtins if log.isEnabledFor(logging.DEBUG) else bounded_fields
        log.log(level, "%s", bounded(text), extra={"event": fields(event)})


def bounded_fields(event: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of an event, with lists and texts cut off if their JSON has more than 4,096 bytes.

    The key `left_out` then has, by name of the field, how many elements of each list were cut off.
    """
    whole: dict[str, Any] = msgspec.to_builtins(event)
    fields = whole
    for elements, characters in ((SHOWN, 512), (1, 512), (0, 64)):
        if len(msgspec.json.encode(fields)) <= LINE_CHARACTERS:
            break
        lists = {name: one for name, one in whole.items() if isinstance(one, list | tuple)}
        cut = {name: one[:elements] for name, one in lists.items()}
        missing = {name: len(one) - len(cut[name]) for name, one in lists.items() if len(one) > elements}
        fields = _cut(whole | cut, characters) | {"left_out": missing}
    return fields


def _cut(value: Any, characters: int) -> Any:
    if isinstance(value, str):
        return bounded(value, characters)
    if isinstance(value, dict):
        return {key: _cut(one, characters) for key, one in value.items()}
    return [_cut(one, characters) for one in value[:SHOWN]] if isinstance(value, list | tuple) else value
