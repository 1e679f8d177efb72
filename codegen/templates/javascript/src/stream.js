// Stateful decoder of one connection's messages.

import { decodeMessage, layoutOf } from "./decode.js";
import { DecodeError, StreamError } from "./errors.js";
import { VERSIONS } from "./layouts.js";
import { SPEC } from "./tables.js";

/** First protocol version that has a value of the option `streaming`. */
const STREAMING_SINCE = SPEC.streaming;

/** Check a value of the option `streaming`; throw RangeError if it is not valid. */
export function checkStreaming(streaming) {
  if (!Object.hasOwn(STREAMING_SINCE, streaming)) {
    const known = Object.keys(STREAMING_SINCE).join(", ");
    throw new RangeError(`streaming is one of ${known}, not '${streaming}'`);
  }
}

export class StreamDecoder {
  constructor(protoVersion, { streaming = "off", two_phase = false, ...others } = {}) {
    const [unknown] = Object.keys(others);
    if (unknown !== undefined) {
      throw new RangeError(`the options are streaming and two_phase, not '${unknown}'`);
    }
    if (typeof two_phase !== "boolean") throw new RangeError("two_phase is true or false");
    const protocol = VERSIONS.get(protoVersion);
    if (protocol === undefined) {
      const given = typeof protoVersion === "string" ? `"${protoVersion}"` : String(protoVersion);
      const known = [...VERSIONS.keys()].join(", ");
      throw new RangeError(`there is no protocol version ${given}; there are ${known}`);
    }
    checkStreaming(streaming);
    const needed = STREAMING_SINCE[streaming];
    if (protoVersion < needed) {
      throw new RangeError(`streaming = ${streaming} needs protocol version ${needed}, not ${protoVersion}`);
    }
    this.protoVersion = protoVersion;
    this.streaming = streaming;
    this.inStream = false;
    this.relations = new Map();
    this.types = new Map();
    this.protocol = protocol;
    const foreign = two_phase ? protocol.later.filter((one) => one.any_version) : [];
    /** Protocols of messages that this version does not define, by tag. */
    this.foreign = new Map(foreign.map(({ tag, since }) => [tag.charCodeAt(0), VERSIONS.get(since)]));
  }

  /** Return the layout of the next message. */
  layoutOf(data) {
    return layoutOf(this.foreign.get(data[0]) ?? this.protocol, data);
  }

  decode(data) {
    const layout = this.layoutOf(data);
    let message;
    try {
      message = decodeMessage(layout, data, this.inStream, this.streaming);
    } catch (error) {
      // What follows a damaged Stream Start is inside its stream block all the same.
      if (layout.role === "open_block" && error instanceof DecodeError) this.inStream = true;
      throw error;
    }
    if (layout.isFollowed) this.follow(layout, message);
    return message;
  }

  /** Change the state as a message says; throw StreamError if it is out of place. */
  follow({ name, role }, message) {
    switch (role) {
      case "open_block":
        if (this.inStream) {
          throw new StreamError(`${name}: a stream block is open already, and blocks do not nest`, name);
        }
        this.inStream = true;
        break;
      case "close_block":
        if (!this.inStream) throw new StreamError(`${name}: no stream block is open`, name);
        this.inStream = false;
        break;
      case "relation":
        this.relations.set(message.oid, message);
        break;
      case "type":
        this.types.set(message.oid, message);
    }
  }
}
