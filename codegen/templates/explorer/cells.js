// The columns of a table, and the values of cells in binary format.

/** Return the pieces of a Relation message or a change, without its envelope. */
function payloadPieces(store, index, row) {
  const data = payloadOf(store.channel(row), store.bytes(row));
  const context = { inStream: Boolean(index.flags[row] & IN_STREAM), streaming: "off" };
  return explain(VERSIONS.get(index.versions[row]), data, context).pieces;
}

/** Return schema and name of the table that a Relation message describes. */
function relationName(store, index, row) {
  const pieces = payloadPieces(store, index, row);
  return ["namespace", "name"].map((path) => pieces.find((piece) => piece.path === path)?.value ?? "");
}

/** Return the columns that a Relation message describes: name, type_oid and isKey. */
function columnsOf(store, index, row) {
  const columns = [];
  for (const { path, value } of payloadPieces(store, index, row)) {
    const [, number, name] = /^columns\[(\d+)\]\.(\w+)$/.exec(path) ?? [];
    if (number !== undefined) (columns[number] ??= {})[name] = value;
  }
  return columns.map(({ name, type_oid, flags }) => ({ name, type_oid, isKey: Boolean(Number(flags) & 1) }));
}

/** Return the name of a built-in type, such as `int4` or `text[]`; "" for another one. */
function typeName(oid) {
  return SPEC.types[oid] ?? "";
}

const asView = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
const asTime = (bytes) => {
  const time = asView(bytes).getBigInt64(0);
  return formatTimestamp(time)?.replace("T", " ") ?? (time > 0n ? "infinity" : "-infinity");
};

/** Functions that return the text of a value, by type: its size in bytes, 0 for any, and the function. */
const BINARY = {
  bool: [1, (bytes) => (bytes[0] ? "t" : "f")],
  int2: [2, (bytes) => asView(bytes).getInt16(0)],
  int4: [4, (bytes) => asView(bytes).getInt32(0)],
  int8: [8, (bytes) => asView(bytes).getBigInt64(0)],
  oid: [4, (bytes) => asView(bytes).getUint32(0)],
  float4: [4, (bytes) => asView(bytes).getFloat32(0)],
  float8: [8, (bytes) => asView(bytes).getFloat64(0)],
  date: [4, (bytes) => formatTimestamp(BigInt(asView(bytes).getInt32(0)) * 86_400_000_000n)?.slice(0, 10) ?? "infinity"],
  timestamp: [8, (bytes) => asTime(bytes).replace("+00:00", "")],
  timestamptz: [8, asTime],
  uuid: [16, (bytes) => toHex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-")],
  jsonb: [0, (bytes) => decodeText(bytes.subarray(1))],
  ...Object.fromEntries(["text", "varchar", "bpchar", "name", "json", "xml"].map((name) => [name, [0, decodeText]])),
};

/** Return the text of a cell in binary format by the OID of its type; "" if the type is not known here. */
function binaryText(bytes, oid) {
  const [size, read] = BINARY[typeName(oid)] ?? [];
  return read && (!size || bytes.length === size) ? String(read(bytes)) : "";
}
