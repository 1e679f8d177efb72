"""The expressions in the spec's rules: parsed, checked, and compiled to Python and to JavaScript.

The syntax is a subset of Python's: comparisons, `in`, `is`, `and`, `or`, `not`, attributes, subscripts,
numbers, texts, and calls of `FUNCTIONS`. `spec/README.md` explains it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, get_args

from codegen.roles import MEANINGS, Role
from codegen.yamlfile import unknown


class Mistake(Exception):
    """An expression or text cannot be compiled. The text of the exception says why."""


class Type(NamedTuple):
    """The type of a value: a name such as `xid`, or `set`, `map` or `list` with the types of its elements."""

    name: str
    keys: str = ""
    values: str = ""


class Code(NamedTuple):
    """An expression or text compiled to Python and to JavaScript, and the type of its value."""

    python: str
    javascript: str
    type: Type = Type("")

    def named(self, name: str) -> Code:
        """Return the name of a variable as code; the variable holds the value of this code."""
        return Code(name, name, self.type)


Scope = Mapping[str, Code]
"""The words that an expression can use, with the code that each stands for."""

_MEANINGS: Mapping[str, Type] = {
    "xid": Type("xid"),
    "subxid": Type("xid"),
    "gid": Type("gid"),
    "lsn": Type("lsn"),
    "end_lsn": Type("lsn"),
    "prepare_end_lsn": Type("lsn"),
    "time": Type("time"),
    "prepare_time": Type("time"),
    "first_block": Type("bool"),
    "transactional": Type("bool"),
    "oid": Type("oid"),
    "relation": Type("oid"),
    "relations": Type("list", values="oid"),
}
"""Types of the fields that expressions can use, by the fields' meaning."""

ATTRIBUTES: Mapping[str, Code] = {
    "xid": Code("{}.xid", "{}.xid", Type("xid")),
    "aborted": Code("{}.aborted", "state.note({}).aborted", Type("set", "xid")),
    "subxids": Code("{}.subxids", "state.note({}).subxids", Type("set", "xid")),
    "described": Code("{}.relations", "state.note({}).relations", Type("set", "oid")),
    "message_lsn": Code("{}.message_lsn", "state.note({}).messageLsn", Type("lsn")),
    "resent": Code("{}.resent", "state.note({}).resent", Type("bool")),
}
"""The attributes of a transaction in expressions, by name; `{}` in the code stands for the transaction."""

_EARLIER: Mapping[str, tuple[str, tuple[Role, ...]]] = {
    "opener": ("{}.means.{}", ("begin", "begin_prepare", "open_block")),
    "prepare": ("{}.{}", ("prepare", "prepare_streamed")),
}
"""By type of an earlier message: how JavaScript reads a value of the message, and the message's roles."""

FUNCTIONS: Mapping[str, tuple[Code, tuple[str, ...]]] = {
    "precedes": (Code("_precedes", "precedes", Type("bool")), ("xid", "xid")),
    "byte_length": (Code("_byte_length", "byteLength", Type("count")), ("gid",)),
}
"""The functions of expressions, by name: code with the type of the result, and types of the arguments."""

_OPERATORS: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "==="),
    ast.NotEq: ("!=", "!=="),
    ast.Lt: ("<", "<"),
    ast.LtE: ("<=", "<="),
    ast.Gt: (">", ">"),
    ast.GtE: (">=", ">="),
}
_NUMBERS = ("xid", "oid", "count", "version")
_ORDERED = (*_NUMBERS, "lsn", "time")
_COMPARABLE = (*_ORDERED, "gid", "bool", "option")
_NO_CONDITION = ("set", "map", "gid", "option", "number")
"""Types whose values cannot be conditions: an empty set is false in Python, but true in JavaScript."""

_SHOWN: Mapping[str, tuple[str, str]] = {
    "lsn": ("{{format_lsn({})}}", "${{formatLsn({})}}"),
    "gid": ("{{{}!r}}", "${{quote({})}}"),
    "opened": ("{{{}}}", "${{describeOpen({})}}"),
} | dict.fromkeys(("xid", "oid", "time", "count"), ("{{{}}}", "${{{}}}"))
"""By type: how a value is written in an f-string of Python and in a template literal of JavaScript."""

_WIDTH = 84
"""Number of characters after which a string literal in generated code continues on the next line."""

_PLACEHOLDER = re.compile(r"\{([^{}\s:]+)(?::(name|number))?\}")


def meanings(roles: Iterable[Role]) -> dict[str, Type]:
    """Return the types of the fields that messages with these roles can have, by meaning of the field.

    A role is what a message does in a stream, such as `commit`. A meaning is what a field tells, such as
    `xid`. Fields that expressions cannot use, such as tuples, are left out.
    """
    known = {one for role in roles for some in MEANINGS[role] for one in some}
    return {name: kind for name, kind in _MEANINGS.items() if name in known}


def names(text: str) -> list[str]:
    """Return all names in an expression, with repetitions; [] if the expression cannot be parsed."""
    try:
        return [node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)]
    except Mistake:
        return []


def placeholders(text: str) -> list[str]:
    """Return the expressions in the braces of a text."""
    return [found[1] for found in _PLACEHOLDER.finditer(text)]


def condition(text: str, scope: Scope) -> Code:
    """Compile an expression that is a condition.

    Raises:
        Mistake: The expression cannot be parsed or compiled, or its value is no condition.
    """
    return _Compiler(scope).condition(_parse(text))


def literal(python: str, javascript: str) -> Code:
    """Return the code of a string: an f-string in Python, a template literal in JavaScript.

    If the content is only one expression in braces, the code is this expression, without quotation marks.
    The value of this expression must be a text.

    Args:
        python: Content of the f-string.
        javascript: Content of the template literal.
    """
    if re.fullmatch(r"\$\{[^{}]*\}", javascript):
        javascript = javascript[2:-1]
    else:
        javascript = f"`{javascript}`"
    if re.fullmatch(r"\{[^{}]*\}", python):
        return Code(python[1:-1], javascript)
    return Code(_f_string(python), javascript)


def _f_string(inside: str) -> str:
    return f'{"f" * ("{" in inside)}"{inside}"'


def show(text: str, scope: Scope, fields: Scope) -> Code:
    """Compile a text with expressions in braces to code that returns the text with their values filled in.

    Args:
        text: The text. `{lsn}` is replaced by the value of the expression `lsn`, and `{lsn:number}` by this
            LSN as an integer. `{lsn:name}` is replaced by the name of the field that means `lsn`.
        scope: The words that the expressions can use.
        fields: Names of the message's fields, by meaning, for `{lsn:name}`.

    Raises:
        Mistake: A brace has no counterpart, an expression cannot be compiled, or values of its type cannot be
            shown in a text.
    """
    lines, javascript = [""], ""
    for word in re.split(r"(?<= )", text):
        line = ""
        for part in re.split(r"(\{[^{} ]*\})", word):
            found = _PLACEHOLDER.fullmatch(part)
            if found is None and set("{}") & set(part):
                raise Mistake(
                    f"`{part}`: braces have an expression without spaces: "
                    "{xid}, {lsn:name} or {lsn:number}"
                )
            filled = _escaped(part) if found is None else _shown(found, scope, fields)
            line += filled.python
            javascript += filled.javascript
        if len(lines[-1] + line) > _WIDTH:
            lines.append("")
        lines[-1] += line
    python = [_f_string(line) for line in lines]
    return Code(python[0] if len(python) == 1 else f"({' '.join(python)})", f"`{javascript}`")


def _escaped(text: str) -> Code:
    escaped = text.replace("\\", "\\\\")
    return Code(escaped.replace('"', '\\"'), escaped.replace("`", "\\`"))


def _shown(found: re.Match[str], scope: Scope, fields: Scope) -> Code:
    expression, form = found.groups()
    node = _parse(expression)
    if form == "name":
        return _field_name(node, scope, fields)
    code = _Compiler(scope).value(node)
    kind = code.type.name
    if kind not in _SHOWN or (form == "number" and kind != "lsn"):
        raise Mistake(f"`{found[0]}` cannot be shown in a text: its type is {kind}")
    python, javascript = _SHOWN["count" if form == "number" else kind]
    return Code(python.format(code.python), javascript.format(code.javascript))


def _field_name(node: ast.expr, scope: Scope, fields: Scope) -> Code:
    """Compile the part before `:name` in `{lsn:name}` or `{opener.lsn:name}` to the name of a field.

    It is the field with the meaning `lsn` in the message, or in the opener (the message that began the
    transaction or stream block).
    """
    match node:
        case ast.Name(id=of) if of in fields:
            return fields[of]
        case ast.Attribute(value=ast.Name(id="opener"), attr=of):
            _Compiler(scope).value(node)
            return Code(f"{{_name(opener, '{of}')}}", f'${{named(opener, "{of}")}}')
    raise Mistake(
        f"`{ast.unparse(node)}` has no field name: only a field of the message or of `opener` has one, as in "
        "{lsn:name}"
    )


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise Mistake(f"`{text}` is not an expression: {error.msg}") from None


class _Compiler:
    """Compiles parsed expressions that use the words of `scope`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def condition(self, node: ast.expr) -> Code:
        code = self.value(node)
        if code.type.name in _NO_CONDITION:
            raise Mistake(f"`{ast.unparse(node)}` is no condition: its type is {code.type.name}")
        if code.type.name == "list":
            return code._replace(javascript=f"{code.javascript}.length > 0", type=Type("bool"))
        return code

    def value(self, node: ast.expr) -> Code:
        match node:
            case ast.Name(id=name):
                return self._name(name)
            case ast.Constant(value=bool() | None):
                pass
            case ast.Constant(value=int() as number):
                return Code(str(number), str(number), Type("number"))
            case ast.Constant(value=str() as text):
                return Code(json.dumps(text), json.dumps(text), Type("option"))
            case ast.Attribute(value=owner, attr=attribute):
                return self._attribute(self.value(owner), attribute)
            case ast.Subscript(value=owner, slice=key):
                return self._subscript(self.value(owner), key)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(name, [self.value(one) for one in arguments])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._not(operand)
            case ast.BoolOp(op=operator, values=values):
                parts = [self._operand(one, ast.BoolOp) for one in values]
                word, sign = ("and", "&&") if isinstance(operator, ast.And) else ("or", "||")
                python = f" {word} ".join(one.python for one in parts)
                return Code(python, f" {sign} ".join(one.javascript for one in parts), Type("bool"))
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return self._compare(left, operator, right)
        raise Mistake(f"`{ast.unparse(node)}` cannot be used here: spec/README.md explains expressions")

    def _operand(self, node: ast.expr, *compound: type[ast.expr]) -> Code:
        """Compile a part of a condition; enclose it in parentheses if its class is in `compound`."""
        code = self.condition(node)
        if not isinstance(node, compound):
            return code
        return code._replace(python=f"({code.python})", javascript=f"({code.javascript})")

    def _name(self, name: str) -> Code:
        if name not in self._scope:
            raise Mistake(unknown("word", name, self._scope))
        return self._scope[name]

    def _attribute(self, owner: Code, attribute: str) -> Code:
        if owner.type.name == "transaction":
            if attribute not in ATTRIBUTES:
                raise Mistake(unknown("attribute", attribute, ATTRIBUTES))
            python, javascript, kind = ATTRIBUTES[attribute]
            return Code(python.format(owner.python), javascript.format(owner.javascript), kind)
        _require(owner.type.name in _EARLIER, f"{owner.type.name} has no attributes, such as `{attribute}`")
        javascript, roles = _EARLIER[owner.type.name]
        known = meanings(roles)
        if attribute not in known:
            raise Mistake(unknown("attribute", attribute, known))
        javascript = javascript.format(owner.javascript, attribute)
        return Code(f"meaning_of({owner.python}, '{attribute}')", javascript, known[attribute])

    def _subscript(self, owner: Code, key: ast.expr) -> Code:
        kind = Type(owner.type.values)
        if owner.type.name == "list" and ast.unparse(key) == "-1":
            return Code(f"{owner.python}[-1]", f"{owner.javascript}.at(-1)", kind)
        if owner.type.name != "map":
            raise Mistake(f"only maps have keys, and only lists an element [-1]; this is {owner.type.name}")
        code = self.value(key)
        _require(code.type.name == owner.type.keys, f"the key is {code.type.name}, not {owner.type.keys}")
        return Code(f"{owner.python}[{code.python}]", f"{owner.javascript}.get({code.javascript})", kind)

    def _call(self, name: str, arguments: list[Code]) -> Code:
        if name not in FUNCTIONS:
            raise Mistake(unknown("function", name, FUNCTIONS))
        function, wanted = FUNCTIONS[name]
        given = tuple(one.type.name for one in arguments)
        _require(given == wanted, f"`{name}` takes {', '.join(wanted)}, not {', '.join(given) or 'nothing'}")
        python = ", ".join(one.python for one in arguments)
        javascript = ", ".join(one.javascript for one in arguments)
        return Code(f"{function.python}({python})", f"{function.javascript}({javascript})", function.type)

    def _not(self, node: ast.expr) -> Code:
        code = self.value(node)
        if code.type.name == "list":
            return Code(f"not {code.python}", f"{code.javascript}.length === 0", Type("bool"))
        python = self._operand(node, ast.BoolOp).python
        javascript = self._operand(node, ast.BoolOp, ast.Compare).javascript
        return Code(f"not {python}", f"!{javascript}", Type("bool"))

    def _compare(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Code:
        match operator:
            case ast.Is() | ast.IsNot():
                return self._is(left, right, isinstance(operator, ast.IsNot))
            case ast.In() | ast.NotIn():
                return self._in(self.value(left), self.value(right), isinstance(operator, ast.NotIn))
        one, other = self.value(left), self.value(right)
        kind, other_kind = one.type.name, other.type.name
        python, javascript = _OPERATORS[type(operator)]
        fitting = kind == other_kind or (kind in _NUMBERS and other_kind == "number")
        comparable = kind in (_COMPARABLE if isinstance(operator, ast.Eq | ast.NotEq) else _ORDERED)
        _require(fitting and comparable, f"{kind} {python} {other_kind} is no comparison")
        return Code(
            f"{one.python} {python} {other.python}",
            f"{one.javascript} {javascript} {other.javascript}",
            Type("bool"),
        )

    def _in(self, element: Code, owner: Code, negated: bool) -> Code:
        _require(owner.type.name in ("set", "map"), f"`in` is for sets and maps, not for {owner.type.name}")
        kind = element.type.name
        _require(kind == owner.type.keys, f"the element is {kind}, not {owner.type.keys}")
        return Code(
            f"{element.python} {'not ' * negated}in {owner.python}",
            f"{'!' * negated}{owner.javascript}.has({element.javascript})",
            Type("bool"),
        )

    def _is(self, left: ast.expr, right: ast.expr, negated: bool) -> Code:
        one = self.value(left)
        word, sign = ("is not", "!") if negated else ("is", "=")
        match right:
            case ast.Constant(value=None):
                return Code(f"{one.python} {word} None", f"{one.javascript} {sign}= null", Type("bool"))
            case ast.Constant(value=bool() as value) if one.type.name == "bool":
                javascript = f"{one.javascript} {sign}== {str(value).lower()}"
                return Code(f"{one.python} {word} {value}", javascript, Type("bool"))
            case ast.Name(id=role) if one.type.name in ("message", "opener"):
                if role not in get_args(Role):
                    raise Mistake(unknown("role", role, get_args(Role)))
                if one.type.name == "message":
                    return Code(f'role {sign}= "{role}"', f'role {sign}== "{role}"', Type("bool"))
                python = f'{"not " * negated}_has_role({one.python}, "{role}")'
                return Code(python, f'{one.javascript}?.layout.role {sign}== "{role}"', Type("bool"))
        text = "None, or for `message` and `opener` a role"
        raise Mistake(f"`{ast.unparse(left)} {word} {ast.unparse(right)}`: after `is` comes {text}")


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise Mistake(text)
