"""Analyze a query: rewrite its syntax tree for DuckDB; infer column names and types as in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain, repeat
from typing import Any, Final, TypeAlias

from logicalrep.standin.protocol import Field, ServerError
from logicalrep.standin.sql.changes import is_variadic
from logicalrep.standin.sql.functions import (
    ARGUMENTS,
    BUILTINS,
    CHANGES,
    MACROS,
    RECORDS,
    RENAMED,
    TABLE_MACROS,
)
from logicalrep.standin.sql.system_catalogs import (
    ARRAY_OIDS,
    ELEMENT_OIDS,
    OBJECT_TYPES,
    RELATIONS,
    TYPE_OIDS,
    VECTORS,
    duckdb_type,
)
from logicalrep.standin.values import BOOL, BYTEA, INT4, INT8, JSONB, NAME, PG_LSN, TEXT, UNKNOWN, XID
from logicalrep.values import parse_array

Node: TypeAlias = dict[str, Any]
"""Node of the syntax tree that DuckDB's function json_serialize_sql returns."""

Columns: TypeAlias = Sequence[Field]
"""Columns of a query or table. The type OID `UNKNOWN` stands for the type that DuckDB infers."""

Tables: TypeAlias = Mapping[str, Columns]
"""Columns of the tables in FROM or of the common table expressions, by name or alias."""

_TYPE_ALIASES: Final = {
    "bigint": "int8",
    "boolean": "bool",
    "decimal": "numeric",
    "double": "float8",
    "float": "float4",
    "int": "int4",
    "integer": "int4",
    "real": "float4",
    "smallint": "int2",
    "string": "text",
    "timestamp with time zone": "timestamptz",
}
"""Names in pg_type of types that SQL or DuckDB names differently, by the other name."""

_UNNAMED: Final = "?column?"
_SYSTEM: Final = {"xmin": "3", "cmin": "3", "xmax": "0"}
"""Values of the system columns of all rows: they were written once, and never updated."""
_NULLARY: Final = ("current_user", "current_role", "session_user", "current_catalog", "current_schema")
"""Functions that are called without parentheses."""

_BOOLEAN_CLASSES: Final = ("COMPARISON", "CONJUNCTION", "BETWEEN")
_BOOLEAN_OPERATORS: Final = (
    *("OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"),
    *("COMPARE_IN", "COMPARE_NOT_IN"),
)
_TEXT_OPERATORS: Final = ("~~", "!~~", "~~*", "!~~*", "~", "~*", "!~", "!~*")
_NAME_KEYS: Final = ("schema", "schema_name", "catalog", "catalog_name")
_LITERALS: Final = {"INTEGER": INT4, "BOOLEAN": BOOL, "STRING": TEXT, "NULL_LITERAL": TEXT}
_QUERIES: Final = ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE")


class Query:
    """A query whose syntax tree is rewritten for DuckDB.

    Attributes:
        tree: The rewritten syntax tree.
        sql: Text of the rewritten syntax tree; set by `Engine.analyze`.
        catalogs: Names of the system catalogs that the query reads, such as pg_class.
        parameters: Type OIDs of the parameters, by number; the OID of `text` if the type is unknown.
        bound: Numbers of the parameters that `sql` contains; set by `Engine.analyze`. `sql` does not contain
            the arguments of the function in `changes`.
        changes: Name and arguments of the function in `functions.CHANGES` that the query calls, or None. The
            rewritten query reads the changes from the table `changes`.
        columns: Columns of the result.

    Args:
        sql: Text of the query.
        tree: Syntax tree of the query. It is modified.

    Raises:
        ServerError: The query reads an unknown catalog, calls an unknown function, or is not supported.
    """

    def __init__(self, sql: str, tree: Node) -> None:
        self.tree = tree
        self.sql = ""
        self.catalogs: set[str] = set()
        self.parameters: dict[int, int] = {}
        self.bound: Sequence[int] = ()
        self.changes: tuple[str, Sequence[Node]] | None = None
        self._written = sql.encode()
        self._types: dict[int, int] = {}
        """Type OIDs of the rewritten expressions, by the `id` of their nodes."""
        self._kept: list[Node] = []
        if len(tree["statements"]) != 1:
            raise not_supported(f"it has {len(tree['statements'])} statements instead of one")
        (statement,) = tree["statements"]
        self.columns: Columns = self._query(statement["node"], {}, {})
        for one in statement.get("named_param_map", ()):
            self.parameters.setdefault(_number(one["key"]), TEXT)

    # Queries and tables

    def _query(self, node: Node, outer: Tables, ctes: Tables) -> Columns:
        """Rewrite a query for DuckDB and return its result columns.

        Args:
            node: The query.
            outer: Columns of the tables in FROM of the enclosing queries.
            ctes: Columns of the common table expressions that the query can read.
        """
        for entry in node.get("cte_map", {}).get("map", ()):
            value = entry["value"]
            columns = self._query(value["query_node"], outer, {**ctes, entry["key"]: ()})
            ctes = {**ctes, entry["key"]: _renamed(columns, value.get("aliases", ()))}
        match node["type"]:
            case "SELECT_NODE":
                return self._select(node, outer, ctes)
            case "SET_OPERATION_NODE":
                columns, *_ = [self._query(child, outer, ctes) for child in node["children"]]
            case "RECURSIVE_CTE_NODE":
                columns = self._query(node["left"], outer, ctes)
                self._query(node["right"], outer, {**ctes, node["cte_name"]: columns})
            case kind:
                raise not_supported(f"it contains {kind}")
        self._expressions(node.get("modifiers"), {**outer, "": columns}, ctes)
        return columns

    def _select(self, node: Node, outer: Tables, ctes: Tables) -> Columns:
        tables: dict[str, Columns] = {}
        self._table(node["from_table"], outer, ctes, tables)
        scope = {**outer, **tables}
        names = [self._name(one) for one in node["select_list"]]
        for key, value in node.items():
            if key not in ("from_table", "cte_map", "modifiers"):
                self._expressions(value, scope, ctes)
        columns: list[Field] = []
        for name, expression in zip(names, node["select_list"], strict=True):
            if expression["class"] == "STAR":
                qualifier = expression.get("relation_name")
                columns += [one for key, of in tables.items() if qualifier in (None, key) for one in of]
                continue
            if (records := _unnested_records(expression)) is not None:
                columns += records
                continue
            columns.append(Field(name, self._types.get(id(expression), UNKNOWN)))
            if expression["class"] != "COLUMN_REF" and name != _UNNAMED:
                expression.setdefault("alias", name)
        self._expressions(node.get("modifiers"), {**scope, "": columns}, ctes)
        return columns

    def _table(self, node: Node, outer: Tables, ctes: Tables, tables: dict[str, Columns]) -> None:
        """Rewrite an item of FROM for DuckDB, and add the columns of its tables to `tables`.

        Args:
            node: The item.
            outer: Columns of the tables in FROM of the enclosing queries.
            ctes: Columns of the common table expressions that the item can read.
            tables: Columns of the earlier items of the same FROM, by name or alias.
        """
        scope = {**outer, **tables}
        is_function = node["type"] == "TABLE_FUNCTION"
        match node["type"]:
            case "EMPTY":
                return
            case "JOIN":
                self._table(node["left"], outer, ctes, tables)
                self._table(node["right"], outer, ctes, tables)
                self._expressions(node.get("condition"), {**outer, **tables}, ctes)
                return
            case "BASE_TABLE":
                name = node["table_name"]
                columns = ctes[name] if name in ctes else self._catalog(node)
            case "SUBQUERY":
                name = ""
                columns = self._query(node["subquery"]["node"], scope, ctes)
            case "TABLE_FUNCTION":
                name = str(node["function"]["function_name"])
                node.setdefault("alias", name)
                columns = self._table_function(node, name, scope, ctes)
            case "EXPRESSION_LIST":
                name = ""
                self._expressions(node["values"], scope, ctes)
                columns = [
                    Field(f"column{number}", self._types.get(id(value), UNKNOWN))
                    for number, value in enumerate(node["values"][0], 1)
                ]
            case kind:
                raise not_supported(f"its FROM clause contains {kind}")
        names = node.get("column_name_alias", ())
        if not names and is_function and len(columns) == 1 and name not in RECORDS:
            names = [node["alias"]]  # in PostgreSQL, the alias also names the function's only column
            node["column_name_alias"] = names
        tables[node.get("alias") or name or f"#{len(tables)}"] = _renamed(columns, names)

    def _catalog(self, node: Node) -> Columns:
        name = node["table_name"].lower()
        schema = node.get("schema_name", "pg_catalog" if name in RELATIONS else "public")
        if schema == "information_schema":
            raise not_supported("it reads information_schema; use the catalogs pg_class and pg_attribute")
        if schema != "pg_catalog":
            return _make_empty(node, schema)
        if name not in RELATIONS:
            raise not_supported(f'relation "{name}" does not exist')
        _unqualify(node)
        self.catalogs.add(name)
        return [Field(column, abs(oid)) for column, oid in RELATIONS[name].columns.items()]

    def _table_function(self, node: Node, name: str, scope: Tables, ctes: Tables) -> Columns:
        function = node["function"]
        if name in CHANGES:
            return self._changes(node, name)
        if name in TABLE_MACROS:
            self._expressions(function.get("arguments"), scope, ctes)
            self._type_arguments(name, [one["expression"] for one in function.get("arguments", ())])
            _unqualify(function)
            return [Field(column, _oid(kind)) for column, kind in TABLE_MACROS[name][0].items()]
        type_oid = self._expression(function, scope, ctes)
        columns = [Field(name, type_oid)]
        if name in RECORDS:
            unnested = _function("unnest", function)
            unnested["arguments"].append(_RECURSIVE)
            columns = list(_unnested_records(unnested) or ())
            function = unnested
        if node.pop("with_ordinality", None) == "WITH_ORDINALITY":
            node["with_ordinality"] = "WITH_ORDINALITY"
            columns.append(Field("ordinality", INT8))
        if name not in ("generate_series", "unnest"):
            select = {**_EMPTY_SELECT, "select_list": [{**function, "alias": name}]}
            del node["function"]
            node |= {"type": "SUBQUERY", "subquery": {"node": select}}
        return columns

    def _changes(self, node: Node, name: str) -> Columns:
        if self.changes is not None:
            raise not_supported(f"it calls {self.changes[0]} and also {name}: use a query for each call")
        arguments = [one["expression"] for one in node.pop("function").get("arguments", ())]
        self._expressions(deepcopy(arguments), {}, {})  # infers the types of parameters in casts
        self._type_arguments(name, arguments)
        if is_variadic(arguments):
            self.parameters[_number(arguments[3]["identifier"])] = ARRAY_OIDS[TEXT]
        self.changes = name, arguments
        node |= {"type": "BASE_TABLE", "table_name": "changes"}
        return [Field("lsn", PG_LSN), Field("xid", XID), Field("data", BYTEA)]

    # Expressions

    def _expressions(self, value: Any, scope: Tables, ctes: Tables) -> None:
        """Rewrite all expressions inside a tree or list, so that DuckDB executes them like PostgreSQL.

        Args:
            value: Tree or list of nodes. Other values are ignored.
            scope: Columns of the tables that the expressions can refer to.
            ctes: Columns of the common table expressions that subqueries can read.
        """
        if isinstance(value, list):
            for one in value:
                self._expressions(one, scope, ctes)
        elif isinstance(value, dict):
            if "class" in value:
                self._expression(value, scope, ctes)
            elif value.get("type") in _QUERIES:
                self._query(value, scope, ctes)
            else:
                self._expressions(list(value.values()), scope, ctes)

    def _expression(self, node: Node, scope: Tables, ctes: Tables) -> int:
        """Rewrite an expression for DuckDB and return the OID of its type."""
        if node["class"] == "SUBQUERY":
            columns = self._query(node["subquery"]["node"], scope, ctes)
            self._expressions(node.get("child"), scope, ctes)
            type_oid = self._subquery(node, columns)
        else:
            self._expressions(
                [value for value in node.values() if isinstance(value, (dict, list))], scope, ctes
            )
            type_oid = self._type(node, scope)
        self._types[id(node)] = type_oid
        self._kept.append(node)
        return type_oid

    def _type(self, node: Node, scope: Tables) -> int:
        """Rewrite an expression whose operands are already rewritten for DuckDB; return its type OID."""
        match node["class"]:
            case "COLUMN_REF":
                return self._column(node, scope)
            case "CONSTANT":
                return _LITERALS.get(node["literal"]["kind"], UNKNOWN)
            case "PARAMETER":
                return self.parameters.get(_number(node["identifier"]), UNKNOWN)
            case "CAST":
                return self._cast(node)
            case "FUNCTION" | "WINDOW":
                return self._function(node)
            case "CASE":
                branches = [check["then_expr"] for check in node["case_checks"]] + [node["else_expr"]]
                return self._common_type(branches)
            case "OPERATOR":
                return self._operator(node)
            case "COLLATE":
                child = node.pop("child")
                node.clear()
                node |= child
                return self._types.get(id(child), UNKNOWN)
            case "BETWEEN":
                self._unify([node["input"], node["lower"], node["upper"]])
            case "COMPARISON":
                self._unify([node["left"], node["right"]])
        return BOOL if node["class"] in _BOOLEAN_CLASSES else UNKNOWN

    def _column(self, node: Node, scope: Tables) -> int:
        *qualifiers, name = node["column_names"]
        if not qualifiers and name.lower() in _NULLARY:
            _replace(node, _function(name.lower()))
            return self._function(node)
        if qualifiers[:1] == ["pg_catalog"]:
            node["column_names"] = node["column_names"][1:]
        tables = qualifiers[-1:] if qualifiers else list(scope)[::-1]
        if name in _SYSTEM and not any(name in map(_name_of, scope.get(table, ())) for table in tables):
            _replace(node, _constant("INTEGER", _SYSTEM[name]))
            return XID
        for table in tables:
            for column in scope.get(table, ()):
                if column.name.lower() == name.lower():
                    return column.type_oid
        return TYPE_OIDS["record"] if name in scope else UNKNOWN

    def _cast(self, node: Node) -> int:
        child, target = node["child"], node["type_expr"]
        type_oid = self._target(target)
        source = self._types.get(id(child), UNKNOWN)
        if child["class"] == "PARAMETER":
            self._unify([child], type_oid)
        if type_oid in OBJECT_TYPES and source in (TEXT, NAME, UNKNOWN):
            catalog, _ = OBJECT_TYPES[type_oid]
            self.catalogs.add(catalog)
            _replace(node, _function(f"{catalog}_oid", child))
        elif source in OBJECT_TYPES and type_oid in (TEXT, NAME):
            catalog, _ = OBJECT_TYPES[source]
            self.catalogs.add(catalog)
            _replace(node, _function(f"{catalog}_name", child))
        elif type_oid in ELEMENT_OIDS and child["class"] == "CONSTANT" and source == TEXT:
            texts = parse_array(child["literal"].get("text", "")) or []
            values = [_constant("STRING", text) for text in texts if text is not None]
            node["child"] = {"class": "OPERATOR", "type": "ARRAY_CONSTRUCTOR", "children": values}
        return type_oid

    def _target(self, node: Node) -> int:
        """Rewrite the target type of a cast for DuckDB, and return the OID of the type in PostgreSQL."""
        name = node["type_name"].lower()
        if name == "list":
            (element,) = node["children"]
            return ARRAY_OIDS.get(self._target(element), UNKNOWN)
        type_oid = TYPE_OIDS.get(_TYPE_ALIASES.get(name, name), UNKNOWN)
        if type_oid not in _KNOWN_CASTS:
            node.pop("children", None)
            node |= {"type_name": duckdb_type(type_oid), "qualified_name": {"path": [duckdb_type(type_oid)]}}
        _unqualify(node)
        return type_oid

    def _function(self, node: Node) -> int:
        name = node["function_name"].lower()
        arguments = [one["expression"] for one in node.get("arguments", ())]
        types = [self._types.get(id(one), UNKNOWN) for one in arguments]
        _unqualify(node)
        if node.get("is_operator"):
            return self._named_operator(node, name, arguments, types)
        if name in RECORDS and types[0] not in ELEMENT_OIDS:  # without VARIADIC; the macro needs a list
            node["arguments"] = [{"expression": _function("list_value", arguments[0])}]
        if name in MACROS:
            self._type_arguments(name, arguments)
            return _oid(MACROS[name][0])
        if name in RENAMED:
            node |= _named(RENAMED[name])
            return TYPE_OIDS["jsonb" if name.startswith("jsonb") else "json"]
        if name not in BUILTINS:
            raise ServerError("42883", f"function {name} does not exist in a stand-in server")
        if BUILTINS[name]:
            self._type_arguments(name, arguments)
            return _oid(BUILTINS[name])
        first = types[0] if types else UNKNOWN
        if name == "unnest":
            return ELEMENT_OIDS.get(first, UNKNOWN)
        if name == "array_agg":
            return ARRAY_OIDS.get(first, UNKNOWN)
        return UNKNOWN if name in ("sum", "list_value", "abs", "round") else first

    def _named_operator(self, node: Node, name: str, arguments: list[Node], types: list[int]) -> int:
        if name in _TEXT_OPERATORS:
            self._unify(arguments, TEXT)
            if name in ("~", "!~", "~*", "!~*"):
                flags = [_constant("STRING", "i")] if name.endswith("*") else []
                match = _function("regexp_matches", *arguments, *flags)
                negated = {"class": "OPERATOR", "type": "OPERATOR_NOT", "children": [match]}
                _replace(node, negated if name.startswith("!") else match)
            return BOOL
        if name == "||" and not set(types) & ELEMENT_OIDS.keys():
            self._unify(arguments, TEXT)
            return TEXT
        if name == "-" and types[0] == JSONB:
            _replace(node, _function("jsonb_without", *arguments))
            return JSONB
        return UNKNOWN

    def _operator(self, node: Node) -> int:
        kind, children = node["type"], node.get("children", [])
        types = [self._types.get(id(one), UNKNOWN) for one in children]
        if kind in _BOOLEAN_OPERATORS:
            if kind.startswith("COMPARE"):
                self._unify(children)
            return BOOL
        if kind == "OPERATOR_COALESCE":
            return self._common_type(children)
        if kind == "ARRAY_CONSTRUCTOR":
            return ARRAY_OIDS.get(self._common_type(children), UNKNOWN)
        if kind == "ARRAY_EXTRACT":
            if types[0] in VECTORS:  # a vector's first subscript is 0, a list's 1
                plus = _function("+", children[1], _constant("INTEGER", "1"))
                children[1] = plus | {"is_operator": True}
            return ELEMENT_OIDS.get(types[0], UNKNOWN)
        return UNKNOWN

    def _subquery(self, node: Node, columns: Columns) -> int:
        kind = node["subquery_type"]
        if kind == "SCALAR":
            return columns[0].type_oid if columns else UNKNOWN
        if kind == "ANY" and "child" in node:
            inner = node["subquery"]["node"].get("select_list", [{}])[0]
            child = node["child"]
            if columns and columns[0].type_oid != UNKNOWN:
                self._unify([child], columns[0].type_oid)
            arguments = inner.get("arguments", [])
            if inner.get("function_name") == "unnest" and arguments[0]["expression"]["class"] == "PARAMETER":
                element = self._types.get(id(child), UNKNOWN)
                self._unify([arguments[0]["expression"]], ARRAY_OIDS.get(element, UNKNOWN))
        return BOOL

    def _common_type(self, nodes: Sequence[Node]) -> int:
        """Return the type OID of a CASE, COALESCE or array with the operands `nodes`.

        The OID is `UNKNOWN` if operands have different types. Query parameters, and constants other than
        integers and Booleans, do not count. If there are no other operands, the type is `text`.
        """
        types = {
            self._types.get(id(one), UNKNOWN)
            for one in nodes
            if one["class"] not in ("CONSTANT", "PARAMETER")
            or one.get("literal", {}).get("kind") in ("INTEGER", "BOOLEAN")
        }
        if not types:
            return TEXT
        self._unify([one for one in nodes if one["class"] == "PARAMETER"], next(iter(types)))
        return types.pop() if len(types) == 1 else UNKNOWN

    def _unify(self, nodes: Sequence[Node], type_oid: int = UNKNOWN) -> None:
        """Set the type of the query parameters among `nodes` to `type_oid`.

        If `type_oid` is `UNKNOWN`, the parameters get the first known type among the other nodes. If there is
        none, nothing is set. An entry that `parameters` already has is kept.
        """
        known = (self._types.get(id(one), UNKNOWN) for one in nodes if one["class"] != "PARAMETER")
        found = type_oid if type_oid != UNKNOWN else next((one for one in known if one != UNKNOWN), UNKNOWN)
        for one in nodes:
            if one["class"] == "PARAMETER" and found != UNKNOWN:
                self.parameters.setdefault(_number(one["identifier"]), found)
                self._types[id(one)] = found

    def _type_arguments(self, name: str, arguments: Sequence[Node]) -> None:
        """Infer the types of the query parameters among the arguments of the function `name`."""
        for one, kind in zip(arguments, chain(ARGUMENTS.get(name, ()), repeat("text")), strict=False):
            self._unify([one], _oid(kind))

    # Names of result columns

    def _name(self, node: Node) -> str:
        """Return the name that PostgreSQL gives to the result column of an expression (FigureColname)."""
        return str(node.get("alias") or self._figure(node) or _UNNAMED)

    def _figure(self, node: Node) -> str:
        match node["class"]:
            case "COLUMN_REF":
                return str(node["column_names"][-1])
            case "FUNCTION" | "WINDOW" if not node.get("is_operator"):
                written = self._written[node.get("query_location", 0) :].decode("utf-8", "replace").lower()
                name = str(node["function_name"])
                name = "count" if name == "count_star" else name
                return name if written.removeprefix("pg_catalog.").lstrip('"').startswith(name) else ""
            case "CAST":
                return self._figure(node["child"]) or self._type_name(node["type_expr"])
            case "COLLATE":
                return self._figure(node["child"])
            case "CASE":
                return self._figure(node["else_expr"]) or "case"
            case "SUBQUERY":
                return self._subquery_name(node)
            case "OPERATOR":
                return self._operator_name(node)
        return ""

    def _type_name(self, node: Node) -> str:
        if node["type_name"] == "list":
            return self._type_name(node["children"][0])
        name = node["type_name"].lower()
        return str(_TYPE_ALIASES.get(name, name))

    def _subquery_name(self, node: Node) -> str:
        if node["subquery_type"] == "EXISTS":
            return "exists"
        if node["subquery_type"] != "SCALAR":
            return ""
        written = self._written[node.get("query_location", 0) :].lower()
        if written.startswith(b"array"):
            return "array"
        select = node["subquery"]["node"].get("select_list")
        return self._name(select[0]).replace(_UNNAMED, "") if select else ""

    def _operator_name(self, node: Node) -> str:
        match node["type"]:
            case "OPERATOR_COALESCE":
                return "coalesce"
            case "ARRAY_CONSTRUCTOR":
                return "array"
            case "ARRAY_EXTRACT" | "ARRAY_SLICE":
                return self._figure(node["children"][0])
            case "STRUCT_EXTRACT":
                return str(node["children"][1]["literal"]["text"])
        return ""


_KNOWN_CASTS: Final = tuple(map(TYPE_OIDS.get, ("date", "interval", "numeric", "timestamp", "timestamptz")))
"""OIDs of types that DuckDB has under the same name, so that casts to these types are not rewritten."""

_EMPTY_SELECT: Final = {
    "type": "SELECT_NODE",
    "cte_map": {},
    "from_table": {"type": "EMPTY"},
    "aggregate_handling": "STANDARD_HANDLING",
}


def _renamed(columns: Columns, names: Sequence[str]) -> Columns:
    """Return the columns, renamed to `names`. If `names` is shorter, the last columns keep their names."""
    renamed = [Field(name, column.type_oid) for name, column in zip(names, columns, strict=False)]
    return [*renamed, *columns[len(renamed) :]]


def _number(parameter: str) -> int:
    if not parameter.isdigit():
        raise not_supported(f"${parameter} is not a numbered parameter such as $1")
    return int(parameter)


def _name_of(column: Field) -> str:
    return column.name


def _oid(name: str) -> int:
    """Return the OID of the type `name`; `UNKNOWN` if the name is empty or unknown."""
    if name.endswith("[]"):
        return ARRAY_OIDS[TYPE_OIDS[name[:-2]]]
    return {"": UNKNOWN, "void": 2278, "record": 2249}.get(name) or TYPE_OIDS.get(name, UNKNOWN)


def _named(name: str) -> Node:
    return {"function_name": name, "qualified_name": {"path": [name]}}


def _function(name: str, *arguments: Node) -> Node:
    return {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "order_bys": {"type": "ORDER_MODIFIER"},
        "arguments": [{"expression": one} for one in arguments],
        **_named(name),
    }


def _constant(kind: str, text: str) -> Node:
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "literal": {"kind": kind, "text": text}}


def _make_empty(node: Node, schema: str) -> Columns:
    """Replace a user's table by a subquery without rows, and return an empty sequence of columns.

    The subquery fails if no table with this name in the schema `schema` is published.
    """
    name = node["table_name"]
    check = _function("has_rows", _constant("STRING", schema), _constant("STRING", name))
    select = {**_EMPTY_SELECT, "select_list": [_constant("INTEGER", "1")], "where_clause": check}
    alias = node.get("alias") or name
    node.clear()
    node |= {"type": "SUBQUERY", "alias": alias, "subquery": {"node": select}}
    return ()


def _unnested_records(node: Node) -> Columns | None:
    """Return the columns of unnest(f(…)) if the function f returns records; None for other expressions.

    The functions that return records are the keys of `RECORDS`.
    """
    if node.get("function_name") != "unnest":
        return None
    records = RECORDS.get(node["arguments"][0]["expression"].get("function_name", ""))
    return None if records is None else [Field(column, _oid(kind)) for column, kind in records.items()]


_RECURSIVE: Final = {"name": "recursive", "expression": _constant("BOOLEAN", "true")}
"""Argument of DuckDB's unnest that makes each field of a struct a column."""


def _replace(node: Node, other: Node) -> None:
    alias = node.get("alias")
    node.clear()
    node |= other
    if alias:
        node["alias"] = alias


def _unqualify(node: Node) -> None:
    """Remove the schema from the name of a table, function or type."""
    for key in _NAME_KEYS:
        node.pop(key, None)
    if "qualified_name" in node:
        node["qualified_name"] = {"path": node["qualified_name"]["path"][-1:]}


def not_supported(reason: str) -> ServerError:
    """Return the error for a query that the stand-in server cannot execute."""
    return ServerError(
        "0A000",
        f"a stand-in server executes only look-ups in catalogs, not this query ({reason})",
        "It has the system catalogs of PostgreSQL 18, and no tables.",
    )
