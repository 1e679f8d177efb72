"""Strict reader of YAML files that knows the line number of every value.

YAML guesses types: `off` is false, `010` is eight, `12:30` is 750. The reader refuses such values unless they
are quoted. It also refuses duplicate keys, anchors and merge keys.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

Place = tuple[str | int, ...]
"""The path of a value in a file: keys and indexes, from the top of the file."""

_PREFIX = "tag:yaml.org,2002:"
_UNQUOTED = r"""^([^{]*?)\b(\w+): +([^\s"'>|{\[&*!#].*?)( #|:(?=[ }\]]|$))"""
"""Pattern of a YAML key with an unquoted text that contains `:` or ` #`; groups: start, key, text, sign."""
_UNQUOTED_IN_BRACES = _UNQUOTED.replace(".*?", "[^,]*?").replace("[^{]*?", r".*?\{.*?", 1)
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18}|0x[0-9a-fA-F]{1,16})")


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses anchors and aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases are not supported: write their values instead"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


@functools.lru_cache(maxsize=8)
def _compose(text: str) -> yaml.Node | None:
    """Return the root node of a YAML text. It is cached, because `diff` and tests read most files twice."""
    return yaml.compose(text, Loader=_Loader)


_ANYWHERE = 1_000_000
_COLON_IN_TEXT = "the text of `{1}` contains `{3}`: {quote}"
_SLIPS: Final = (
    (r': "[^"]*$', r'\g<0>"', "a double quote opens a text here, and none closes it", _ANYWHERE),
    ("\u00a0", " ", "the line has a no-break space: write a plain space", 3),
    (r"^ *(?:- )?(\w+):(?=[^\s:/])", r"\g<0> ", "`{0}:` needs a space after the colon", 3),
    (r"^( *(?:- )?)(\w+)( \S+)?$", r"\1\2:\3", "`{1}` needs a colon: write `{1}: …`", 3),
    (
        r"(\{.*?: [^\s,]+) (doc|list_of|means|name|type|value|versions|when):",
        r"\1, \2:",
        "add a comma before `{1}:`",
        3,
    ),
    (r"^ +(?=\{)", r"\g<0>- ", "an entry of a list begins with `- `: write it before the brace", 3),
    (r"(?<=: )( *)([>|@%]\S+)", r'\1"\2"', "a text cannot begin as `{1}` does: quote it", 3),
    (r"(?<=\S)\t", " ", "the line has a tab: write a space", 3),
    (_UNQUOTED_IN_BRACES, r"\1\2: \3", _COLON_IN_TEXT, 3),
    (_UNQUOTED, r"\1\2: \3", _COLON_IN_TEXT, 3),
    (r"\{[^}]*$", "{}", "the line opens a brace `{{` and does not close it: add `}}`", 3),
    (
        r"^ *\t.*",
        "",
        "a tab stands before the text: indent with spaces, two more than the line above it needs",
        _ANYWHERE,
    ),
)
"""Patterns of lines at which YAML fails, how to mend such a line, what is wrong in it, and how many lines
above YAML's error it can be. A line is blamed only if YAML can read more of the file after it is mended."""


def _unread(lines: list[str]) -> int:
    """Return how many characters are after YAML's error, or -1 if there is no error."""
    text = "\n".join(lines)
    try:
        _compose(text)
    except yaml.MarkedYAMLError as error:
        return len(text) - (error.problem_mark.index if error.problem_mark else 0)
    return -1


class SpecError(Exception):
    """An error in the spec: file, line and description, in one line of text."""


def unknown(what: str, name: object, known: Iterable[object]) -> str:
    """Return an error text for an unknown name, with the known names and the most similar known name."""
    names = [*map(str, known)]
    return f"unknown {what} `{name}`; the {what}s are {', '.join(names) or 'none'}{nearest(name, names)}"


def nearest(name: object, known: Iterable[str]) -> str:
    """Return the question whether the most similar known name was meant; empty if no name is similar."""
    names = {one.lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), names, 1)
    return f"; did you mean `{names[close[0]]}`?" if close else ""


class YamlFile:
    """A YAML file: its data, and the line number of every value.

    Raises:
        SpecError: The file is empty, is not valid YAML, or contains YAML that the reader refuses (see the
            module).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[Place, int] = {(): 1}
        self.numbers: dict[Place, str] = {}
        """The numbers as they are written, such as `0x71`."""
        try:
            text = path.read_bytes().decode("utf-8")
            self.text = text
            self._text = re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text)
            node = _compose(text)
            self.data: Any = None if node is None else self._value(node, ())
        except RecursionError:
            raise SpecError(f"{path}:1: YAML is nested too deep: remove levels of nesting") from None
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise SpecError(f"{path}:{line}: not UTF-8 text: {error.reason}") from None
        except yaml.MarkedYAMLError as error:
            raise self._yaml_error(error) from None
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise SpecError(f"{path}:{line}: YAML: {error.reason}") from None
        if node is None:
            raise SpecError(f"{path}:1: the file is empty")
        if not isinstance(self.data, dict):
            raise self.error((), "the top of the file must be a mapping")

    def __contains__(self, place: Place) -> bool:
        """Return whether the file has a value at `place`."""
        return place in self._lines

    def error(self, place: Place, text: str) -> SpecError:
        """Return an error with the line of `place`, or of the nearest enclosing value with a known line.

        The text names the record, such as a message, and the field in whose lines this is.
        """
        return self._error(self.line(place), " ".join(text.split()))

    def _error(self, line: int, text: str) -> SpecError:
        record, field = self._enclosing(line)
        names = re.findall(r"[\w-]+", text)
        if text.startswith("released-") or record.isdigit():
            pass
        elif field and field not in names:
            text = f"{record}.{field}: {text.removeprefix(f'{record}: ')}"
        elif record and record not in names:
            text = f"{record}: {text}"
        return SpecError(f"{self.path}:{line}: {text}")

    def _enclosing(self, line: int) -> tuple[str, str]:
        """Return the names of the record and of the field to which a line belongs, or empty texts."""
        field = ""
        entry: re.Match[str] | None = None
        for text in reversed(self._text[:line]):
            if (
                not entry
                and re.match(" {6,}", text)
                and (found := re.search(r"\b(?:name|count|length): ([\w-]+)", text))
            ):
                field = field or found[1]
            entry = entry or re.match(" {6,}- ", text)
            if record := re.match(r"  [\"']?([\w-]+)[\"']?:", text):
                return record[1], field if entry else ""
            if text[:1] not in ("", " ", "#"):
                break
        return "", ""

    def line(self, place: Place) -> int:
        """Return the line, from 1, of `place` or of the nearest enclosing value with a known line."""
        while place not in self._lines:
            place = place[:-1]
        return self._lines[place]

    def _yaml_error(self, error: yaml.MarkedYAMLError) -> SpecError:
        last = error.problem_mark.line if error.problem_mark else 0
        unread = _unread(self._text)
        for pattern, mended, slip, above in _SLIPS:
            for index in range(max(0, last - above), last + 1):
                line = self._text[index]
                if not (match := re.search(pattern, line)):
                    continue
                lines = [*self._text[:index], re.sub(pattern, mended, line), *self._text[index + 1 :]]
                if _unread(lines) < unread:
                    groups = [str(one).strip() for one in match.groups()]
                    return self._error(index + 1, slip.format(*groups, quote=_quote("".join(groups[1:2]))))
        text = str(error.problem)
        if re.search(r"expected <block end>, but found '(<block|-|\?)|mapping values are not allowed", text):
            last, text = self._wrong_indent(last)
        if re.search(r"found character '[^\\]'|<scalar>", text):
            text += "; if this belongs to a text, quote the whole text"
        return self._error(last + 1, f"YAML: {text}")

    def _wrong_indent(self, index: int) -> tuple[int, str]:
        """Return the index of the line that is indented wrongly, and an error text with indents that fit.

        YAML's error is at line `index`, whose indent fits no line above it.
        """
        here = len(self._text[index]) - len(self._text[index].lstrip())
        rows = [(i, re.match(r"( *)(- (?=\w))?", self._text[i])) for i in range(index - 1, -1, -1)]
        # The line of a dash has two indents: that of the dash, and that of the first key after it.
        levels = [
            (i, match.end(group), match.end() - match.end(1) if group == 0 else 0)
            for i, match in rows
            if match and not re.match(" *(#|$)", self._text[i])
            for group in ((0, 1) if match[2] else (1,))
        ]
        above = [indent for _, indent, _ in levels]
        parent = next((i for i, indent in enumerate(above) if indent < here), 0)
        # The first line of a block decides its indent, so YAML's error is at the second line.
        for i, indent, dash in levels[max(parent - 1, 0) : parent + 1]:
            if indent % 2 > here % 2 or (here - above[parent] == 2 and indent > here):
                wrong, right = (self._text[one].strip()[:30] for one in (i, index))
                text = f"{indent - dash} spaces before `{wrong}`, but {here} before `{right}`"
                return i, f"{text}: write {here - dash}"
        fitting: list[int] = []
        for indent in above:
            if indent < min(fitting, default=99):
                fitting.append(indent)
        known = " or ".join(map(str, sorted(fitting)))
        return index, (
            f"{here} spaces before `{self._text[index].strip()[:30]}` are no level of the lines above, which "
            f"have {known}: write {min(fitting, key=lambda one: abs(one - here))} if it belongs beside one, "
            "or indent the lines above it by two spaces for each level"
        )

    def _value(self, node: yaml.Node, place: Place) -> Any:
        # Keep the line of the value's key if it is stored already.
        self._lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*place, i)) for i, item in enumerate(node.value)]
        return self._scalar(node, place)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> Mapping[str | int, Any]:
        result: dict[str | int, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            self._lines[(*place, "")] = line
            key = self._scalar(key_node, (*place, ""))
            if not isinstance(key, str | int):
                raise self.error((*place, ""), f"a key must be a name or a number, not {key!r}")
            if key in result:
                raise self.error((*place, ""), f"duplicate key `{key}`")
            self._lines[(*place, key)] = line
            if value_node.tag == f"{_PREFIX}null" and not value_node.value:
                text = (
                    ": write a space after the colon"
                    if re.match(r"\w+:\S", str(key))
                    else "; if it belongs to the text before it, quote the whole text"
                    if node.flow_style
                    else ""
                )
                deeper = (
                    "" if text else ": write one, or indent the lines that belong to it by two spaces more"
                )
                raise self.error((*place, key), f"`{key}` has no value{text or deeper}")
            result[key] = self._value(value_node, (*place, key))
        return result

    def _scalar(self, node: yaml.Node, place: Place) -> str | int | bool:
        kind = node.tag.removeprefix(_PREFIX)
        text = node.value if isinstance(node, yaml.ScalarNode) else ""
        if kind == "str" and isinstance(node, yaml.ScalarNode):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise self.error(place, "the text contains a surrogate, which is not a character")
            if node.style is None and re.match(
                r"\s+#", self._text[node.end_mark.line][node.end_mark.column :]
            ):
                hint = f"{_quote(place[-1])}; write a comment on a line of its own"
                raise self.error(place, f"the text `{text}` ends at a `#`: {hint}")
            return text
        if kind == "int" and _INTEGER.fullmatch(text):
            self.numbers[place] = text
            return int(text, 0)
        if kind == "bool" and text in ("true", "false"):
            return text == "true"
        if kind == "null" and not text:
            raise self.error(place, "a value is missing here")
        if kind == "merge":
            raise self.error(place, "merge keys are not supported: write the merged keys instead")
        if isinstance(node, yaml.ScalarNode):
            flag = "write true or false, or for a text " if kind == "bool" else ""
            raise self.error(place, f'YAML reads `{text}` as {kind}, not as text: {flag}quote it, "{text}"')
        raise self.error(place, f"expected a plain name or number, found a YAML {kind}")


def _quote(key: str | int) -> str:
    return f'quote the whole text, {key}: "…"' if isinstance(key, str) and key else "quote the whole text"
