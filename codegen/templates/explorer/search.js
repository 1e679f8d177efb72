// Filters the messages of a stream: by kind, transaction, problem, text, and the row that they change.

/** Return the rows of the messages that a filter accepts. */
function filterRows(store, index, { tags, transaction, problems, text, followed = -1 }) {
  const wanted = new Set(tags);
  const isFound = text ? searcher(store, index, text) : () => true;
  const chain = followed >= 0 ? followRow(store, index, followed) : null;
  const rows = new Uint32Array(index.count);
  let found = 0;
  for (let row = 0; row < index.count; row++) {
    if (wanted.size && !wanted.has(index.tags[row])) continue;
    if (transaction >= 0 && index.transactions[row] !== transaction) continue;
    if (problems && !(index.flags[row] & (FAILED | OUT_OF_PLACE))) continue;
    if (chain && !chain.has(row)) continue;
    if (isFound(row)) rows[found++] = row;
  }
  return rows.slice(0, found);
}

/** Return a function that tells whether a text is a message's kind or table, or in one of its values. */
function searcher(store, index, text) {
  const relations = remember((row) => relationAt(store, index, row));
  const isNamed = namedMessages(index, relations, text);
  const raw = fromHex(/^(?:0x|\\x)([0-9a-f ]+)$/i.exec(text)?.[1] ?? "");
  const digits = /^(?:(?:sub)?xid[ :]+)?(\d+)$/i.exec(text)?.[1];
  const xid = digits ? Number(digits) : -1;
  const lsn = /^[0-9a-f]{1,8}\/[0-9a-f]{1,8}$/i.test(text) ? parseLsn(text) : -1n;
  const wanted = text.toLowerCase();
  const isWanted = (piece, column) => {
    if (piece.type === "xid") return piece.value === xid;
    if (piece.type === "lsn") return piece.value === lsn;
    const value = piece.kind === "cell" ? cellText(piece, column) : SIGNS.includes(piece.kind) ? null : piece.value;
    const found = value instanceof Uint8Array ? decodeText(value) : value;
    return typeof found === "string" && found.toLowerCase().includes(wanted);
  };
  const isPossible = quickTest(text, xid, lsn);
  return (row) => {
    if (isNamed(row) || (raw?.length && includes(store.bytes(row), raw, SAME))) return true;
    const { flags, descriptions } = index;
    if (!(flags[row] & HAS_BINARY) && !isPossible(store.bytes(row))) return false;
    if (flags[row] & FAILED) return true;
    const columns = isChange(index, row) ? relations(descriptions[row]).columns : [];
    return explainRow(store, index, row).pieces.some((piece) => isWanted(piece, columns[cellPlace(piece)?.number]));
  };
}

/** Kinds of pieces whose value is one letter that says what follows. */
const SIGNS = ["tag", "side", "celltag", "enum"];

/** Return a fast function that is false for bytes that do not contain a text, LSN or xid in any form. */
function quickTest(text, xid, lsn) {
  const needles = [];
  if (lsn >= 0n) needles.push(fromHex(lsn.toString(16).padStart(16, "0")));
  if (xid >= 0 && xid < 2 ** 32) needles.push(fromHex(xid.toString(16).padStart(8, "0")));
  const longest = text.match(/[\0-\x7f]+/g)?.reduce((a, b) => (a.length < b.length ? b : a)) ?? "";
  const letters = new TextEncoder().encode(longest).map((byte) => LOWER[byte]);
  return (bytes) => includes(bytes, letters, LOWER) || needles.some((needle) => includes(bytes, needle, SAME));
}

/** Return a function that tells whether a text is the kind of a message, or its table's name, with or without schema. */
function namedMessages(index, relations, text) {
  const wanted = text.toLowerCase();
  const kinds = listKinds().filter(({ name, title }) => [name, title].some((one) => one.toLowerCase() === wanted));
  const tags = new Set(kinds.map(({ tag }) => tag));
  const isTable = remember((row) => {
    const { namespace, name } = relations(row);
    return [name, `${namespace}.${name}`].some((one) => one.toLowerCase() === wanted);
  });
  return (row) => tags.has(index.tags[row]) || (index.descriptions[row] >= 0 && isTable(index.descriptions[row]));
}

/** Return a function that calls another one once for each argument. */
function remember(use) {
  const results = new Map();
  return (value) => {
    if (!results.has(value)) results.set(value, use(value));
    return results.get(value);
  };
}

const SAME = Uint8Array.from({ length: 256 }, (_, byte) => byte);

/** The lower case of each ASCII letter, and each other byte as it is. */
const LOWER = SAME.map((byte) => (byte >= 0x41 && byte <= 0x5a ? byte + 0x20 : byte));

/** Return whether bytes, each replaced by that of a table, contain other bytes. */
function includes(bytes, needle, table) {
  const last = bytes.length - needle.length;
  for (let at = 0; at <= last; at++) {
    let i = 0;
    while (i < needle.length && table[bytes[at + i]] === needle[i]) i += 1;
    if (i === needle.length) return true;
  }
  return false;
}

/**
 * Return the rows of the messages that change the row that a message changes, before it and after it.
 *
 * The row is followed through changes of its key, and to a row that is inserted with the same key after it was
 * deleted. What is rolled back, with a transaction or a savepoint, is left out, unless the message is part of it.
 */
function followRow(store, index, start) {
  const found = new Set();
  const relations = remember((row) => relationAt(store, index, row));
  const { list, transactions, descriptions } = index;
  const rolledBack = new Set(); // transaction and xid of each subtransaction
  index.marks.forEach((mark, row) => {
    if (MARKS[mark] === "rollback") rolledBack.add(`${transactions[row]} ${valuesOf(store, index, row).get("subxid")}`);
  });
  const keysAt = (row) => {
    if (!isChange(index, row)) return null;
    const { oid, columns } = relations(descriptions[row]);
    return oid === relations(descriptions[start]).oid ? keysOf(store, index, row, columns) : null;
  };
  const first = keysAt(start);
  if (!first?.before) return found;
  const isAborted = (row, part) => part !== first.part && (list[transactions[row]]?.end === "abort" || rolledBack.has(part));
  found.add(start);
  const step = (direction, from, to) => {
    let key = first[to];
    for (let row = start + direction; row >= 0 && row < index.count; row += direction) {
      const keys = keysAt(row);
      if (!keys || isAborted(row, keys.part) || (keys[from] !== key && keys[to] !== key)) continue;
      if (keys[from] !== key) return; // another row had the key on the other side of this message
      found.add(row);
      key = keys[to];
    }
  };
  step(1, "before", "after");
  step(-1, "after", "before");
  return found;
}

/**
 * Return the key of a change's row before it and after it, as JSON, and the transaction and xid that it is `part` of.
 *
 * A key is the values of the key columns in their order, so that it survives other names. Of REPLICA IDENTITY FULL
 * it is all values that are not null with their names, so that it survives new columns.
 */
function keysOf(store, index, row, columns) {
  const tuples = {};
  const { pieces } = explainRow(store, index, row);
  const xid = pieces.findLast(({ path }) => path === "xid")?.value;
  for (const piece of pieces) {
    const { tuple, number } = cellPlace(piece) ?? {};
    const { type, value } = piece;
    if (tuple) (tuples[tuple] ??= [])[number] = type === "binary" ? toHex(value) : type === "unchanged" ? UNCHANGED : value;
  }
  const { old, key = old, new: after } = tuples;
  const isWhole = columns.every(({ isKey }) => isKey === columns[0].isKey);
  const used = columns.flatMap(({ isKey, name }, i) => (isWhole || isKey ? [[i, isWhole ? name : ""]] : []));
  const text = (values) =>
    values && JSON.stringify(used.flatMap(([i, name]) => (values[i] === null ? [] : [name, values[i]])));
  const whole = after?.map((value, i) => (value === UNCHANGED ? (old?.[i] ?? null) : value));
  return { before: text(key ?? whole), after: text(whole ?? key), part: `${index.transactions[row]} ${xid}` };
}
