// Reads what is pasted or dropped: capture files, pg_recvlogical's files, COPY streams, pcap files, and text of bytes.

/** A file that cannot be read. */
class FileError extends Error {}

const NEWLINE = 10;

/**
 * Read a file or a pasted text; return the store of its messages, its settings and the name of its format.
 *
 * `settings` has the protocol version, the option `streaming` and `twoPhase`; what a file says replaces them.
 */
async function readFile(bytes, settings) {
  let damage = "";
  if (isGzip(bytes, 0)) [bytes, damage] = await gunzip(bytes);
  if (!bytes.length && damage) throw new FileError(damage);
  if (startsWith(bytes, BYTE_ORDER_MARK)) bytes = bytes.subarray(BYTE_ORDER_MARK.length);
  const found = FORMATS.find(({ is }) => is(bytes));
  if (!found) throw new FileError(`the first bytes, ${toHex(bytes.subarray(0, 4), " ") || "none"}, begin no known format`);
  const store = new Store(Math.min(bytes.length, 1 << 30));
  try {
    found.read(bytes, store, settings);
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    if (!store.count) throw damage ? new FileError(damage) : error;
    damage ||= error.message; // the messages before it are shown
  }
  if (!store.count) throw new FileError(`${found.name}: no message of logical replication is in it`);
  const isUsable = store.settings && !checkSettings(store.settings);
  const given = isUsable ? store.settings : chooseSettings(store, settings);
  return { store, format: found.name + store.note, damage, settings: { ...settings, ...given } };
}

/** Return whether a member of a gzip file begins at a position. */
function isGzip(bytes, at) {
  return bytes[at] === 0x1f && bytes[at + 1] === 0x8b && bytes[at + 2] === 8;
}

/** Return the position at which the next member of a gzip file may begin: a member may have the same bytes in it. */
function nextMember(bytes, at) {
  do at = bytes.indexOf(0x1f, at + 1);
  while (at >= 0 && !isGzip(bytes, at));
  return at < 0 ? bytes.length : at;
}

/** Return what a gzip file of one or more members contains up to its damage or end, and the damage; "" for none. */
async function gunzip(bytes) {
  const parts = [];
  let damage = "";
  for (let start = 0, end = 0; start < bytes.length && !damage; start = end) {
    let part;
    do {
      end = nextMember(bytes, end);
      [part, damage] = await decompress(bytes.subarray(start, end), "gzip");
    } while (damage && end < bytes.length);
    parts.push(part);
  }
  return [concatenate(parts), damage];
}

/** Return what compressed bytes contain up to their damage or end, and the damage; "" for none. */
async function decompress(bytes, format, step = 1 << 16) {
  const parts = [];
  let at = 0;
  const source = new ReadableStream({
    pull(controller) {
      if (at < bytes.length) controller.enqueue(bytes.subarray(at, (at += step)));
      else controller.close();
    },
  });
  const reader = source.pipeThrough(new DecompressionStream(format)).getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) parts.push(part.value);
    return [concatenate(parts), ""];
  } catch {
    const whole = concatenate(parts);
    const again = step > 256 ? await decompress(bytes, format, 256) : [""]; // the part with the damage may be lost
    return again[0].length > whole.length ? again : [whole, `the file is not valid ${format}, or ends too early`];
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

const BYTE_ORDER_MARK = [0xef, 0xbb, 0xbf];

function startsWith(bytes, beginning) {
  return beginning.every((byte, i) => bytes[i] === byte);
}

function isTag(byte) {
  return VERSIONS.get(LATEST).byTag[byte] !== undefined;
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
  eachLine(bytes, (start, end, number) => {
    if (store.settings === null) store.settings = readHeader(bytes.subarray(start, end));
    else if (!readRecord(bytes, start, end, store)) readRecordSlowly(bytes.subarray(start, end), number, store);
  });
}

function parseLine(bytes, number) {
  try {
    return JSON.parse(decodeText(bytes));
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

/** Read a line as logicalrep writes it, its last value being the digits; return whether it is such a line. */
function readRecord(bytes, start, end, store) {
  while (bytes[end - 1] <= 0x20) end -= 1;
  if (bytes[end - 1] !== 0x7d || bytes[end - 2] !== 0x22) return false;
  const quote = bytes.lastIndexOf(0x22, end - 3);
  if (quote < start) return false;
  for (const [channel, key] of KEYS) {
    const at = quote + 1 - key.length;
    if (at <= start || !key.every((byte, i) => bytes[at + i] === byte)) continue;
    const isOnly = at === start + 1 && bytes[start] === 0x7b;
    if (!isOnly && !isBeginning(bytes.subarray(start, at))) return false;
    const target = store.reserve((end - quote) >> 1);
    const last = writeHex(bytes, quote + 1, end - 2, store.data, target);
    if (last < 0) return false;
    store.finish(channel, last);
    return true;
  }
  return false;
}

/** Return whether bytes are a JSON object up to its last member, without another message in it. */
function isBeginning(bytes) {
  try {
    const members = JSON.parse(`${decodeText(bytes)}"last":0}`);
    return !CHANNELS.some((channel) => channel in members);
  } catch {
    return false;
  }
}

function readRecordSlowly(bytes, number, store) {
  if (bytes.every((byte) => byte === 0x20 || byte === 9 || byte === 13)) return;
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

/** Return whether bytes have the tag and the size of a message in CopyData. */
function isEnvelope(data) {
  const envelope = ENVELOPE.byTag[data[0]];
  const size = envelope?.fields.reduce((sum, field) => sum + field.size, 1);
  return Boolean(envelope) && (envelope.name === "XLogData" ? data.length >= size : data.length === size);
}

/** Add the content of CopyData: a message of either side, or one of the plugin without XLogData around it. */
function addCopyData(data, store) {
  const envelope = isEnvelope(data) || !isTag(data[0]) ? ENVELOPE.byTag[data[0]] : null;
  if (!envelope) store.add("data", data);
  else store.add(envelope.sender === "client" ? "sent" : "copydata", data);
}

// Files of pg_recvlogical, which writes messages as they are, with a newline after each; the last one may lack it.

function isRecvlogical(bytes, settings) {
  return bytes.at(-1) === NEWLINE && isTag(bytes[0]) && bestSplit(bytes, settings).end === bytes.length;
}

function readRecvlogical(bytes, store, settings) {
  const { ends, end, error } = bestSplit(bytes, settings);
  let start = 0;
  for (const one of ends) {
    store.add("data", bytes.subarray(start, one));
    start = one + 1;
  }
  if (end < bytes.length) throw new FileError(`byte ${end}: ${error}`);
}

/** Return the split by those settings that read the most messages. */
function bestSplit(bytes, settings) {
  let best = { end: -1 };
  for (const one of candidates(settings)) {
    const found = split(bytes, one);
    if (found.end > best.end) best = found;
    if (best.end === bytes.length) break;
  }
  return best;
}

/** Return the ends of the messages, and the position and text of the first error. */
function split(bytes, settings) {
  const decoder = newDecoder(settings);
  const ends = [];
  let at = 0;
  while (at < bytes.length) {
    const rest = bytes.subarray(at);
    try {
      const layout = decoder.layoutOf(rest);
      const size = messageSize(layout, rest, decoder.inStream, decoder.streaming);
      if (size < rest.length && rest[size] !== NEWLINE) return { ends, end: at, error: `no newline ends the ${layout.title}` };
      decoder.decode(rest.subarray(0, size));
      ends.push(at + size);
      at += size + 1;
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      return { ends, end: at, error: error.message };
    }
  }
  return { ends, end: bytes.length, error: "" };
}

// Settings of files without a header

/** Number of messages by which settings are chosen. */
const TRIED = 20_000;

/** Yield the settings that a file without header may have, those of the page first. */
function* candidates(settings) {
  yield settings;
  for (const [streaming, since] of Object.entries(STREAMING_SINCE)) {
    for (let version = LATEST; version >= since; version--) yield { version, streaming, twoPhase: true };
  }
}

/** Return the settings with which the fewest messages have a problem; of several, the first of `candidates`. */
function chooseSettings(store, settings) {
  let best = settings;
  let fewest = Infinity;
  for (const one of candidates(settings)) {
    const problems = countProblems(store, one, fewest);
    if (problems < fewest) [best, fewest] = [one, problems];
    if (!fewest) break;
  }
  const { version, streaming, twoPhase } = best;
  return { version, streaming, twoPhase };
}

/** Return the number of messages with a problem, counted up to `most`. */
function countProblems(store, settings, most) {
  const checker = new Checker(settings);
  let problems = 0;
  for (let row = 0; row < Math.min(store.count, TRIED) && problems < most; row++) {
    const data = payloadOf(store.channel(row), store.bytes(row));
    try {
      if (data && checker.feed(row, data).violation) problems += 1;
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      problems += 1;
    }
  }
  return problems;
}
