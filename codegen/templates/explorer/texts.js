// Reads text of bytes: hexadecimal digits, base64, escaped text, psql's tables and hex dumps.

const DIGITS_LINE = /^(?:\\x|0x)?[0-9a-f][0-9a-fx \t:,-]*$/i;
const BASE64 = /^[0-9a-z+/_-]+={0,2}$/i;
const PSQL_LINE = /^(?:[^\\]*[|│,;\t])?[ '"]*\\{1,2}x([0-9a-f]+)[ '"]*(?:[|│,;\t][^\\]*)?$/i;
const DUMP_LINE = /^(?:0x)?([0-9a-f]{4,16})(:?)(?:\s+(\S.*))?$/i;
const LITERALS = /\bb(?:'((?:\\.|[^'\\])*)'|"((?:\\.|[^"\\])*)")/gi;
const QUOTED = /^e?(['"])(.*)\1[,;]?$/i;

/** Return whether bytes begin as text in UTF-8 without control characters. */
function isByteText(bytes) {
  const head = decodeText(bytes.subarray(0, 4096));
  return !/[^\t\n\r -~\u00a0-\ud7ff\ue000-\uffff]/.test(bytes.length > 4096 ? head.slice(0, -3) : head); // a character may be cut
}

function readByteText(bytes, store, settings) {
  const lines = decodeText(bytes).split("\n").map((raw, i) => ({ raw, line: raw.trim(), number: i + 1 })).filter(({ line }) => line);
  const dumps = readDumps(lines.map(({ line }) => line));
  const links = dumps?.map(linkOf);
  if (links?.every((link) => link !== null)) {
    readConnections((use) => dumps.forEach((dump, i) => use(dump, links[i])), store);
    return;
  }
  const parts = dumps ?? readLines(lines);
  const sizes = new Set(parts.slice(0, -1).map(({ length }) => length));
  const whole = !dumps && sizes.size === 1 ? concatenate(parts) : null; // lines of one length may be one text in parts
  for (const part of whole && isWhole(whole, settings) ? [whole] : parts) readBytes(part, store, settings);
}

/** Return the bytes of each dump of xxd, hexdump, od or Wireshark, whose lines begin with offsets; null for other text. */
function readDumps(lines) {
  const dumps = [];
  let dump = null;
  let repeated = false;
  for (const line of lines) {
    if (line === "*" && dump) {
      repeated = true;
      continue;
    }
    const [, digits, colon, rest = ""] = DUMP_LINE.exec(line) ?? [];
    if (!digits) return null;
    const offset = parseInt(digits, 16);
    if (!dump || (offset === 0 && rest)) dumps.push((dump = { base: offset, rows: [], size: 0 }));
    const last = dump.rows.at(-1);
    for (; repeated && last?.length && offset - dump.base - dump.size >= last.length; dump.size += last.length) dump.rows.push(last);
    const row = fromHex(rest.split(colon ? / {2,}/ : /\s*\|| {3,}/)[0]); // characters follow
    if (!row || offset - dump.base !== dump.size) return null;
    dump.rows.push(row);
    dump.size += row.length;
    repeated = false;
  }
  const isDump = dumps.length && dumps.every(({ base, rows, size }) => size && (base === 0 || rows.length > 1));
  return isDump ? dumps.map(({ rows }) => concatenate(rows)) : null;
}

/** Return the bytes of each line, or of each literal in it. */
function readLines(lines) {
  const withEscapes = lines.filter(({ line }) => line.includes("\\"));
  const isTable = withEscapes.length && withEscapes.every(({ line }) => PSQL_LINE.test(line)); // with a head and a foot
  const isBytes = ({ line }) => /\bb['"]/i.test(line);
  const isQuoted = ({ line }) => /^e?['"]/i.test(line);
  const isAround = (one) => isBytes(one) || !/['"\\]/.test(one.line); // a bracket or a name before literals
  const isLiterals = lines.some(isBytes) && lines.every(isAround);
  const read =
    isTable ? (line) => [readDigits(PSQL_LINE.exec(line)[1])]
    : lines.every(({ line }) => DIGITS_LINE.test(line)) ? (line) => [readDigits(line)]
    : isLiterals ? readLiterals
    : withEscapes.length || lines.some(isQuoted) ? (line, raw) => [readQuoted(line, raw)]
    : (line) => [readBase64(line)];
  const used = isTable ? withEscapes : isLiterals ? lines.filter(isBytes) : lines;
  return used.flatMap(({ line, number, raw }) =>
    read(line, raw.replace(/\r$/, "")).map(({ bytes, problem }) => {
      if (bytes?.length) return bytes;
      throw new FileError(`line ${number}: ${problem}: ${line.slice(0, 40)}`);
    }));
}

/** Return the bytes of hexadecimal digits, as `42 00`, `0x42, 0x00`, `42-00` or `42:00`; null if the text is not that. */
function readDigits(text) {
  const bytes = DIGITS_LINE.test(text.trim()) ? fromHex(text.replace(/\\x|0x|[\s:,-]/gi, "")) : null;
  return { bytes, problem: "an odd number of hexadecimal digits" };
}

function readBase64(line) {
  return { bytes: BASE64.test(line) ? fromBase64(line) : null, problem: "neither hexadecimal digits nor base64" };
}

/** Return the bytes of each of Python's literals in a line. */
function readLiterals(line) {
  const found = [...line.matchAll(LITERALS)].map(([, single, double]) => readEscaped(single ?? double));
  const isWhole = found.length && !/['"\\]/.test(line.replace(LITERALS, ""));
  return isWhole ? found : [{ bytes: null, problem: "no quote ends the text" }];
}

/** Return the bytes of a line with escapes, with or without quotes. */
function readQuoted(line, raw) {
  if (!/^e?['"]/i.test(line)) return readEscaped(raw);
  const text = QUOTED.exec(line)?.[2];
  if (text === undefined) return { bytes: null, problem: "no quote ends the text" };
  return /^[0-9a-f]{2,}$/i.test(text) ? readDigits(text) : readEscaped(text);
}

const CONTROLS = { a: 7, b: 8, f: 12, n: 10, r: 13, t: 9, v: 11 };

/** Return the bytes of text with escapes, as Python, C and PostgreSQL's format `escape` write it. */
function readEscaped(text) {
  const bytes = [];
  for (const [one, hex, octal, letter] of text.matchAll(/\\(?:x([0-9a-f]{2})|([0-7]{1,3})|([^x0-7]))|[^]/gi)) {
    const byte = hex ? parseInt(hex, 16) : octal ? parseInt(octal, 8) : letter ? (CONTROLS[letter] ?? letter.charCodeAt(0)) : one.charCodeAt(0);
    if (one === "\\" || byte > 0xff || (letter && !(letter in CONTROLS) && !"\\'\"".includes(letter))) {
      return { bytes: null, problem: one === "\\" || letter ? "no byte has this escape" : "a character that is no byte" };
    }
    bytes.push(byte);
  }
  return { bytes: Uint8Array.from(bytes), problem: "no bytes" };
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
