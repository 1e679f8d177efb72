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
  let damage = "";
  if (bytes[0] === 0x1f && bytes[1] === 0x8b) [bytes, damage] = await decompress(bytes, "gzip");
  if (!bytes.length && damage) throw new FileError(damage);
  const found = FORMATS.find(({ is }) => is(bytes));
  if (!found) throw new FileError(`the first bytes, ${toHex(bytes.subarray(0, 4), " ") || "none"}, begin no known format`);
  const store = new Store(Math.min(bytes.length, 1 << 30));
  try {
    found.read(bytes, store, settings);
  } catch (error) {
    if (!(error instanceof FileError) || !store.count) throw error;
    damage = error.message; // the messages before it are shown
  }
  if (!store.count) throw new FileError(`${found.name}: no message of logical replication is in it`);
  const given = store.settings ?? chooseSettings(store, settings);
  return { store, format: found.name + store.note, damage, settings: { ...settings, ...given } };
}

/** Return what compressed bytes contain up to their damage or end, and the damage; "" for none. */
async function decompress(bytes, format) {
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format)).getReader();
  const parts = [];
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) parts.push(part.value);
    return [concatenate(parts), ""];
  } catch {
    return [concatenate(parts), `the file is not valid ${format}, or ends too early`];
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

// Text: hexadecimal digits or base64, in lines of any length; also psql's tables and hex dumps.

const HEX_LINE = /^(?:\\x)?((?:(?:0x)?[0-9a-f]{2}[ \t:,-]*)+)$/i;
const PYTHON_LINE = /^b(['"])(.*)\1$/;
const ODD_LINE = /^(?:\\x|0x)?[0-9a-f \t]+$/i;
const DUMP_LINE = /^([0-9a-f]{4,16})(:?)(?:\s+(\S.*))?$/i;
const PSQL_LINE = /\\x([0-9a-f]+)\s*(?:\||$)/i;

function isByteText(bytes) {
  return bytes.subarray(0, 4096).every((byte) => byte === 9 || byte === 10 || byte === 13 || (byte >= 0x20 && byte < 0x7f));
}

function readByteText(bytes, store, settings) {
  const lines = decodeText(bytes).split("\n").map((line) => line.trim());
  const dump = readDump(lines.filter(Boolean));
  if (dump) {
    readBytes(dump, store, settings);
    return;
  }
  const parts = readLines(lines);
  const sizes = new Set(parts.slice(0, -1).map(({ length }) => length));
  const whole = sizes.size === 1 ? concatenate(parts) : null; // lines of one length may be one text in parts
  for (const part of whole && isWhole(whole, settings) ? [whole] : parts) readBytes(part, store, settings);
}

/** Return the bytes of a dump of xxd, hexdump or od, whose lines begin with their offsets; null for other text. */
function readDump(lines) {
  const rows = [];
  let size = 0;
  let repeated = false;
  let base = null;
  for (const line of lines) {
    if (line === "*") {
      repeated = true;
      continue;
    }
    const [, digits, colon, rest = ""] = DUMP_LINE.exec(line) ?? [];
    if (!digits) return null;
    const offset = parseInt(digits, 16);
    base ??= offset;
    for (const last = rows.at(-1); repeated && last?.length && offset - base - size >= last.length; size += last.length) rows.push(last);
    const row = fromHex(rest.split(colon ? / {2,}/ : /\s*\|| {3,}/)[0]); // characters follow
    if (!row || offset - base !== size) return null;
    rows.push(row);
    size += row.length;
    repeated = false;
  }
  return size && (base === 0 || rows.length > 1) ? concatenate(rows) : null;
}

/** Return the bytes of each line that is not empty. */
function readLines(lines) {
  const numbered = lines.map((line, i) => ({ line, number: i + 1 })).filter(({ line }) => line);
  if (numbered.every(({ line }) => PYTHON_LINE.test(line))) return numbered.map(({ line }) => readPython(line));
  const cells = numbered.map(({ line }) => PSQL_LINE.exec(line)?.[1]).filter(Boolean);
  if (cells.length) return cells.map(fromHex).filter(Boolean); // psql's table has a head and a foot, too
  const isHex = numbered.every(({ line }) => ODD_LINE.test(line) || HEX_LINE.test(line));
  return numbered.map(({ line, number }) => {
    const data = isHex ? fromHex(HEX_LINE.exec(line)?.[1].replace(/0x|[:,-]/gi, "") ?? "-") : fromBase64(line);
    if (data?.length) return data;
    const problem = isHex ? "an odd number of hexadecimal digits" : "neither hexadecimal digits nor base64";
    throw new FileError(`line ${number}: ${problem}: ${line.slice(0, 40)}`);
  });
}

const PYTHON_ESCAPES = { n: "\n", r: "\r", t: "\t" };

/** Return the bytes that Python writes as `b'…'`. */
function readPython(line) {
  const text = PYTHON_LINE.exec(line)[2].replace(/\\(?:x([0-9a-f]{2})|(.))/gi, (_, digits, one) =>
    digits ? String.fromCharCode(parseInt(digits, 16)) : (PYTHON_ESCAPES[one] ?? one));
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}

/** Add bytes of any kind: a pcap or COPY stream, a file of pg_recvlogical, or one message. */
function readBytes(data, store, settings) {
  if (isPackets(data)) readPackets(data, store);
  else if (isCopyStream(data)) readCopyStream(data, store);
  else if (isRecvlogical(data, settings)) readRecvlogical(data, store, settings);
  else addCopyData(data, store);
}

/** Return whether bytes are valid as they are, and not only a part of something. */
function isWhole(data, settings) {
  if (isPackets(data) || isCopyStream(data) || isEnvelope(data) || isRecvlogical(data, settings)) return true;
  const contexts = [...candidates(settings)].flatMap((one) => [true, false].map((inStream) => ({ ...one, inStream })));
  return contexts.some(({ version, ...context }) => !explain(VERSIONS.get(version), data, context).error);
}

// Files of pg_recvlogical, which writes messages as they are, with a newline after each.

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
      if (rest[size] !== NEWLINE) return { ends, end: at, error: `no newline ends the ${layout.title}` };
      decoder.decode(rest.subarray(0, size));
      ends.push(at + size);
      at += size + 1;
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      return { ends, end: at, error: error.message };
    }
  }
  return { ends, end: at, error: "" };
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
