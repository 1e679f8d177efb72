// Reads what is pasted or dropped: text of bytes, capture files, pg_recvlogical's files, COPY streams and pcap files.

/** A file that cannot be read. */
class FileError extends Error {}

const NEWLINE = 10;

/**
 * Read a file or a pasted text; return the store of its messages, its settings and the name of its format.
 *
 * `settings` has the protocol version, the option `streaming` and `twoPhase`; what a file says replaces them.
 */
async function readFile(bytes, settings) {
  if (bytes[0] === 0x1f && bytes[1] === 0x8b) bytes = await decompress(bytes, "gzip");
  const found = FORMATS.find(({ is }) => is(bytes));
  if (!found) throw new FileError(`the first bytes, ${toHex(bytes.subarray(0, 4), " ") || "none"}, begin no known format`);
  const store = new Store(Math.min(bytes.length, 1 << 30));
  const result = found.read(bytes, store, settings) ?? {};
  if (!store.count) throw new FileError(`${found.name}: no message of logical replication is in it`);
  return { store, format: found.name, settings: { ...settings, ...result } };
}

async function decompress(bytes, format) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format));
  try {
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new FileError(`the file is not valid ${format}, or ends too early`);
  }
}

async function compress(bytes, format) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream(format));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const FORMATS = [
  { name: "capture file", is: (bytes) => bytes[0] === 0x7b, read: readCapture },
  { name: "pcap file", is: isPackets, read: readPackets },
  { name: "COPY stream", is: isCopyStream, read: readCopyStream },
  { name: "text", is: isByteText, read: readByteText },
  { name: "file of pg_recvlogical", is: (bytes) => isTag(bytes[0]), read: readRecvlogical },
];

function isTag(byte) {
  return VERSIONS.get(LATEST).byTag.has(byte);
}

/** Call `use` with the bounds of each line that is not empty, and its number. */
function eachLine(bytes, use) {
  for (let start = 0, number = 1; start < bytes.length; number++) {
    const found = bytes.indexOf(NEWLINE, start);
    const end = found < 0 ? bytes.length : found;
    if (end > start) use(start, end, number);
    start = end + 1;
  }
}

// Capture files: a header and hexadecimal digits, as JSON lines.

function readCapture(bytes, store) {
  let settings = null;
  eachLine(bytes, (start, end, number) => {
    if (settings === null) settings = readHeader(bytes.subarray(start, end));
    else if (!readRecord(bytes, start, end, store)) readRecordSlowly(bytes.subarray(start, end), number, store);
  });
  return settings;
}

function parseLine(bytes, number) {
  try {
    return JSON.parse(UTF8.decode(bytes));
  } catch (error) {
    throw new FileError(`line ${number}: not JSON (${error.message})`);
  }
}

function readHeader(line) {
  const header = parseLine(line, 1);
  const settings = {
    version: header.proto_version,
    streaming: header.options?.streaming ?? "off",
    twoPhase: Boolean(header.slot_two_phase),
    server: header.server_version ?? "",
  };
  if (settings.version === undefined) throw new FileError("line 1: no header: proto_version is missing");
  const wrong = checkSettings(settings);
  if (wrong) throw new FileError(`line 1: ${wrong}`);
  return settings;
}

const KEYS = CHANNELS.map((channel) => [channel, new TextEncoder().encode(`"${channel}":"`)]);

/** Read a line as pgoutput writes it, its last value being the digits; return whether it is such a line. */
function readRecord(bytes, start, end, store) {
  while (bytes[end - 1] <= 0x20) end -= 1;
  if (bytes[end - 1] !== 0x7d || bytes[end - 2] !== 0x22) return false;
  const quote = bytes.lastIndexOf(0x22, end - 3);
  if (quote < start) return false;
  for (const [channel, key] of KEYS) {
    const at = quote + 1 - key.length;
    if (at <= start || !key.every((byte, i) => bytes[at + i] === byte)) continue;
    const target = store.reserve((end - quote) >> 1);
    const last = writeHex(bytes, quote + 1, end - 2, store.data, target);
    if (last < 0) return false;
    store.finish(channel, last);
    return true;
  }
  return false;
}

function readRecordSlowly(bytes, number, store) {
  if (!bytes.some((byte) => byte > 0x20)) return;
  const record = parseLine(bytes, number);
  const given = CHANNELS.filter((channel) => typeof record[channel] === "string");
  if (given.length !== 1) {
    throw new FileError(`line ${number}: exactly one of data, copydata and sent is required, ${given.length} are present`);
  }
  const data = fromHex(record[given[0]]);
  if (!data) throw new FileError(`line ${number}: ${given[0]} is not hex`);
  store.add(given[0], data);
}

/** Return the messages as a capture file. */
function writeCapture(store, { version, streaming, twoPhase }) {
  const header = { proto_version: version, options: { streaming }, slot_two_phase: twoPhase };
  const lines = Array.from({ length: store.count }, (_, row) => ({ [store.channel(row)]: toHex(store.bytes(row)) }));
  return [header, ...lines].map((line) => `${JSON.stringify(line)}\n`).join("");
}

// COPY streams: frames of CopyData, as they come from the server.

const COPY_TAGS = new Set([..."dcHWf"].map((tag) => tag.charCodeAt(0)));

function frameEnd(bytes, at) {
  if (at + 5 > bytes.length) return -1;
  return at + 1 + new DataView(bytes.buffer, bytes.byteOffset + at + 1, 4).getUint32(0);
}

function isCopyStream(bytes) {
  let at = 0;
  for (let frames = 0; frames < 3 && at < bytes.length; frames++) {
    const end = frameEnd(bytes, at);
    if (!COPY_TAGS.has(bytes[at]) || end < at + 5 || end > bytes.length) return false;
    at = end;
  }
  return at > 0;
}

function readCopyStream(bytes, store) {
  for (let at = 0; at < bytes.length; ) {
    const end = frameEnd(bytes, at);
    if (!COPY_TAGS.has(bytes[at]) || end < at + 5 || end > bytes.length) {
      throw new FileError(`byte ${at}: no whole frame of the COPY stream begins here`);
    }
    if (bytes[at] === 0x64) addCopyData(bytes.subarray(at + 5, end), store);
    at = end;
  }
}

/** Add the content of CopyData: an envelope of either side, or a message without envelope. */
function addCopyData(data, store, sender = "") {
  const envelope = ENVELOPE.byTag.get(data[0]);
  const size = envelope?.fields.reduce((sum, field) => sum + field.size, 1);
  const fits = envelope && (envelope.name === "XLogData" ? data.length >= size : data.length === size);
  if (fits && (!sender || envelope.sender === sender)) {
    store.add(envelope.sender === "client" ? "sent" : "copydata", data);
  } else if (!sender && isTag(data[0])) {
    store.add("data", data);
  }
}

// Text: messages as hexadecimal digits or base64, one a line; also psql's tables and dumps with offsets.

const HEX_LINE = /^(?:\\x|0x)?((?:[0-9a-f]{2}[ \t:,]?)+)$/i;
const DUMP_LINE = /^[0-9a-f]{4,8}:?[ \t]+((?:[0-9a-f]{2} ?){1,4}(?: *(?:[0-9a-f]{2} ?){1,4}){0,7})(?:\s{2,}.*|\s*\|.*)?$/i;
const PSQL_LINE = /\\x([0-9a-f]+)\s*(?:\||$)/i;

function isByteText(bytes) {
  return bytes.subarray(0, 4096).every((byte) => byte === 9 || byte === 10 || byte === 13 || (byte >= 0x20 && byte < 0x7f));
}

function readByteText(bytes, store) {
  const lines = UTF8.decode(bytes).split("\n").map((line) => line.trim()).filter(Boolean);
  if (lines.length && lines.every((line) => DUMP_LINE.test(line))) {
    addPasted(fromHex(lines.map((line) => DUMP_LINE.exec(line)[1].replace(/ {2,}/g, " ")).join("")), store);
    return;
  }
  for (const [i, line] of lines.entries()) {
    const digits = PSQL_LINE.exec(line)?.[1] ?? HEX_LINE.exec(line)?.[1].replace(/[:,]/g, "");
    const data = digits ? fromHex(digits) : null;
    if (data) addPasted(data, store);
    else if (lines.some((one) => PSQL_LINE.test(one))) continue; // the head and the foot of psql's table
    else addPasted(readBase64(line, i + 1), store);
  }
}

function readBase64(line, number) {
  const data = fromBase64(line);
  if (data?.length) return data;
  throw new FileError(`line ${number}: neither hexadecimal digits nor base64: ${line.slice(0, 40)}`);
}

function addPasted(data, store) {
  if (isCopyStream(data)) readCopyStream(data, store);
  else if (ENVELOPE.byTag.has(data[0]) && !isTag(data[0])) addCopyData(data, store);
  else store.add("data", data);
}

// pg_recvlogical writes messages as they are, with a newline after each.

function readRecvlogical(bytes, store, settings) {
  const best = [...candidates(settings)].map((one) => ({ ...one, ...split(bytes, one) }));
  best.sort((a, b) => b.end - a.end);
  const [{ ends, end, error, version, streaming, twoPhase }] = best;
  if (end < bytes.length) throw new FileError(`byte ${end}: ${error}`);
  let start = 0;
  for (const one of ends) {
    store.add("data", bytes.subarray(start, one));
    start = one + 1;
  }
  return { version, streaming, twoPhase };
}

/** Yield the settings that a file without header may have, those of the page first. */
function* candidates(settings) {
  yield settings;
  for (const [streaming, since] of Object.entries(STREAMING_SINCE).reverse()) {
    for (let version = LATEST; version >= since; version--) yield { version, streaming, twoPhase: true };
  }
}

/** Return the ends of the messages, and the position and text of the first error. */
function split(bytes, settings) {
  const decoder = new Decoder(settings);
  const ends = [];
  let at = 0;
  while (at < bytes.length) {
    const rest = bytes.subarray(at);
    try {
      const { layout, end } = readMessage(decoder.protocolOf(rest), rest, decoder.context);
      if (rest[end] !== NEWLINE) return { ends, end: at, error: `no newline ends the ${layout.title}` };
      decoder.follow(layout);
      ends.push(at + end);
      at += end + 1;
    } catch (error) {
      return { ends, end: at, error: error.message };
    }
  }
  return { ends, end: at, error: "" };
}
