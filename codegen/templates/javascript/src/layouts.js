// The layouts of all messages in each protocol version: the tables of the spec, completed for fast access.

import { READERS } from "./readers.js";
import { SPEC } from "./tables.js";
import { hexByte } from "./text.js";

/** Roles of the messages of which StreamDecoder remembers something. */
const FOLLOWED = ["open_block", "close_block", "relation", "type"];

/** Kinds of fields that are not properties of message objects. */
const WIRE_ONLY = ["count", "length", "literal"];

/** The properties of all fields: so all fields have one shape, and are read fast. */
const FIELD = {
  name: "",
  kind: "",
  type: "",
  notation: "",
  doc: "",
  source: "",
  line: 0,
  count_line: 0,
  size: 0,
  signed: false,
  literal: 0,
  when: "",
  tag: "",
  means: "",
  of: "",
  optional: false,
  values: {},
  later: {},
};

function completeField(field) {
  const fields = (field.fields ?? []).map(completeField);
  const cells = (field.cells ?? []).map((cell) => ({ length_size: 0, ...cell }));
  return {
    ...FIELD,
    ...field,
    /** Byte before a tuple; -1 if there is none. */
    byte: field.tag ? field.tag.charCodeAt(0) : -1,
    /** All valid bits of flags. */
    mask: Object.keys(field.values ?? {}).reduce((mask, bit) => mask | Number(bit), 0),
    /** Alternatives of a choice, or fields of a list's elements: one without a name for numbers and tuples. */
    fields,
    members: membersOf(fields),
    cells,
    cellByTag: byTag(cells),
  };
}

function completeMessage(version, name) {
  const table = SPEC.layouts[name];
  const fields = table.fields.map(completeField);
  const members = membersOf(fields);
  return {
    role: "",
    option: "",
    any_version: false,
    ...table,
    version,
    fields,
    members,
    /** Names of fields by meaning. */
    names: Object.fromEntries(
      members.filter(({ means }) => means).map(({ means, name: one }) => [means, one]),
    ),
    isFollowed: FOLLOWED.includes(table.role),
    read: READERS[name],
  };
}

function completeProtocol(version, names) {
  const messages = names.map((name) => completeMessage(version, name));
  return {
    version,
    label: version === null ? "the replication protocol" : `protocol version ${version}`,
    messages,
    byTag: byTag(messages),
    byName: new Map(messages.map((one) => [one.name, one])),
    /** Messages that only later versions have. @type {any[]} */
    later: [],
    /** Whether a message has fields that are present only under a condition. */
    isConditional: messages.some(({ fields }) => fields.some(({ when }) => when)),
  };
}

/** Return an array of 256 elements with the layouts at the index of their tag. */
function byTag(layouts) {
  const found = new Array(256).fill(undefined);
  for (const one of layouts) found[one.tag.charCodeAt(0)] = one;
  return found;
}

/** Return the fields that are properties of message objects; a choice is replaced by its alternatives. */
function membersOf(fields) {
  return fields
    .flatMap((one) => (one.kind === "choice" ? one.fields : [one]))
    .filter(({ kind }) => !WIRE_ONLY.includes(kind));
}

/** The layouts of each protocol version. */
export const VERSIONS = new Map(
  Object.entries(SPEC.versions).map(([version, { messages }]) => {
    return [Number(version), completeProtocol(Number(version), messages)];
  }),
);
for (const protocol of VERSIONS.values()) {
  for (const one of [...VERSIONS.values()].flatMap(({ messages }) => messages)) {
    const isKnown = protocol.byName.has(one.name) || protocol.later.some(({ name }) => name === one.name);
    if (one.since > protocol.version && !isKnown) protocol.later.push(one);
  }
}

/** All messages, with the fields of all versions. */
export const ALL_VERSIONS = completeProtocol(null, SPEC.all);

/** The layouts of the messages in CopyData. */
export const ENVELOPE = completeProtocol(null, SPEC.envelope.messages);

/** Return an error text's end: the version that adds an enum value or flag bit; "" if none does. */
export function laterHint({ kind, later }, value) {
  for (const [key, version] of Object.entries(later)) {
    if (kind === "enum" && value === key.charCodeAt(0)) return `: it came with version ${version}`;
    if (kind === "flags" && value & Number(key))
      return `: ${hexByte(Number(key))} came with version ${version}`;
  }
  return "";
}
