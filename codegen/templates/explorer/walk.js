// Reads one message field by field. The pieces and the errors are those of `pgoutput inspect`.

/** The bytes are not a message of the protocol version, inside or outside a stream block. */
class DecodeError extends Error {
  constructor(text, message = null, field = null, offset = 0) {
    super(text);
    Object.assign(this, { messageName: message, field, offset });
  }
}

function character(byte) {
  return byte > 0x20 && byte < 0x7f ? `'${String.fromCharCode(byte)}'` : hexByte(byte);
}

/** Return the layout of a message by its first byte. */
function layoutOf(protocol, data) {
  const [tag] = data;
  if (tag === undefined) throw new DecodeError("no bytes: a message has at least its tag");
  const layout = protocol.byTag.get(tag);
  if (layout) return layout;
  const later = protocol.later.find((one) => one.tag.charCodeAt(0) === tag);
  if (!later) {
    const hint = ENVELOPE.byTag.get(tag)?.name === "XLogData";
    const text = `${protocol.label} has no message with the tag ${character(tag)}`;
    throw new DecodeError(
      hint ? `${text}; it is the tag of XLogData: decode that with pgoutput.envelope, then its data` : text,
    );
  }
  let text = `${protocol.label} has no ${later.title} (tag ${character(tag)}): it came with version ${later.since}`;
  if (later.any_version) {
    text +=
      `. Servers send it all the same where the slot has ${later.option} set, whatever the client asked for: ` +
      `read such a stream with StreamDecoder(${protocol.version}, ${later.option}=True)`;
  }
  throw new DecodeError(text, later.name);
}

/**
 * Read a message; return its layout, the end of its last field, and the values of fields by meaning.
 *
 * `emit` is called with each piece: the bytes from `start` to `end`, with the path, value and layout of their
 * field. Without `emit`, paths and the values of rows are left out, which is several times as fast.
 */
function readMessage(protocol, data, context, emit = null) {
  const layout = layoutOf(protocol, data);
  const reader = new Reader(layout, data, context, emit);
  if (emit) {
    const doc = `${layout.title}. ${layout.doc}`;
    emit({ start: 0, end: 1, path: "tag", type: "", notation: `Byte1('${layout.tag}')`, value: layout.tag, doc,
      source: layout.source, line: layout.line, kind: "tag" });
  }
  for (const field of layout.fields) if (reader.applies(field)) reader[field.kind](field, field.name);
  return { layout, end: reader.pos, means: reader.means, reader };
}

/** Return the layout and pieces of a message, which cover all of its bytes. Raises DecodeError. */
function walk(protocol, data, context) {
  const pieces = [];
  const { layout } = walkInto(protocol, data, context, (piece) => pieces.push(piece));
  return { layout, pieces };
}

/** Read a message that ends where its bytes end. Raises DecodeError. */
function walkInto(protocol, data, context, emit) {
  const read = readMessage(protocol, data, context, emit);
  if (read.end !== data.length) throw read.reader.trailing();
  return read;
}

/** Return the pieces up to the first error of a message, and the error; null if there is none. */
function explain(protocol, data, context) {
  const pieces = [];
  try {
    const { layout } = walkInto(protocol, data, context, (piece) => pieces.push(piece));
    return { layout, pieces, error: null };
  } catch (error) {
    if (!(error instanceof DecodeError)) throw error;
    return { layout: protocol.byTag.get(data[0]) ?? null, pieces, error };
  }
}

class Reader {
  constructor(layout, data, context, emit) {
    Object.assign(this, { layout, data, context, emit });
    this.pos = 1;
    this.sizes = {};
    this.means = {};
  }

  applies({ when }) {
    if (!when) return true;
    return when === "in_stream" ? this.context.inStream : when === `streaming = ${this.context.streaming}`;
  }

  error(path, text, back = 0) {
    const offset = this.pos - back;
    const { name } = this.layout;
    const where = path ? `${name}.${path}` : name;
    return new DecodeError(`${where} at byte ${offset}: ${text}`, name, path || null, offset);
  }

  trailing() {
    let text = `the message ends here, ${this.data.length - this.pos} more bytes follow`;
    const absent = this.layout.fields.filter((field) => !this.applies(field));
    if (absent.length) {
      text += ` (${absent.map(({ name }) => name).join(" and ")} come only with ${absent[0].when})`;
    }
    return this.error("", text);
  }

  take(size, path, what) {
    const left = this.data.length - this.pos;
    if (size > left) throw this.error(path, `${size} bytes of ${what} are expected, ${left} are left`);
    this.pos += size;
    return this.pos - size;
  }

  number(size, path, what, signed = false) {
    let at = this.take(size, path, what);
    if (size === 8) {
      const view = new DataView(this.data.buffer, this.data.byteOffset + at, 8);
      return signed ? view.getBigInt64(0) : view.getBigUint64(0);
    }
    let value = 0;
    for (; at < this.pos; at++) value = value * 256 + this.data[at];
    return signed ? value | 0 : value; // only integers of 32 bits are signed
  }

  piece(field, path, size, value, name = "") {
    if (field.means) this.means[field.means] = value;
    if (!this.emit) return;
    this.emit({
      start: this.pos - size, end: this.pos, path, type: field.type, notation: field.notation, value,
      doc: name ? `${name}. ${field.doc}` : field.doc, source: field.source, line: field.line, kind: field.kind, field,
    });
  }

  part(field, path, size, notation, value, doc, line, type = "", kind = "part") {
    if (!this.emit) return;
    this.emit({ start: this.pos - size, end: this.pos, path, type, notation, value, doc, source: field.source, line, kind, field });
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
    if (value !== field.literal) {
      throw this.error(path, `${field.literal} is expected, ${value} is there`, field.size);
    }
    this.piece(field, path, field.size, value);
  }

  bool(field, path) {
    const value = this.number(field.size, path, field.notation);
    if (value > 1) throw this.error(path, `0 or 1 is expected, ${value} is there`, field.size);
    this.piece(field, path, field.size, value === 1);
  }

  enum(field, path) {
    const byte = this.number(field.size, path, field.notation);
    const value = String.fromCharCode(byte);
    if (!(value in field.values)) {
      const known = Object.keys(field.values).map((one) => `'${one}'`).join(", ");
      const later = field.later[value] ? `: it came with version ${field.later[value]}` : "";
      throw this.error(path, `one of ${known} is expected, ${character(byte)} is there${later}`, field.size);
    }
    this.piece(field, path, field.size, value, field.values[value]);
  }

  flags(field, path) {
    const value = this.number(field.size, path, field.notation);
    if (value & ~field.mask) {
      const bit = Object.keys(field.later).find((one) => value & Number(one));
      const later = bit ? `: ${hexByte(Number(bit))} came with version ${field.later[bit]}` : "";
      const text = `bits of ${hexByte(field.mask)} are expected, ${hexByte(value)} is there${later}`;
      throw this.error(path, text, field.size);
    }
    const names = Object.keys(field.values).filter((bit) => value & Number(bit)).map((bit) => field.values[bit]);
    this.piece(field, path, field.size, value, names.join(" and ") || "none");
  }

  string(field, path) {
    const end = this.data.indexOf(0, this.pos);
    if (end < 0) throw this.error(path, "no zero byte ends this string");
    const start = this.take(end + 1 - this.pos, path, "text");
    const wanted = this.emit || field.means;
    this.piece(field, path, this.pos - start, wanted ? decodeText(this.data.subarray(start, end)) : "");
  }

  bytes(field, path, size = this.sizes[field.name]) {
    const start = this.take(size, path, "content");
    this.piece(field, path, size, this.emit && this.data.subarray(start, this.pos));
  }

  rest(field, path) {
    this.bytes(field, path, this.data.length - this.pos);
  }

  list(field, path) {
    const count = this.sizes[field.name];
    const numbers = field.means ? [] : null;
    for (let i = 0; i < count; i++) {
      for (const inner of field.fields) {
        this[inner.kind](inner, this.emit || inner.name ? `${path}[${i}]${inner.name && "."}${inner.name}` : path);
        if (numbers) numbers.push(this.means[inner.means]);
      }
    }
    if (numbers) this.means[field.means] = numbers;
  }

  tuple(field, path) {
    if (field.tag) {
      const notation = `Byte1('${field.tag}')`;
      const byte = this.number(1, `${path}.tag`, notation);
      if (byte !== field.tag.charCodeAt(0)) {
        throw this.error(`${path}.tag`, `'${field.tag}' is expected, ${character(byte)} is there`, 1);
      }
      this.part(field, `${path}.tag`, 1, notation, field.tag, field.doc, field.line, "", "side");
    }
    const count = this.number(field.size, `${path}.count`, "the number of columns");
    this.part(field, `${path}.count`, field.size, `Int${field.size * 8}`, count, "Number of columns.", field.countLine, "", "count");
    for (let i = 0; i < count; i++) this.cell(field, this.emit ? `${path}[${i}]` : path);
  }

  cell(field, path) {
    const byte = this.number(1, path, "a cell's tag");
    const cell = field.cellByTag.get(byte);
    if (!cell) {
      const known = field.cells.map(({ tag }) => `'${tag}'`).join(", ");
      throw this.error(path, `one of ${known} is expected, ${character(byte)} is there`, 1);
    }
    const { form, tag, doc, line, length_size: size = 0 } = cell;
    if (!size) {
      this.part(field, path, 1, `Byte1('${tag}')`, null, doc, line, form, "cell");
      return;
    }
    this.part(field, this.emit && `${path}.tag`, 1, `Byte1('${tag}')`, tag, doc, line, "", "celltag");
    const length = this.number(size, this.emit && `${path}.length`, "the length of the value");
    this.part(field, this.emit && `${path}.length`, size, `Int${size * 8}`, length, "Length of the value.", line, "", "length");
    const start = this.take(length, path, form);
    if (!this.emit) return;
    const raw = this.data.subarray(start, this.pos);
    this.part(field, path, length, "Byten", form === "text" ? decodeText(raw) : raw, doc, line, form, "cell");
  }

  choice(field, path) {
    const tag = this.pos < this.data.length ? String.fromCharCode(this.data[this.pos]) : "";
    const side = field.fields.find((one) => one.tag === tag);
    if (side) {
      this.tuple(side, side.name);
    } else if (!field.optional) {
      const known = field.fields.map((one) => `'${one.tag}'`).join(" or ");
      const there = tag ? `${character(this.data[this.pos])} is there` : "the message ends";
      throw this.error(path, `${known} is expected, ${there}`);
    }
  }
}
