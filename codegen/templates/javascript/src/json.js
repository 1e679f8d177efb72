// Messages as JSON.

import { ALL_VERSIONS, ENVELOPE } from "./layouts.js";
import { encodeText, toHex } from "./text.js";
import { formatLsn, formatTimestamp, UNCHANGED } from "./wire.js";

export function toJson(message) {
  const layout = ALL_VERSIONS.byName.get(message.type) ?? ENVELOPE.byName.get(message.type);
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
