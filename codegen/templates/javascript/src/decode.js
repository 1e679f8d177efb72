// Decodes messages by their layouts.

import { DecodeError } from "./errors.js";
import { ENVELOPE } from "./layouts.js";
import { INVALID, Reader } from "./reader.js";
import { character } from "./text.js";
import { walk } from "./walk.js";

/** Return the layout of the message that the bytes encode. */
export function layoutOf(protocol, data) {
  if (!(data instanceof Uint8Array)) throw new TypeError("expected a Uint8Array");
  const layout = protocol.byTag[data[0]];
  if (layout === undefined) throw unknownTag(protocol, data);
  return layout;
}

/** Return the message of this layout that the bytes encode; see `Codec.decode`. */
export function decodeMessage(layout, data, inStream, streaming) {
  const reader = new Reader(data, inStream, streaming);
  const message = read(layout, reader);
  if (reader.pos !== data.length) throw walk(layout, data, inStream, streaming).error;
  return message;
}

/** Return the size of the message of this layout with which the bytes start. */
export function messageSize(layout, data, inStream, streaming) {
  const reader = new Reader(data, inStream, streaming);
  read(layout, reader);
  return reader.pos;
}

function read(layout, reader) {
  try {
    return layout.read(reader, layout.fields);
  } catch (error) {
    if (error !== INVALID) throw error;
    throw walk(layout, reader.data, reader.inStream, reader.streaming).error;
  }
}

function unknownTag(protocol, data) {
  const [byte] = data;
  if (byte === undefined) return new DecodeError("no bytes: a message has at least its tag");
  const layout = protocol.later.find(({ tag }) => tag.charCodeAt(0) === byte);
  let text = `${protocol.label} has no message with the tag ${character(byte)}`;
  if (layout !== undefined) {
    const { title, since, option, any_version } = layout;
    text = `${protocol.label} has no ${title} (tag ${character(byte)}): it came with version ${since}`;
    if (any_version) {
      text +=
        `. Servers send it all the same where the slot has ${option} set, whatever the client asked for: ` +
        `read such a stream with new StreamDecoder(${protocol.version}, { ${option}: true })`;
    }
  } else if (ENVELOPE.byTag[byte]?.name === "XLogData") {
    text += "; it is the tag of XLogData: decode that with logicalrep.envelope, then its data";
  }
  return new DecodeError(text, layout?.name ?? null);
}
