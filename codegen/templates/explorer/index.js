// The index of a stream: for each message its tag, transaction, relation and state, in arrays of numbers.

const IN_STREAM = 1;
const FAILED = 2; // the message cannot be decoded
const OUT_OF_PLACE = 4; // the message breaks a rule of order
const HAS_BINARY = 8; // the message has cells in binary format

/** The bit in the column `tags` of messages of the replication protocol that carry none of the plugin. */
const OUTER = 0x80;

/** Return the kinds of messages: the name and title of each, and its value in the column `tags`. */
function listKinds() {
  const own = VERSIONS.get(LATEST).messages.map(({ name, title, tag }) => ({ name, title, tag: tag.charCodeAt(0) }));
  const outer = ENVELOPE.messages.filter(({ name }) => name !== "XLogData");
  return [...own, ...outer.map(({ name, title, tag }) => ({ name, title, tag: OUTER | tag.charCodeAt(0) }))];
}

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
 * describes its columns, -1 for none; `transactions` the numbers of their transactions, -1 for none; `types` the
 * names of the types in Type messages, by OID; `streaming` is the option of the stream.
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
    types: new Map(),
    streaming: settings.streaming,
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
      index.tags[row] = OUTER | store.bytes(row)[0];
      const error = checkEnvelope(store.channel(row), store.bytes(row));
      if (error) report(row, FAILED, error);
      continue;
    }
    index.tags[row] = data[0];
    if (checker.inStream) index.flags[row] |= IN_STREAM;
    try {
      const { layout, means, transaction, violation, inStream } = checker.feed(row, data);
      index.flags[row] = (inStream ? IN_STREAM : 0) | (hasBinary(means) ? HAS_BINARY : 0);
      index.versions[row] = layout.version;
      if (violation) report(row, OUT_OF_PLACE, violation);
      index.transactions[row] = transaction?.id ?? -1;
      index.marks[row] = checker.tracker.marked;
      if (layout.role === "relation") relations.set(means.oid, row);
      if (layout.role === "type") index.types.set(means.oid, means.name);
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

function hasBinary({ new: after, old, key }) {
  return [after, old, key].some((cells) => cells?.some((cell) => cell instanceof Uint8Array));
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
