// The codec as the page uses it: settings of a stream, records with envelopes, and values as text.

/** The channels of a message: pgoutput itself, CopyData from the walsender, CopyData from its client. */
const CHANNELS = ["data", "copydata", "sent"];

/** The last protocol version. */
const LATEST = Math.max(...VERSIONS.keys());

/** Size of XLogData before its data, in bytes. */
const ENVELOPE_SIZE = ENVELOPE.byName.get("XLogData").fields.reduce((size, field) => size + field.size, 1);

function newDecoder({ version, streaming, twoPhase = false }) {
  return new StreamDecoder(version, { streaming, two_phase: twoPhase });
}

/** Return a text's reason why no server has these options; "" if servers have. */
function checkSettings(settings) {
  const { version } = settings;
  if (!VERSIONS.has(version)) return `proto_version ${version} is not known; the versions are ${[...VERSIONS.keys()].join(", ")}`;
  try {
    newDecoder(settings);
    return "";
  } catch (error) {
    return error.message;
  }
}

/** Return the layout of a decoded message, and the values of its fields by meaning, without those that are null. */
function withMeanings(layout, message) {
  const means = {};
  for (const meaning in layout.names) {
    const value = message[layout.names[meaning]];
    if (value !== null) means[meaning] = value;
  }
  return { layout, means };
}

/** Return the layout of a message, its pieces up to the first error, and the error; null if there is none. */
function explain(protocol, data, { inStream, streaming }) {
  try {
    const layout = layoutOf(protocol, data);
    return { layout, ...walk(layout, data, inStream, streaming) };
  } catch (error) {
    if (!(error instanceof DecodeError)) throw error;
    return { layout: null, pieces: [], error };
  }
}

/** Return the part of an envelope that is a message of the plugin; null if it has none. */
function payloadOf(channel, data) {
  if (channel === "data") return data;
  return channel === "copydata" && ENVELOPE.byTag[data[0]]?.name === "XLogData" && data.length >= ENVELOPE_SIZE
    ? data.subarray(ENVELOPE_SIZE)
    : null;
}

/** Return all pieces of a stored message, its layout and its error, as `logicalrep inspect` shows them. */
function explainRecord(channel, data, protocol, context) {
  if (channel === "data") return { ...explain(protocol, data, context), outer: null, start: 0 };
  const outer = explain(ENVELOPE, data, { inStream: false, streaming: "off" });
  const payload = outer.error ? null : payloadOf(channel, data);
  if (!payload) return { ...outer, outer: outer.layout, start: 0 };
  const inner = explain(protocol, payload, context);
  const start = data.length - payload.length;
  const moved = inner.pieces.map((piece) => ({ ...piece, start: piece.start + start, end: piece.end + start }));
  return { ...inner, pieces: [...outer.pieces.slice(0, -1), ...moved], outer: outer.layout, start };
}

/** Return the value of a piece as text. */
function formatValue({ type, value }) {
  if (type === "lsn") return formatLsn(value);
  if (type === "timestamp") return formatTimestamp(value)?.replace("T", " ") ?? String(value);
  if (type === "null") return "NULL";
  if (type === "unchanged") return "unchanged";
  if (value instanceof Uint8Array) return `${value.length} byte${value.length === 1 ? "" : "s"}`;
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}
