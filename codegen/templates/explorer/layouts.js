// The tables of the spec: layouts of messages by protocol version and tag.

/** Give all fields the same properties, so that they are read fast. */
function completeField(field) {
  return {
    name: "", size: 0, signed: false, when: "", tag: "", of: "", optional: false, means: "", source: "", doc: "", ...field,
    mask: Object.keys(field.values ?? {}).reduce((mask, bit) => mask | Number(bit), 0),
    values: field.values ?? {},
    later: field.later ?? {},
    fields: (field.fields ?? []).map(completeField),
    cells: field.cells ?? [],
    cellByTag: new Map((field.cells ?? []).map((cell) => [cell.tag.charCodeAt(0), cell])),
  };
}

function completeMessage(version, message) {
  const fields = (message.fields ?? []).map(completeField);
  const members = fields.flatMap((field) => (field.kind === "choice" ? field.fields : [field]));
  /** Names of fields by meaning. */
  const names = Object.fromEntries(members.filter(({ means }) => means).map(({ means, name }) => [means, name]));
  return { ...message, version, fields, names };
}

function completeProtocol(version, { messages }) {
  const layouts = messages.map((one) => completeMessage(version, one));
  return {
    version,
    label: version === null ? "the replication protocol" : `protocol version ${version}`,
    messages: layouts,
    byTag: new Map(layouts.map((one) => [one.tag.charCodeAt(0), one])),
    byName: new Map(layouts.map((one) => [one.name, one])),
    later: [],
  };
}

/** The layouts of each protocol version. */
const VERSIONS = new Map(
  Object.entries(SPEC.versions).map(([version, view]) => [Number(version), completeProtocol(Number(version), view)]),
);
for (const protocol of VERSIONS.values()) {
  for (const other of VERSIONS.values()) {
    for (const one of other.messages) {
      const known = protocol.byName.has(one.name) || protocol.later.some(({ name }) => name === one.name);
      if (one.since > protocol.version && !known) protocol.later.push(one);
    }
  }
}

/** The layouts of the messages in CopyData. */
const ENVELOPE = completeProtocol(null, SPEC.envelope);

/** The last protocol version. */
const LATEST = Math.max(...VERSIONS.keys());

/** The first protocol version that has a value of the option `streaming`. */
const STREAMING_SINCE = SPEC.streaming;

/** Return an LSN as PostgreSQL writes it. */
function formatLsn(lsn) {
  return `${(lsn >> 32n).toString(16)}/${(lsn & 0xffffffffn).toString(16)}`.toUpperCase();
}

/** Return the moment of a timestamp with its microseconds, or its number beyond the range of years with four digits. */
function formatTimestamp(timestamp) {
  const unix = timestamp + 946_684_800_000_000n;
  if (unix < -62_135_596_800_000_000n || unix > 253_402_300_799_999_999n) return String(timestamp);
  const fraction = ((unix % 1_000_000n) + 1_000_000n) % 1_000_000n;
  const seconds = new Date(Number((unix - fraction) / 1000n)).toISOString().slice(0, 19).replace("T", " ");
  return `${seconds}${fraction ? `.${String(fraction).padStart(6, "0")}` : ""}+00:00`;
}

/** Return the value of a piece as text. */
function formatValue(piece) {
  const { value } = piece;
  if (piece.type === "lsn") return formatLsn(value);
  if (piece.type === "timestamp") return formatTimestamp(value);
  if (piece.type === "null") return "NULL";
  if (piece.type === "unchanged") return "unchanged";
  if (value instanceof Uint8Array) return `${value.length} byte${value.length === 1 ? "" : "s"}`;
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}
