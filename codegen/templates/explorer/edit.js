// Encodes a message again after one of its fields has another value: its counts of bytes follow.

/** A text that is no value of its field. */
class EditError extends Error {}

/** Return the value of a piece as text that `editValue` accepts. */
function editableText({ value, type, kind }) {
  if (value instanceof Uint8Array) return toHex(value, " ");
  if (value === null) return "";
  return typeof value === "string" || kind === "bool" ? String(value) : formatValue({ value, type });
}

/** Return the message's bytes with another value, given as text, in piece `i`. Throws EditError or EncodeError. */
function editValue(data, pieces, i, text) {
  const piece = pieces[i];
  if (piece.kind === "cell") return replaceCell(data, pieces, i, piece.type === "binary" ? readHex(text) : text);
  if (piece.kind !== "bytes") return splice(data, piece, encoded((writer) => writeValue(writer, piece, text)));
  const value = readHex(text);
  const length = pieces.findLast(({ field }, at) => at < i && field.of === piece.field.name);
  const size = encoded((writer) => writer.integer(value.length, length.end - length.start));
  return splice(splice(data, length, size), piece, value);
}

/** Return the message's bytes with a cell in a form without value, `null` or `unchanged`. */
function editCell(data, pieces, i, form) {
  return replaceCell(data, pieces, i, form === "null" ? null : UNCHANGED);
}

/** Return the message's bytes with other bytes, given as hexadecimal digits, in a piece. */
function editBytes(data, piece, digits) {
  return splice(data, piece, readHex(digits));
}

function readHex(digits) {
  const { bytes } = digits.trim() ? readDigits(digits) : { bytes: new Uint8Array() };
  if (!bytes) throw new EditError("expected hexadecimal digits, two for each byte");
  return bytes;
}

function splice(data, { start, end }, bytes) {
  return concatenate([data.subarray(0, start), bytes, data.subarray(end)]);
}

function replaceCell(data, pieces, i, value) {
  const { type, field, end } = pieces[i];
  const { start } = type === "null" || type === "unchanged" ? pieces[i] : pieces[i - 2];
  return splice(data, { start, end }, encoded((writer) => writer.cell(field, value)));
}

/** Return the bytes that `write` gives to a writer. */
function encoded(write) {
  const writer = new Writer(null, "");
  write(writer);
  return writer.bytes();
}

/** Write a value, given as text. Any letter and number that fits is accepted: it may make the message invalid. */
function writeValue(writer, piece, text) {
  const { kind, path, notation, field } = piece;
  const size = piece.end - piece.start;
  switch (kind) {
    case "string":
      return writer.string(text, path);
    case "rest":
      return writer.append(readHex(text));
    case "tag":
    case "side":
    case "celltag":
    case "enum":
      if (!/^[\x00-\x7f]$/.test(text)) throw new EditError("expected one ASCII character");
      return writer.integer(text.charCodeAt(0), 1);
    case "bool":
      if (!/^(true|false|0|1)$/.test(text)) throw new EditError("expected true or false");
      return writer.integer(Number(text === "true" || text === "1"), 1);
  }
  const value = readNumber(piece, text.trim());
  const number = { kind: "integer", size, notation, signed: Boolean(field.signed) };
  return writer.value(number, size === 8 ? value : Number(value), path);
}

function readNumber(piece, text) {
  if (/^(-?\d+|0x[0-9a-f]+)$/i.test(text)) return BigInt(text);
  if (piece.type === "lsn") return parseLsn(text);
  if (piece.type !== "timestamp") throw new EditError("expected a number");
  const [, day, time] = /^(\S+?)[ T](\S+?)(?:Z|\+00(?::?00)?)?$/i.exec(text) ?? [];
  try {
    return parseTimestamp(`${day}T${time}+00:00`);
  } catch {
    throw new EditError("expected a time such as 2026-01-01 00:00:00+00:00, or microseconds since 2000-01-01");
  }
}
