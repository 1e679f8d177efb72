"""A first form of a new message, which `python -m codegen new-message` adds to the spec."""

from __future__ import annotations

import re
import string

from codegen.model import Spec
from codegen.resolve import snake
from codegen.rules.common import is_tag
from codegen.yamlfile import SpecError, YamlFile

_VERSION = """
  {number}:
    # Correct the first PostgreSQL version that has it.
    server: {server}+
    released: false
    doc: Fill in what the version is for.
"""
_MESSAGE = """
  {name}:
    tag: "{tag}"
    role: payload
    title: {title}
    versions: {number}+
    source: logicalrep_write_{source}
    doc: Fill in what the message tells.
    fields:
      - {{name: xid, type: xid, means: subxid, when: in_stream, doc: Xid of the subtransaction.}}
      - {{name: lsn, type: lsn, means: lsn, doc: The LSN of the change.}}
"""


def with_message(spec: Spec, name: str, number: int | None) -> tuple[YamlFile, str]:
    """Return the file of the protocol pgoutput, and its text with a new message and, if missing, its version.

    Args:
        spec: The spec, which must have versions.
        name: The message's name.
        number: The first protocol version that has the message; None is the first that is not released.

    Raises:
        SpecError: The name is no name of a message, or is taken; or the version is released.
    """
    file = next(one for one in spec.files if one.data.get("protocol") == "pgoutput")
    messages = spec.protocols["pgoutput"].messages
    taken = {
        snake(str(key))
        for one in spec.files
        for value in one.data.values()
        if isinstance(value, dict)
        for key in value
    }
    if not re.fullmatch(r"([A-Z]+[a-z0-9]+)+[A-Z]*", name) or snake(name) in taken:
        what = (
            "is taken: choose another name"
            if snake(name) in taken
            else "is no name of a message: write CamelCase"
        )
        raise SpecError(f"{file.path}:1: `{name}` {what}")
    newest = max(spec.versions)
    if number is None:
        number = next((one for one, version in spec.versions.items() if not version.released), newest + 1)
    if number <= newest and (number not in spec.versions or spec.versions[number].released):
        raise file.error(
            ("versions",),
            f"version {number} is released or gone: give `--version {newest + 1}`, or leave it out",
        )
    text = file.text
    if number not in spec.versions:
        server = 1 + max(
            int(version.server.split("+")[0].split("-")[0]) for version in spec.versions.values()
        )
        text = _append(text, "versions", _VERSION.format(number=number, server=server))
    letters = name[0].lower() + name[0] + string.ascii_letters + string.digits + string.punctuation
    tag = next(
        one for one in letters if is_tag(one) and one not in {message.tag for message in messages.values()}
    )
    title = re.sub("(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return file, _append(
        text, "messages", _MESSAGE.format(name=name, tag=tag, title=title, number=number, source=snake(name))
    )


def _append(text: str, section: str, block: str) -> str:
    """Add the lines `block` at the end of a section of a YAML text."""
    head, key, rest = re.split(rf"(^{section}:.*\n)", text, maxsplit=1, flags=re.MULTILINE)
    body = re.match(r"(?:(?:[ \t].*)?\n|#.*\n(?=[ \t]))*", rest + "\n")
    end = len(body[0].rstrip()) if body else 0
    block = block.lstrip("\n") if section == "versions" else block
    return f"{head}{key}{rest[:end]}\n{block}{rest[end:].removeprefix(chr(10))}"
