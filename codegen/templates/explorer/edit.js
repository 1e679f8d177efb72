// Encodes a message again after one of its fields has another value: its counts of bytes follow.

/** A value that does not fit into its field. */
class EditError extends Error {}

/** Return the value of a piece as text that `editValue` accepts. */
function editableText({ value, type, kind }) {
  if (value instanceof Uint8Array) return toHex(value, " ");
  if (value === null) return "";
  return typeof value === "string" || kind === "bool" ? String(value) : formatValue({ value, type, kind });
}

/** Return the message's bytes with another value, given as text, in piece `i`. Raises EditError. */
function editValue(data, pieces, i, text) {
  const piece = pieces[i];
  if (piece.kind !== "cell" && piece.kind !== "bytes") return splice(data, piece, encodeValue(piece, text));
  const binary = piece.kind === "bytes" || piece.type === "binary";
  const value = binary ? readHex(text) : encodeText(text);
  if (piece.kind === "bytes") return splice(setLength(data, lengthBefore(pieces, i), value.length), piece, value);
  if (piece.type === "null" || piece.type === "unchanged") return replaceCell(data, piece, piece, "text", value);
  return replaceCell(data, pieces[i - 2], piece, piece.type, value);
}

/** Return the message's bytes with a cell in a form without value, `null` or `unchanged`. */
function editCell(data, pieces, i, form) {
  const first = pieces[i].type === "null" || pieces[i].type === "unchanged" ? pieces[i] : pieces[i - 2];
  return replaceCell(data, first, pieces[i], form, new Uint8Array());
}

/** Return the message's bytes with other bytes, given as hexadecimal digits, in a piece. */
function editBytes(data, piece, digits) {
  return splice(data, piece, readHex(digits));
}

function readHex(digits) {
  const bytes = fromHex(digits);
  if (!bytes) throw new EditError("hexadecimal digits are expected, two for each byte");
  return bytes;
}

function splice(data, { start, end }, bytes) {
  return concatenate([data.subarray(0, start), bytes, data.subarray(end)]);
}

function replaceCell(data, first, last, form, value) {
  const cell = first.field.cells.find((one) => one.form === form);
  const size = cell.length_size ?? 0;
  const head = concatenate([encodeText(cell.tag), integerBytes(BigInt(value.length), size)]);
  return splice(data, { start: first.start, end: last.end }, concatenate([head, value]));
}

function lengthBefore(pieces, i) {
  return pieces.findLast((piece, at) => at < i && piece.field?.of === pieces[i].field.name);
}

function setLength(data, piece, length) {
  return splice(data, piece, integerBytes(BigInt(length), piece.end - piece.start));
}

function integerBytes(value, size) {
  return Uint8Array.from({ length: size }, (_, i) => Number((value >> BigInt(8 * (size - 1 - i))) & 0xffn));
}

function encodeValue(piece, text) {
  const size = piece.end - piece.start;
  switch (piece.kind) {
    case "string":
      if (text.includes("\0")) throw new EditError("a zero character cannot be sent in a zero-terminated string");
      return concatenate([encodeText(text), new Uint8Array(1)]);
    case "rest":
      return readHex(text);
    case "tag":
    case "side":
    case "celltag":
    case "enum":
      if (!/^[\x00-\x7f]$/.test(text)) throw new EditError("one ASCII character is expected");
      return encodeText(text);
    case "bool":
      if (!/^(true|false|0|1)$/.test(text)) throw new EditError("true or false is expected");
      return integerBytes(text === "true" || text === "1" ? 1n : 0n, 1);
  }
  const value = readNumber(piece, text.trim());
  const bits = BigInt(size * 8);
  const signed = piece.field?.signed;
  const [low, high] = signed ? [-(1n << (bits - 1n)), (1n << (bits - 1n)) - 1n] : [0n, (1n << bits) - 1n];
  if (value < low || value > high) throw new EditError(`${value} does not fit into ${piece.notation}, ${low} to ${high}`);
  return integerBytes(value, size);
}

function readNumber(piece, text) {
  if (/^(-?\d+|0x[0-9a-f]+)$/i.test(text)) return BigInt(text);
  const lsn = piece.type === "lsn" && /^([0-9a-f]{1,8})\/([0-9a-f]{1,8})$/i.exec(text);
  if (lsn) return (BigInt(`0x${lsn[1]}`) << 32n) | BigInt(`0x${lsn[2]}`);
  if (piece.type === "timestamp") {
    const parts = /^(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(?:Z|\+00(?::?00)?)?$/.exec(text);
    const unix = parts ? Date.parse(`${parts[1]}T${parts[2]}Z`) : NaN;
    if (!Number.isNaN(unix)) return BigInt(unix) * 1000n + BigInt((parts[3] ?? "").padEnd(6, "0")) - 946_684_800_000_000n;
    throw new EditError("a time such as 2026-01-01 00:00:00+00:00 is expected, or microseconds since 2000-01-01");
  }
  throw new EditError(piece.type === "lsn" ? "an LSN such as 16/B374D848 is expected" : "a number is expected");
}
