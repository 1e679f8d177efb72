// Reads the fields of one message fast. Where it throws INVALID, `walk` finds the error.

import { decodeBytes, decodeText, isAscii } from "./text.js";
import { UNCHANGED } from "./wire.js";

/** Thrown if the bytes are not a message of the layout. */
export const INVALID = Symbol("INVALID");

/** Size of a message up to which its texts are cut out of one string, in bytes. */
const SMALL = 8192;

/** The bytes of the last integer of 64 bits; a view of each such integer in its message would be slower. */
const eightBytes = new DataView(new ArrayBuffer(8));

/** Reads one message from its first byte to its last. */
export class Reader {
  constructor(data, inStream, streaming) {
    this.data = data;
    this.inStream = inStream;
    this.streaming = streaming;
    this.pos = 1;
    /** The message as a string, made when the first text is read; "" before. */
    this.ascii = "";
  }

  /** Move `size` bytes forward; return the position before them. */
  take(size) {
    const start = this.pos;
    if (size > this.data.length - start) throw INVALID;
    this.pos = start + size;
    return start;
  }

  number(field) {
    const value = unsigned(this.data, this.take(field.size), field.size);
    return field.signed ? value | 0 : value; // only integers of 32 bits are signed
  }

  bigint(field) {
    const start = this.take(8);
    eightBytes.setUint32(0, unsigned(this.data, start, 4));
    eightBytes.setUint32(4, unsigned(this.data, start + 4, 4));
    return field.signed ? eightBytes.getBigInt64(0) : eightBytes.getBigUint64(0);
  }

  literal(field) {
    if (this.number(field) !== field.literal) throw INVALID;
  }

  boolean(field) {
    const value = this.number(field);
    if (value > 1) throw INVALID;
    return value === 1;
  }

  enum(field) {
    const value = String.fromCharCode(this.number(field));
    if (!(value in field.values)) throw INVALID;
    return value;
  }

  flags(field) {
    const value = this.number(field);
    if (value & ~field.mask) throw INVALID;
    return value;
  }

  string() {
    const start = this.pos;
    const end = this.data.indexOf(0, start);
    if (end < 0) throw INVALID;
    this.pos = end + 1;
    return this.text(start, end);
  }

  bytes(size) {
    const start = this.take(size);
    return this.data.subarray(start, this.pos);
  }

  rest() {
    return this.bytes(this.data.length - this.pos);
  }

  list(field, count, read) {
    const values = [];
    for (let i = 0; i < count; i++) values.push(read(this, field.fields));
    return values;
  }

  numbers(field, count) {
    return this.list(field, count, (_, [element]) => this.number(element));
  }

  bigints(field, count) {
    return this.list(field, count, (_, [element]) => this.bigint(element));
  }

  tuples(field, count) {
    return this.list(field, count, (_, [element]) => this.tuple(element));
  }

  /** Return the alternative `i` of a choice; null if another tag follows. */
  side(field, i) {
    const side = field.fields[i];
    return this.data[this.pos] === side.byte ? this.tuple(side) : null;
  }

  tuple(field) {
    const { data } = this;
    if (field.byte >= 0 && data[this.take(1)] !== field.byte) throw INVALID;
    const count = unsigned(data, this.take(field.size), field.size);
    const forms = field.cellByTag;
    let { pos } = this;
    // A cell has at least one byte, so that a wrong count reserves no more memory than the message has.
    const cells = new Array(Math.min(count, data.length - pos));
    for (let i = 0; i < count; i++) {
      const cell = pos < data.length ? forms[data[pos]] : undefined;
      if (cell === undefined) throw INVALID;
      pos += 1;
      if (cell.length_size === 0) {
        cells[i] = cell.form === "null" ? null : UNCHANGED;
        continue;
      }
      const start = pos + cell.length_size;
      if (start > data.length) throw INVALID;
      const end = start + unsigned(data, pos, cell.length_size);
      if (end > data.length) throw INVALID;
      cells[i] = cell.form === "text" ? this.text(start, end) : view(data, start, end);
      pos = end;
    }
    this.pos = pos;
    return cells;
  }

  text(start, end) {
    const { data } = this;
    if (!isAscii(data, start, end) || data.length > SMALL) return decodeText(data, start, end);
    if (this.ascii === "") this.ascii = decodeBytes(data);
    return this.ascii.substring(start, end);
  }
}

/** Return a view of the bytes from `start` to `end`. Buffer.subarray, which returns a Buffer, is slower. */
function view(data, start, end) {
  return new Uint8Array(data.buffer, data.byteOffset + start, end - start);
}

/** Return the unsigned integer of `size` bytes at `pos`. */
function unsigned(data, pos, size) {
  if (size === 4)
    return ((data[pos] << 24) | (data[pos + 1] << 16) | (data[pos + 2] << 8) | data[pos + 3]) >>> 0;
  return size === 2 ? (data[pos] << 8) | data[pos + 1] : data[pos];
}
