// The columns of a table, and the cells of its changes.

/** Return the pieces, layout and error of a stored message, with the protocol and context that read it. */
function explainRow(store, index, row) {
  const context = { inStream: Boolean(index.flags[row] & IN_STREAM), streaming: index.streaming };
  const protocol = VERSIONS.get(index.versions[row]);
  return { ...explainRecord(store.channel(row), store.bytes(row), protocol, context), protocol, context };
}

/** Return the values of a message's fields by path. */
function valuesOf(store, index, row) {
  return new Map(explainRow(store, index, row).pieces.map((piece) => [piece.path, piece.value]));
}

/** Return the table that a Relation message describes: oid, namespace, name, and columns with name, type_oid and isKey. */
function relationAt(store, index, row) {
  const values = valuesOf(store, index, row);
  const columns = [];
  for (const [path, value] of values) {
    const [, number, name] = /^columns\[(\d+)\]\.(\w+)$/.exec(path) ?? [];
    if (number !== undefined) (columns[number] ??= {})[name] = value;
  }
  const [oid, namespace, name] = ["oid", "namespace", "name"].map((path) => values.get(path) ?? "");
  return { oid, namespace, name, columns: columns.map((one) => ({ ...one, isKey: Boolean(Number(one.flags) & 1) })) };
}

/** Return whether a message changes rows of a table whose Relation message is in the stream. */
function isChange(index, row) {
  return index.descriptions[row] >= 0 && index.descriptions[row] !== row;
}

/** Return the tuple and the column's number of a piece that is a cell of a change; null for others. */
function cellPlace({ path, kind }) {
  const parts = kind === "cell" ? /^(new|old|key)\[(\d+)\]$/.exec(path) : null;
  return parts && { tuple: parts[1], number: Number(parts[2]) };
}

/** Return a cell's value as PostgreSQL writes it; null if it has none, or its type is not known here. */
function cellText({ type, value }, column) {
  if (type === "text") return value;
  return type === "binary" && column ? binaryText(value, column.type_oid) : null;
}
