// Decodes the messages of one connection in order: knows whether a stream block is open.

/** The channels of a message: pgoutput itself, CopyData from the walsender, CopyData from its client. */
const CHANNELS = ["data", "copydata", "sent"];

/** Return a text's reason why no server has these options; "" if servers have. */
function checkSettings({ version, streaming }) {
  if (!VERSIONS.has(version)) return `proto_version ${version} is not known; the versions are ${[...VERSIONS.keys()].join(", ")}`;
  const since = STREAMING_SINCE[streaming];
  if (!since) return `streaming is one of ${Object.keys(STREAMING_SINCE).join(", ")}, not '${streaming}'`;
  return version < since ? `streaming = ${streaming} needs protocol version ${since}, not ${version}` : "";
}

class Decoder {
  constructor({ version, streaming = "off", twoPhase = false }) {
    this.protocol = VERSIONS.get(version);
    this.context = { inStream: false, streaming };
    const foreign = twoPhase ? this.protocol.later.filter((one) => one.any_version) : [];
    this.foreign = new Map(foreign.map((one) => [one.tag.charCodeAt(0), VERSIONS.get(one.since)]));
  }

  /** Return the protocol version that reads a message. */
  protocolOf(data) {
    return this.foreign.get(data[0]) ?? this.protocol;
  }

  /** Read the next message of the plugin; return its layout and values by meaning. Raises DecodeError. */
  next(data) {
    let read;
    try {
      read = walkInto(this.protocolOf(data), data, this.context, null);
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      walkInto(this.protocolOf(data), data, this.context, () => {}); // again, for the path in the error
      throw error;
    }
    this.follow(read.layout);
    return read;
  }

  follow({ role, name }) {
    if (role === "open_block") {
      if (this.context.inStream) {
        throw new DecodeError(`${name}: a stream block is open already, and blocks do not nest`, name);
      }
      this.context.inStream = true;
    } else if (role === "close_block") {
      if (!this.context.inStream) throw new DecodeError(`${name}: no stream block is open`, name);
      this.context.inStream = false;
    }
  }
}

/** Return the part of an envelope that is a message of the plugin; null if it has none. */
function payloadOf(channel, data) {
  if (channel === "data") return data;
  return channel === "copydata" && ENVELOPE.byTag.get(data[0])?.name === "XLogData" && data.length >= ENVELOPE_SIZE
    ? data.subarray(ENVELOPE_SIZE)
    : null;
}

/** Size of XLogData before its data, in bytes. */
const ENVELOPE_SIZE = ENVELOPE.byName
  .get("XLogData")
  .fields.reduce((size, field) => size + field.size, 1);

/** Return all pieces of a stored message, its layout and its error, as `pgoutput inspect` shows them. */
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
