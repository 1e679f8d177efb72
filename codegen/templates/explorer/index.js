// The index of a stream: for each message its tag, transaction, relation and state, in arrays of numbers.

const IN_STREAM = 1;
const FAILED = 2; // the message cannot be decoded
const OUT_OF_PLACE = 4; // the message breaks a rule of order

/** Number of errors that are kept: the rule and the text of each. */
const ERRORS = 1000;

/** Return how a message of the replication protocol breaks a rule: the rule's name and a text; null if it does not. */
function checkEnvelope(channel, data) {
  const { layout, error } = explain(ENVELOPE, data, { inStream: false, streaming: "off" });
  if (error) return { rule: "envelope", text: error.message };
  const right = channel === "sent" || layout.sender === "server";
  return right ? null : { rule: "envelope", text: `a server does not send ${layout.name}` };
}

/**
 * Return the index of the messages of a store.
 *
 * `versions` has the protocol version that reads each message; `descriptions` the row of the Relation that
 * describes its columns, -1 for none; `transactions` the numbers of their transactions, -1 for none.
 */
function buildIndex(store, settings, progress = () => {}) {
  const { count } = store;
  const index = {
    count,
    flags: new Uint8Array(count),
    marks: new Uint8Array(count),
    tags: new Uint8Array(count),
    versions: new Uint8Array(count),
    transactions: new Int32Array(count).fill(-1),
    descriptions: new Int32Array(count).fill(-1),
    errors: new Map(),
    errorCount: 0,
    outOfPlaceCount: 0,
  };
  const relations = new Map();
  const checker = new Checker(settings);
  const report = (row, flag, error) => {
    index.flags[row] |= flag;
    index[flag === FAILED ? "errorCount" : "outOfPlaceCount"] += 1;
    if (index.errors.size < ERRORS) index.errors.set(row, error);
  };
  for (let row = 0; row < count; row++) {
    if (row % 50_000 === 0) progress(row / count);
    const data = payloadOf(store.channel(row), store.bytes(row));
    index.versions[row] = settings.version;
    if (!data) {
      const error = checkEnvelope(store.channel(row), store.bytes(row));
      if (error) report(row, FAILED, error);
      continue;
    }
    index.tags[row] = data[0];
    if (checker.inStream) index.flags[row] |= IN_STREAM;
    try {
      const { layout, means, transaction, violation, inStream } = checker.feed(row, data);
      index.flags[row] = inStream ? IN_STREAM : 0;
      index.versions[row] = layout.version;
      if (violation) report(row, OUT_OF_PLACE, violation);
      index.transactions[row] = transaction?.id ?? -1;
      index.marks[row] = checker.tracker.marked;
      if (layout.role === "relation") relations.set(means.oid, row);
      const oid = layout.role === "relation" ? means.oid : (means.relation ?? means.relations?.[0]);
      if (oid !== undefined) index.descriptions[row] = relations.get(oid) ?? -1;
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      report(row, FAILED, { rule: "message", text: error.message });
    }
  }
  const { tracker } = checker;
  index.list = tracker.transactions;
  index.lanes = assignLanes(tracker.transactions, count);
  return index;
}

/** Give each transaction a lane; return the transactions of each lane, by their numbers, in the stream's order. */
function assignLanes(transactions, count) {
  const lanes = [];
  for (const one of transactions) {
    if (one.end !== "commit" && one.end !== "abort") one.last = count - 1;
    let lane = lanes.findIndex((numbers) => transactions[numbers.at(-1)].last < one.first);
    if (lane < 0) lane = lanes.push([]) - 1;
    lanes[lane].push(one.id);
    one.lane = lane;
  }
  return lanes;
}

/** Return the rows of the messages that a filter accepts. */
function filterRows(store, index, { tags, transaction, problems, text, followed = -1 }) {
  const wanted = new Set(tags);
  const letters = new TextEncoder().encode(text).map((byte) => LOWER[byte]);
  const needles = searchedBytes(text);
  const isFollowed = followed >= 0 ? rowFollower(store, index, followed) : () => true;
  const isFound = (bytes) => includesText(bytes, letters) || needles.some((needle) => includes(bytes, needle));
  const named = text ? namedMessages(store, index, text) : () => false;
  const rows = new Uint32Array(index.count);
  let found = 0;
  for (let row = 0; row < index.count; row++) {
    if (wanted.size && !wanted.has(index.tags[row])) continue;
    if (transaction >= 0 && index.transactions[row] !== transaction) continue;
    if (problems && !(index.flags[row] & (FAILED | OUT_OF_PLACE))) continue;
    if (text && !named(row) && !isFound(store.bytes(row))) continue;
    if (!isFollowed(row)) continue;
    rows[found++] = row;
  }
  return rows.slice(0, found);
}

/** Return the values of the key columns in each tuple of a change, as JSON; of all columns if none is a key. */
function keysOf(store, index, row, columns) {
  const hasKey = columns.some(({ isKey }) => isKey);
  const tuples = {};
  for (const { path, value } of payloadPieces(store, index, row)) {
    const [, tuple, number] = /^(new|old|key)\[(\d+)\]$/.exec(path) ?? [];
    if (tuple && (columns[number]?.isKey || !hasKey)) (tuples[tuple] ??= {})[number] = value instanceof Uint8Array ? toHex(value) : value;
  }
  return Object.values(tuples).map((values) => JSON.stringify(values, (_, value) => (typeof value === "symbol" ? null : value)));
}

/** Return whether a message changes rows of a table whose Relation message is in the stream. */
function isChange(index, row) {
  return index.descriptions[row] >= 0 && index.descriptions[row] !== row;
}

/** Return a function that, called for each message in order, tells whether it changes the row that a message changes. */
function rowFollower(store, index, row) {
  const table = (described) => relationName(store, index, described).join(".");
  const first = index.descriptions[row];
  const isFollowed = isChange(index, row);
  const keys = new Set(isFollowed ? keysOf(store, index, row, columnsOf(store, index, first)) : []);
  const wanted = isFollowed ? table(first) : "";
  const columns = new Map(); // by Relation message; null for those of other tables
  return (one) => {
    if (!isChange(index, one)) return false;
    const described = index.descriptions[one];
    if (!columns.has(described)) columns.set(described, table(described) === wanted ? columnsOf(store, index, described) : null);
    const own = columns.get(described) ? keysOf(store, index, one, columns.get(described)) : [];
    if (!own.some((key) => keys.has(key))) return false;
    for (const key of own) keys.add(key); // the key may change
    return true;
  };
}

/** Return a function that tells whether a text is the kind of a message, or its table's name, with or without schema. */
function namedMessages(store, index, text) {
  const wanted = text.toLowerCase();
  const kinds = VERSIONS.get(LATEST).messages.filter(({ name, title }) => [name, title].some((one) => one.toLowerCase() === wanted));
  const tags = new Set(kinds.map(({ tag }) => tag.charCodeAt(0)));
  const tables = new Map();
  const isTable = (row) => {
    if (!tables.has(row)) {
      const [schema, name] = relationName(store, index, row);
      tables.set(row, [name, `${schema}.${name}`].some((one) => one.toLowerCase() === wanted));
    }
    return tables.get(row);
  };
  return (row) => tags.has(index.tags[row]) || (index.descriptions[row] >= 0 && isTable(index.descriptions[row]));
}

/** Return the bytes that a search looks for besides its text: the LSN, number or hexadecimal digits that it may be. */
function searchedBytes(text) {
  const needles = [];
  const lsn = /^([0-9a-f]{1,8})\/([0-9a-f]{1,8})$/i.exec(text);
  if (lsn) needles.push(fromHex(lsn[1].padStart(8, "0") + lsn[2].padStart(8, "0")));
  if (/^\d+$/.test(text) && Number(text) < 2 ** 32) needles.push(fromHex(Number(text).toString(16).padStart(8, "0")));
  const digits = /^(?:0x|\\x)([0-9a-f ]+)$/i.exec(text);
  if (digits) needles.push(fromHex(digits[1]) ?? new Uint8Array());
  return needles.filter((needle) => needle.length);
}

function includes(bytes, needle) {
  const last = bytes.length - needle.length;
  for (let at = bytes.indexOf(needle[0]); at >= 0 && at <= last; at = bytes.indexOf(needle[0], at + 1)) {
    let i = 1;
    while (i < needle.length && bytes[at + i] === needle[i]) i += 1;
    if (i === needle.length) return true;
  }
  return false;
}

/** The lower case of each ASCII letter, and each other byte as it is. */
const LOWER = Uint8Array.from({ length: 256 }, (_, byte) => (byte >= 0x41 && byte <= 0x5a ? byte + 0x20 : byte));

/** Return whether bytes contain a text, given as bytes in lower case; upper and lower case of ASCII letters are equal. */
function includesText(bytes, text) {
  const last = bytes.length - text.length;
  for (let at = 0; at <= last; at++) {
    let i = 0;
    while (i < text.length && LOWER[bytes[at + i]] === text[i]) i += 1;
    if (i === text.length) return true;
  }
  return false;
}
