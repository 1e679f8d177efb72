// Messages as JSON.

import { encodeMessage } from "./encode.js";
import { EncodeError } from "./errors.js";
import { ALL_VERSIONS, ENVELOPE, VERSIONS } from "./layouts.js";
import { decodeText, encodeText, parseHex, toHex } from "./text.js";
import { formatLsn, formatTimestamp, parseLsn, parseTimestamp, UNCHANGED } from "./wire.js";

function layoutNamed(name) {
  return ALL_VERSIONS.byName.get(name) ?? ENVELOPE.byName.get(name);
}

export function toJson(message) {
  const layout = layoutNamed(message?.type);
  if (layout === undefined) throw new TypeError("expected a message with a known type");
  return object(layout, message, [`"type":${JSON.stringify(message.type)}`]);
}

function object({ members }, values, first = []) {
  const given = members.filter(({ name }) => values[name] !== null && values[name] !== undefined);
  const pairs = given.map((field) => `"${field.name}":${property(field, values[field.name])}`);
  return `{${[...first, ...pairs].join(",")}}`;
}

function property(field, value) {
  if (typeof value === "bigint") return integer(field.type, value);
  if (field.kind === "tuple") return `[${value.map(scalar).join(",")}]`;
  if (field.kind !== "list") return scalar(value);
  const [element] = field.fields;
  if (element.name !== "") return `[${value.map((one) => object(field, one)).join(",")}]`;
  return `[${value.map((one) => (element.kind === "tuple" ? property(element, one) : String(one))).join(",")}]`;
}

function integer(type, value) {
  if (type === "lsn") return `"${formatLsn(value)}"`;
  const time = type === "timestamp" ? formatTimestamp(value) : null;
  return time === null ? String(value) : `"${time}"`;
}

/** Return a cell, bytes, text, number or boolean as JSON. */
function scalar(value) {
  if (value === UNCHANGED) return '{"unchanged":true}';
  if (value instanceof Uint8Array) return `{"binary":"${toHex(value)}"}`;
  if (typeof value === "string" && /\p{Surrogate}/u.test(value)) {
    return `{"text_hex":"${toHex(encodeText(value))}"}`;
  }
  return JSON.stringify(value);
}

/** Integers that JSON.parse would round, and strings, which stay as they are. */
const LARGE_INTEGERS = /"(?:[^"\\]|\\.)*"|(?<![\d.])-?\d{16,}(?![\d.eE])/g;

/** What such an integer is replaced by: this and its digits. No text of a database has this character. */
const MARK = "\0integer ";

export function fromJson(text) {
  const whole = text.replace(LARGE_INTEGERS, (one) =>
    one.startsWith('"') ? one : JSON.stringify(MARK + one),
  );
  const values = JSON.parse(whole);
  const layout = layoutNamed(values?.type);
  if (layout === undefined) throw new EncodeError("expected a message with a known type", "");
  let message;
  try {
    message = { type: layout.name, ...members(layout, values, "type") };
  } catch (error) {
    const [field, reason] = error instanceof Misfit ? [error.field, error.message] : [null, String(error)];
    throw new EncodeError(`${layout.name}.${field}: ${reason}`, layout.name, field);
  }
  checkEncodable(message);
  return message;
}

/** Throw the EncodeError of the first protocol that has the message, if none encodes it; the newest is the first. */
function checkEncodable(message) {
  const protocols = [...VERSIONS.values()].reverse().concat(ENVELOPE);
  let problem;
  for (const protocol of protocols.filter(({ byName }) => byName.has(message.type))) {
    try {
      encodeMessage(protocol, message);
      return;
    } catch (error) {
      if (!(error instanceof EncodeError)) throw error;
      problem ??= error;
    }
  }
  throw problem;
}

/** A value is none of its field. */
class Misfit extends Error {
  constructor(field, expected) {
    super(`expected ${expected}`);
    this.field = field;
  }
}

function members(layout, values, ...more) {
  if (typeof values !== "object" || values === null) throw new Misfit(layout.name, "an object");
  const names = layout.members.map(({ name }) => name);
  for (const name of Object.keys(values)) {
    if (!names.includes(name) && !more.includes(name)) throw new Misfit(name, "no such property");
  }
  const entries = layout.members.map((field) => [field.name, parsed(field, values[field.name] ?? null)]);
  return Object.fromEntries(entries);
}

function parsed(field, value) {
  if (value === null) return null;
  try {
    if (field.type === "lsn") return parseLsn(typeof value === "string" ? value : "");
    if (field.type === "timestamp" && typeof value === "string" && !isLarge(value))
      return parseTimestamp(value);
    if (field.kind === "integer" && field.size === 8) return parseInteger(value);
  } catch {
    throw new Misfit(field.name, EXPECTED[field.type] ?? "an integer");
  }
  if (field.kind !== "tuple" && field.kind !== "list") return parsedScalar(field, value);
  if (!Array.isArray(value)) throw new Misfit(field.name, "an array");
  if (field.kind === "tuple") return value.map((one) => (one === null ? null : parsedScalar(field, one)));
  const [element] = field.fields;
  if (element.name !== "") return value.map((one) => members(field, one));
  return value.map((one) => (element.kind === "tuple" ? parsed(element, one) : one));
}

const EXPECTED = { lsn: "an LSN such as 16/B374D848", timestamp: "a time or an integer" };

function isLarge(value) {
  return typeof value === "string" && value.startsWith(MARK);
}

function parseInteger(value) {
  if (isLarge(value)) return BigInt(value.slice(MARK.length));
  if (!Number.isSafeInteger(value)) throw new RangeError("not an integer");
  return BigInt(value);
}

function parsedScalar(field, value) {
  if (isLarge(value)) throw new Misfit(field.name, "no integer of this size");
  if (typeof value !== "object") return value;
  if (Object.keys(value).length !== 1) throw new Misfit(field.name, "one of binary, text_hex, unchanged");
  if (value.unchanged === true) return UNCHANGED;
  const hex = value.binary ?? value.text_hex;
  if (!/^(?:[0-9a-f]{2})*$/i.test(hex ?? "x")) throw new Misfit(field.name, "binary or text_hex, in hex");
  const bytes = parseHex(hex);
  return value.binary === undefined ? decodeText(bytes) : bytes;
}
