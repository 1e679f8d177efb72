// Reads one message field by field, for the meaning of each byte and for errors, as `logicalrep inspect` does.

import { DecodeError } from "./errors.js";
import { laterHint } from "./layouts.js";
import { character, decodeText, hexByte } from "./text.js";

/**
 * Return the pieces of a message up to its first error, and the error; null if there is none.
 *
 * A piece is the bytes from `start` to `end` that have one meaning, with the path, value and layout of their field.
 * Without an error, the pieces cover all bytes.
 */
export function walk(layout, data, inStream, streaming) {
  const walker = new Walker(layout, data, inStream, streaming);
  try {
    walker.message();
    return { pieces: walker.pieces, error: null };
  } catch (error) {
    if (!(error instanceof DecodeError)) throw error;
    return { pieces: walker.pieces, error };
  }
}

class Walker {
  constructor(layout, data, inStream, streaming) {
    this.layout = layout;
    this.data = data;
    this.inStream = inStream;
    this.streaming = streaming;
    this.pos = 1;
    this.pieces = [];
    /** Counts and lengths, by the name of the field that they belong to. */
    this.sizes = {};
  }

  message() {
    const { title, doc, tag, fields } = this.layout;
    this.piece(this.layout, "tag", 1, tag, {
      type: "",
      notation: `Byte1('${tag}')`,
      doc: `${title}. ${doc}`,
      kind: "tag",
    });
    for (const field of fields) if (this.applies(field)) this[field.kind](field, field.name);
    if (this.pos !== this.data.length) throw this.trailing();
  }

  applies({ when }) {
    return when === "" || (when === "in_stream" ? this.inStream : when === `streaming = ${this.streaming}`);
  }

  trailing() {
    let text = `the message ends here, ${this.data.length - this.pos} more bytes follow`;
    const absent = this.layout.fields.filter((field) => !this.applies(field));
    if (absent.length > 0) {
      text += ` (${absent.map(({ name }) => name).join(" and ")} come only with ${absent[0].when})`;
    }
    return this.error("", text);
  }

  /** Return an error `back` bytes before the position. */
  error(path, text, back = 0) {
    const offset = this.pos - back;
    const { name } = this.layout;
    return new DecodeError(
      `${name}${path && `.${path}`} at byte ${offset}: ${text}`,
      name,
      path || null,
      offset,
    );
  }

  /** Return an error about the value of the last byte or integer. */
  unexpected(path, expected, there, size) {
    return this.error(path, `expected ${expected}, found ${there}`, size);
  }

  /** Move `size` bytes forward; return the position before them. */
  take(size, path, what) {
    const left = this.data.length - this.pos;
    if (size > left) throw this.error(path, `expected ${size} bytes of ${what}, found ${left}`);
    this.pos += size;
    return this.pos - size;
  }

  /** Return an integer: a bigint if it has 8 bytes. @returns {any} */
  number(size, path, what, signed = false) {
    const start = this.take(size, path, what);
    const view = new DataView(this.data.buffer, this.data.byteOffset + start, size);
    if (size === 8) return signed ? view.getBigInt64(0) : view.getBigUint64(0);
    if (size === 4) return signed ? view.getInt32(0) : view.getUint32(0); // only integers of 32 bits are signed
    return size === 2 ? view.getUint16(0) : view.getUint8(0);
  }

  /** Add the last `size` bytes as a piece of a field; `more` has what differs from the field. */
  piece(field, path, size, value, more = {}) {
    const { type, notation, doc, source, line, kind } = field;
    const [start, end] = [this.pos - size, this.pos];
    this.pieces.push({ start, end, path, type, notation, value, doc, source, line, kind, field, ...more });
  }

  integer(field, path) {
    const value = this.number(field.size, path, field.notation, field.signed);
    if (field.of) this.sizes[field.of] = value;
    this.piece(field, path, field.size, value);
  }

  count(field, path) {
    this.integer(field, path);
  }

  length(field, path) {
    this.integer(field, path);
  }

  literal(field, path) {
    const value = this.number(field.size, path, field.notation);
    if (value !== field.literal) throw this.unexpected(path, field.literal, value, field.size);
    this.piece(field, path, field.size, value);
  }

  bool(field, path) {
    const value = this.number(field.size, path, field.notation);
    if (value > 1) throw this.unexpected(path, "0 or 1", value, field.size);
    this.piece(field, path, field.size, value === 1);
  }

  enum(field, path) {
    const byte = this.number(field.size, path, field.notation);
    const value = String.fromCharCode(byte);
    if (!(value in field.values)) {
      const text = `expected one of ${quoted(Object.keys(field.values)).join(", ")}, found ${character(byte)}`;
      throw this.error(path, text + laterHint(field, byte), field.size);
    }
    this.piece(field, path, field.size, value, { doc: `${field.values[value]}. ${field.doc}` });
  }

  flags(field, path) {
    const value = this.number(field.size, path, field.notation);
    if (value & ~field.mask) {
      const text = `expected bits of ${hexByte(field.mask)}, found ${hexByte(value)}`;
      throw this.error(path, text + laterHint(field, value), field.size);
    }
    const names = Object.keys(field.values).filter((bit) => value & Number(bit));
    const set = names.map((bit) => field.values[bit]).join(" and ") || "none";
    this.piece(field, path, field.size, value, { doc: `${set}. ${field.doc}` });
  }

  string(field, path) {
    const start = this.pos;
    const end = this.data.indexOf(0, start);
    if (end < 0) throw this.error(path, "no zero byte ends this string");
    this.pos = end + 1;
    this.piece(field, path, this.pos - start, decodeText(this.data, start, end));
  }

  bytes(field, path, size = this.sizes[field.name]) {
    const start = this.take(size, path, "content");
    this.piece(field, path, size, this.data.subarray(start, this.pos));
  }

  rest(field, path) {
    this.bytes(field, path, this.data.length - this.pos);
  }

  list(field, path) {
    for (let i = 0; i < this.sizes[field.name]; i++) {
      for (const inner of field.fields)
        this[inner.kind](inner, `${path}[${i}]${inner.name && `.${inner.name}`}`);
    }
  }

  choice(field, path) {
    const byte = this.data[this.pos];
    const side = field.fields.find((one) => one.byte === byte);
    if (side !== undefined) {
      this.tuple(side, side.name);
    } else if (!field.optional) {
      const known = quoted(field.fields.map(({ tag }) => tag)).join(" or ");
      const there = byte === undefined ? "the end of the message" : character(byte);
      throw this.error(path, `expected ${known}, found ${there}`);
    }
  }

  tuple(field, path) {
    const { tag, size } = field;
    if (tag) {
      const notation = `Byte1('${tag}')`;
      const byte = this.number(1, `${path}.tag`, notation);
      if (byte !== field.byte) throw this.unexpected(`${path}.tag`, `'${tag}'`, character(byte), 1);
      this.piece(field, `${path}.tag`, 1, tag, { type: "", notation, kind: "side" });
    }
    const count = this.number(size, `${path}.count`, "the number of columns");
    const doc = "Number of columns.";
    const notation = `Int${size * 8}`;
    this.piece(field, `${path}.count`, size, count, {
      type: "",
      notation,
      doc,
      line: field.count_line,
      kind: "count",
    });
    for (let i = 0; i < count; i++) this.cell(field, `${path}[${i}]`);
  }

  cell(field, path) {
    const byte = this.number(1, path, "a cell's tag");
    const cell = field.cellByTag[byte];
    if (cell === undefined) {
      const known = quoted(field.cells.map(({ tag }) => tag)).join(", ");
      throw this.unexpected(path, `one of ${known}`, character(byte), 1);
    }
    const { form, tag, doc, line, length_size: size } = cell;
    const head = { type: "", notation: `Byte1('${tag}')`, doc, line, kind: "celltag" };
    if (size === 0) {
      this.piece(field, path, 1, null, { ...head, type: form, kind: "cell" });
      return;
    }
    this.piece(field, `${path}.tag`, 1, tag, head);
    const length = this.number(size, `${path}.length`, "the length of the value");
    const about = { notation: `Int${size * 8}`, doc: "Length of the value.", kind: "length" };
    this.piece(field, `${path}.length`, size, length, { ...head, ...about });
    const start = this.take(length, path, form);
    const raw = this.data.subarray(start, this.pos);
    const value = form === "text" ? decodeText(raw) : raw;
    this.piece(field, path, length, value, { ...head, type: form, notation: "Byten", kind: "cell" });
  }
}

function quoted(tags) {
  return tags.map((tag) => `'${tag}'`);
}
