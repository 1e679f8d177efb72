// The codec of each protocol version, and of the messages around them.

import { decodeMessage, layoutOf } from "./decode.js";
import { encodeMessage } from "./encode.js";
import { ENVELOPE, VERSIONS } from "./layouts.js";
import { checkStreaming } from "./stream.js";

function codec(protocol) {
  const { version, isConditional } = protocol;
  return {
    decode(data, inStream = false, streaming = "off") {
      if (version !== null && (inStream || streaming !== "off")) {
        if (!isConditional) {
          const expected = "inStream must be false, streaming 'off'";
          throw new RangeError(`protocol version ${version} has no stream blocks: ${expected}`);
        }
        checkStreaming(streaming);
      }
      return decodeMessage(layoutOf(protocol, data), data, inStream, streaming);
    },
    encode(message, inStream = null) {
      if (version !== null && inStream && !isConditional) {
        throw new RangeError(`protocol version ${version} has no stream blocks: inStream must be false`);
      }
      return encodeMessage(protocol, message, inStream);
    },
  };
}

export const envelope = codec(ENVELOPE);

export const CODECS = new Map([...VERSIONS].map(([version, protocol]) => [version, codec(protocol)]));
