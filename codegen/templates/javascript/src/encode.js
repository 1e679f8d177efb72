// Encodes messages by their layouts.

import { EncodeError } from "./errors.js";
import { ALL_VERSIONS, ENVELOPE, laterHint } from "./layouts.js";
import { encodeText, hexByte } from "./text.js";
import { UNCHANGED } from "./wire.js";

/** Return the bytes of a message; see `Codec.encode`. */
export function encodeMessage(protocol, message, inStream = null) {
  const name = isObject(message) ? message.type : "";
  const layout = protocol.byName.get(name);
  if (layout === undefined) throw unknownMessage(protocol, message, name);
  const writer = new Writer(protocol, name);
  writer.integer(layout.tag.charCodeAt(0), 1);
  writer.fields(layout, message, "");
  if (inStream !== null) writer.checkInStream(layout.fields, message, inStream);
  return writer.bytes();
}

function unknownMessage(protocol, message, name) {
  if (!ALL_VERSIONS.byName.has(name) && !ENVELOPE.byName.has(name)) {
    return new TypeError(`expected a message with a known type, found ${describe(message)}`);
  }
  const later = protocol.later.find((one) => one.name === name);
  const why =
    later !== undefined
      ? `it came with version ${later.since}`
      : protocol.version === null
        ? "it travels inside XLogData, and the codecs of the protocol versions write it"
        : "logicalrep.envelope writes the messages of the replication protocol";
  return new EncodeError(`${protocol.label} has no message ${name}: ${why}`, name);
}

function isObject(value) {
  return typeof value === "object" && value !== null;
}

function isGiven(value) {
  return value !== null && value !== undefined;
}

/** Return a value in the texts of errors: its type, and its beginning. */
function describe(value) {
  if (value === null || value === undefined) return String(value);
  if (typeof value === "object") return `the object ${value.constructor?.name ?? ""}`.trim();
  const text = typeof value === "string" ? `'${value}'` : String(value);
  return `the ${typeof value} ${text.length > 30 ? `${text.slice(0, 30)}…` : text}`;
}

/** Collects the bytes of one message, and checks its values. */
export class Writer {
  constructor(protocol, name) {
    this.protocol = protocol;
    this.name = name;
    this.data = new Uint8Array(256);
    this.pos = 0;
  }

  bytes() {
    return this.data.slice(0, this.pos);
  }

  /** Write an unsigned integer without a check of its range. */
  integer(value, size) {
    this.reserve(size);
    for (let shift = 8 * (size - 1); shift >= 0; shift -= 8) this.data[this.pos++] = value >>> shift;
  }

  /** Write the fields of an object; `path` is the path of the object with a dot at its end, or "". */
  fields({ fields, members }, object, path) {
    for (const name in object) {
      if (isGiven(object[name]) && !members.some((one) => one.name === name) && (path || name !== "type")) {
        throw this.error(path + name, `${this.protocol.label} has no such field, so it must be null`);
      }
    }
    for (const field of fields) {
      if (field.when !== "" && !this.isSent(field, fields, object)) continue;
      switch (field.kind) {
        case "choice":
          this.choice(field, object);
          break;
        case "literal":
          this.integer(field.literal, field.size);
          break;
        case "count":
        case "length":
          this.count(field, object[field.of], path + field.of);
          break;
        default:
          this.value(field, object[field.name], path + field.name);
      }
    }
  }

  /** Throw if a message does not belong into a stream block, or outside of one, as `inStream` says. */
  checkInStream(fields, message, inStream) {
    for (const { when, of, kind, name } of fields) {
      if (when !== "in_stream" || of || kind === "literal" || isGiven(message[name]) === inStream) continue;
      const expected = inStream ? "is missing: all" : "must be null: only";
      throw this.error(name, `${expected} messages in stream blocks have it`);
    }
  }

  /** Return whether an object has a field that is sent under a condition. */
  isSent(field, fields, object) {
    const name = field.of || field.name;
    if (isGiven(object[name])) return true;
    const together = fields.find((one) => one.when === field.when && isGiven(object[one.name]));
    if (together === undefined) return false;
    const why = `${together.name} is given, and they are sent together (${field.when})`;
    throw this.error(name, `is missing: ${why}`);
  }

  choice(field, object) {
    const [side, other] = field.fields.filter(({ name }) => isGiven(object[name]));
    if (other !== undefined) throw this.error(other.name, `cannot be sent together with ${side.name}`);
    if (side !== undefined) this.tuple(side, object[side.name], side.name);
    else if (!field.optional) {
      const names = field.fields.map(({ name }) => name).join(" and ");
      throw this.error(null, `one of ${names} is needed`);
    }
  }

  count(field, value, path) {
    const size = Array.isArray(value) || value instanceof Uint8Array ? value.length : 0;
    if (size >= 2 ** (8 * field.size)) {
      throw this.error(path, `${size} do not fit into ${field.notation}, the ${field.kind} before it`);
    }
    this.integer(size, field.size);
  }

  value(field, value, path) {
    switch (field.kind) {
      case "integer":
      case "flags":
        return field.size === 8 ? this.bigint(field, value, path) : this.number(field, value, path);
      case "bool":
        if (typeof value !== "boolean") throw this.unexpected(path, "true or false", value);
        return this.integer(value ? 1 : 0, 1);
      case "enum":
        return this.enum(field, value, path);
      case "string":
        return this.string(value, path);
      case "tuple":
        return this.tuple(field, value, path);
      case "list":
        return this.list(field, value, path);
      default: // "bytes", "rest"
        if (!(value instanceof Uint8Array)) throw this.unexpected(path, "a Uint8Array", value);
        return this.append(value);
    }
  }

  number(field, value, path) {
    if (typeof value !== "number" || !Number.isInteger(value)) {
      throw this.unexpected(path, "an integer", value);
    }
    const low = field.signed ? -(2 ** 31) : 0;
    const high = field.signed ? 2 ** 31 - 1 : 2 ** (8 * field.size) - 1;
    if (value < low || value > high) throw this.tooLarge(field, value, low, high, path);
    if (field.kind === "flags" && value & ~field.mask) {
      const text = `expected bits of ${hexByte(field.mask)}, found ${hexByte(value)}${laterHint(field, value)}`;
      throw this.error(path, text);
    }
    this.integer(value, field.size);
  }

  bigint(field, value, path) {
    if (typeof value !== "bigint") throw this.unexpected(path, "a bigint", value);
    const bits = BigInt.asUintN(64, value);
    if (value !== (field.signed ? BigInt.asIntN(64, value) : bits)) {
      const low = field.signed ? -(2n ** 63n) : 0n;
      throw this.tooLarge(field, value, low, low + 2n ** 64n - 1n, path);
    }
    this.integer(Number(bits >> 32n), 4);
    this.integer(Number(bits & 0xffffffffn), 4);
  }

  tooLarge(field, value, low, high, path) {
    return this.error(path, `${value} does not fit into ${field.notation}, ${low} to ${high}`);
  }

  enum(field, value, path) {
    if (typeof value !== "string" || !Object.hasOwn(field.values, value)) {
      const known = Object.keys(field.values)
        .map((one) => `'${one}'`)
        .join(", ");
      const later =
        typeof value === "string" && value.length === 1 ? laterHint(field, value.charCodeAt(0)) : "";
      const given = typeof value === "string" ? `'${value}'` : describe(value);
      throw this.error(path, `expected one of ${known}, found ${given}${later}`);
    }
    this.integer(value.charCodeAt(0), 1);
  }

  string(value, path) {
    if (typeof value !== "string") throw this.unexpected(path, "a string", value);
    if (value.includes("\0")) {
      throw this.error(path, "a zero character cannot be sent in a zero-terminated string");
    }
    try {
      this.text(value);
    } catch (error) {
      throw this.located(error, path);
    }
    this.integer(0, 1);
  }

  tuple(field, value, path) {
    if (!Array.isArray(value)) throw this.unexpected(path, "an array of cells", value);
    if (value.length >= 2 ** (8 * field.size)) {
      const count = `Int${8 * field.size}, the count before them`;
      throw this.error(path, `${value.length} columns do not fit into ${count}`);
    }
    if (field.tag) this.integer(field.byte, 1);
    this.integer(value.length, field.size);
    let i = 0;
    try {
      for (; i < value.length; i++) this.cell(field, value[i]);
    } catch (error) {
      throw this.located(error, `${path}[${i}]`);
    }
  }

  cell(field, value) {
    const form = formOf(value);
    const { tag, length_size: size } = field.cells.find((known) => known.form === form);
    this.integer(tag.charCodeAt(0), 1);
    const start = this.pos;
    this.integer(0, size);
    if (typeof value === "string") this.text(value);
    else if (value instanceof Uint8Array) this.append(value);
    const end = this.pos;
    this.pos = start;
    this.integer(end - start - size, size);
    if (size > 0) this.pos = end;
  }

  list(field, value, path) {
    if (!Array.isArray(value)) throw this.unexpected(path, "an array", value);
    const [element] = field.fields;
    for (let i = 0; i < value.length; i++) {
      const item = value[i];
      if (element.name === "") this.value(element, item, `${path}[${i}]`);
      else if (isObject(item)) this.fields(field, item, `${path}[${i}].`);
      else throw this.unexpected(`${path}[${i}]`, `a ${field.type}`, item);
    }
  }

  append(bytes) {
    this.reserve(bytes.length);
    this.data.set(bytes, this.pos);
    this.pos += bytes.length;
  }

  text(text) {
    this.reserve(text.length);
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i);
      if (code >= 0x80) return this.append(encodeText(text));
      this.data[this.pos + i] = code;
    }
    this.pos += text.length;
  }

  /** Make room for `size` more bytes. */
  reserve(size) {
    if (this.pos + size <= this.data.length) return;
    const data = new Uint8Array(2 * (this.pos + size));
    data.set(this.data);
    this.data = data;
  }

  unexpected(path, expected, value) {
    return this.error(path, `expected ${expected}, found ${describe(value)}`);
  }

  located(error, path) {
    return error instanceof RangeError ? this.error(path, error.message) : error;
  }

  error(path, text) {
    const where = path === null ? this.name : `${this.name}.${path}`;
    return new EncodeError(`${where}: ${text}`, this.name, path);
  }
}

/** Return the form of a cell; throw RangeError if the value is not a cell. */
function formOf(value) {
  if (typeof value === "string") return "text";
  if (value === null) return "null";
  if (value === UNCHANGED) return "unchanged";
  if (value instanceof Uint8Array) return "binary";
  throw new RangeError(`expected null, UNCHANGED, a string or a Uint8Array, found ${describe(value)}`);
}
