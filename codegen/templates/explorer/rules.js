// The rules of order that the stream of every server obeys, with the names and texts of `pgoutput check`.

const CHANGES = ["insert", "update", "delete", "truncate"];
const OPENERS = ["begin", "begin_prepare", "open_block"];
const CLOSERS = ["commit", "prepare", "close_block"];
const FINISHES = ["commit_prepared", "rollback_prepared"];
const STREAM_ENDS = ["commit_streamed", "prepare_streamed"];
const FIRST_NORMAL_XID = 3;
const FIRST_USER_TYPE_OID = 10_000;
const MOST_GID_BYTES = 199;

/** By role: meaning of the LSN that must not be before the end of the last transaction. */
const ORDERED = { begin: "lsn", commit_streamed: "lsn", commit_prepared: "lsn", rollback_prepared: "end_lsn", abort_streamed: "lsn", payload: "lsn" };

/** By role: meaning of the LSN that must be before the end LSN. */
const STARTED = { commit: "lsn", commit_streamed: "lsn", commit_prepared: "lsn", begin_prepare: "lsn", prepare_streamed: "lsn", rollback_prepared: "prepare_end_lsn" };

const isTransactional = ({ transactional }) => transactional !== 0;
const named = ({ layout }, meaning) => layout.names[meaning] ?? "tag";
const describeOpen = ({ streamed, opener }) =>
  streamed ? `a stream block of transaction ${streamed.xid}` : opener ? `transaction ${opener.means.xid}` : "a transaction";

/** Return (path, OID) of each relation that a change names. */
function changedRelations(message) {
  const { relation, relations = [] } = message.means;
  if (relation !== undefined) return [[named(message, "relation"), relation]];
  return relations.map((oid, i) => [`${named(message, "relations")}[${i}]`, oid]);
}

/** Return why a subtransaction is not one of transaction `top`; null if it may be one. */
function notSubtransaction({ topXids, streamed }, top, subxid, path) {
  const owner = topXids.get(subxid);
  if (owner !== undefined && owner !== top) return [path, `${subxid} is a subtransaction of ${owner}, not of ${top}`];
  if (streamed.has(subxid)) return [path, `${subxid} is a transaction of its own, not a subtransaction of ${top}`];
  if ((subxid - top) >>> 0 < 2 ** 31 && subxid >= FIRST_NORMAL_XID) return null;
  return [path, `${subxid} is before ${top}, but subtransactions get later xids than their transaction`];
}

function notStreamed({ streamed, openerMissing }, { means: { xid } }) {
  return !streamed.has(xid) && !openerMissing && ["xid", `no block of transaction ${xid} was sent`];
}

function relationMissing(state, message) {
  const { relations, ignored, open } = state;
  const known = (oid) => relations.has(oid) || ignored.has(oid) || (open?.streamed && state.note(open.streamed).relations.has(oid));
  const missing = changedRelations(message).find(([, oid]) => !known(oid));
  return missing && [missing[0], `no Relation message has come for the OID ${missing[1]}`];
}

function relationMissingInBlock(state, message) {
  const { relations, ignored, open } = state;
  if (!open?.streamed) return null;
  const described = state.note(open.streamed).relations;
  const missing = changedRelations(message).find(([, oid]) => !described.has(oid) && relations.has(oid) && !ignored.has(oid));
  return missing && [missing[0], `no block of transaction ${open.streamed.xid} had the Relation message of the OID ${missing[1]}`];
}

/**
 * The rules in the order in which a message is checked: name, roles of the messages, and the check of a message.
 *
 * A check has the state before the message, and returns what is wrong as a path of a field and a text, or a value
 * that is not true. `when` says for which settings the rule is, `inBlocks` that it is for stream blocks only.
 */
const RULES = [
  { name: "transaction-open", on: ["begin", "begin_prepare", "open_block", "abort_streamed", ...STREAM_ENDS, ...FINISHES],
    check({ open }, { layout }) {
      if (!open || (!open.opener && !open.streamed && !open.changes)) return null;
      const nested = layout.role === "open_block" && open.streamed ? ", and blocks do not nest" : "";
      return ["tag", `${describeOpen(open)} is still open${nested}`];
    } },
  { name: "message-at-once", on: ["payload"],
    check: ({ open }, { means }) =>
      open && !isTransactional(means) && ["flags", `a non-transactional message occurs while ${describeOpen(open)} is open`] },
  { name: "change-in-transaction", on: CHANGES, check: ({ open }) => !open && ["tag", "no transaction is open"] },
  { name: "message-in-transaction", on: ["payload"],
    check: ({ open }, { means }) => !open && isTransactional(means) && ["flags", "the message is transactional, but no transaction is open"] },
  { name: "description-in-transaction", on: ["relation", "type"], check: ({ open }) => !open && ["tag", "no transaction is open"] },
  { name: "commit-without-begin", on: ["commit"],
    check({ open }) {
      if (!open) return ["tag", "no Begin has opened a transaction"];
      const fits = !open.streamed && (!open.opener || open.opener.layout.role === "begin");
      return !fits && ["tag", `Commit must follow Begin, but another message opened ${describeOpen(open)}`];
    } },
  { name: "commit-as-begun", on: ["commit"],
    check({ open }, message) {
      const begin = open?.opener;
      if (begin?.layout.role !== "begin") return null;
      const meaning = ["lsn", "time"].find((one) => begin.means[one] !== message.means[one]);
      const [expected, actual] = [begin, message].map(({ means }) => (meaning === "lsn" ? formatLsn(means.lsn) : means.time));
      return meaning && [named(message, meaning), `Begin has ${named(begin, meaning)} ${expected}, not ${actual}`];
    } },
  { name: "empty-transaction", on: ["commit"], when: ({ version }) => version >= 3,
    check: ({ open }) =>
      open?.changes === 0 && open.opener?.layout.role === "begin" &&
      ["tag", "the transaction has no change; servers with protocol version 3 do not send empty ones"] },
  { name: "origin-second", on: ["origin"],
    check({ open }) {
      if (!open) return ["tag", "no transaction is open"];
      const { opener, messages } = open;
      if (opener && messages) return ["tag", "Origin must directly follow the message that opens the transaction"];
      return opener?.means.first_block === false && ["tag", "Origin occurs only in the first stream block of a transaction"];
    } },
  { name: "stop-without-start", on: ["close_block"],
    check: ({ open }) => !open?.streamed && ["tag", open ? "a transaction is open, but no stream block" : "no stream block is open"] },
  { name: "first-segment", on: ["open_block"],
    check({ streamed, openerMissing }, message) {
      const { xid, first_block } = message.means;
      if (first_block === streamed.has(xid) && (first_block || !openerMissing)) {
        return [named(message, "first_block"), `transaction ${xid} has ${first_block ? "had its first block already" : "not had its first block"}`];
      }
      return null;
    } },
  { name: "end-of-streamed", on: STREAM_ENDS, check: notStreamed },
  { name: "abort-of-streamed", on: ["abort_streamed"],
    check: (state, message) => message.means.xid === message.means.subxid && notStreamed(state, message) },
  { name: "savepoint-of-streamed", on: ["abort_streamed"],
    check: ({ streamed, openerMissing }, { means: { xid, subxid } }) =>
      !streamed.has(xid) && xid !== subxid && !openerMissing &&
      ["xid", `no block of transaction ${xid}, whose savepoint is rolled back, was sent`] },
  { name: "origin-lsn-in-block", on: ["origin"], inBlocks: true,
    check: (_, message) => message.means.lsn && [named(message, "lsn"), `must be 0 in a stream block, not ${message.means.lsn}`] },
  { name: "streaming-off", on: ["open_block", "close_block", "abort_streamed", ...STREAM_ENDS], when: ({ streaming }) => streaming === "off",
    check: () => ["tag", "the option `streaming` was not requested"] },
  { name: "savepoint-xid", on: ["abort_streamed"],
    check(state, { means: { xid, subxid } }) {
      const transaction = state.streamed.get(xid);
      if (xid === subxid || !transaction) return null;
      if (state.note(transaction).aborted.has(subxid)) return ["subxid", `subtransaction ${subxid} is rolled back already`];
      return notSubtransaction(state, xid, subxid, "subxid");
    } },
  { name: "block-xid", on: [...CHANGES, "relation", "type"], inBlocks: true,
    check(state, { means: { subxid } }) {
      const { streamed, opener } = state.open ?? {};
      if (!streamed || !opener || subxid === undefined || subxid === streamed.xid) return null;
      const { aborted, subxids } = state.note(streamed);
      if (aborted.has(subxid)) return ["xid", `subtransaction ${subxid} is rolled back already`];
      return subxids.has(subxid) ? null : notSubtransaction(state, streamed.xid, subxid, "xid");
    } },
  { name: "message-xid", on: ["payload"], inBlocks: true,
    check({ open }, { means: { xid } }) {
      if (xid === undefined || !open?.streamed || !open.opener) return null;
      return xid !== open.streamed.xid && ["xid", `the block belongs to transaction ${open.streamed.xid}, not ${xid}`];
    } },
  { name: "xid-normal", on: [...OPENERS, ...FINISHES],
    check: (_, { means: { xid } }) => xid < FIRST_NORMAL_XID && ["xid", `transaction ids are ${FIRST_NORMAL_XID} or higher, not ${xid}`] },
  { name: "xid-in-use", on: OPENERS,
    check({ streamed, topXids, gidByXid }, { layout, means: { xid } }) {
      if (streamed.has(xid) && layout.role !== "open_block") return ["xid", `transaction ${xid} is being streamed and has not ended`];
      if (topXids.has(xid)) return ["xid", `${xid} is a subtransaction of ${topXids.get(xid)}, which has not ended`];
      const gid = gidByXid.get(xid);
      return gid !== undefined && ["xid", `transaction ${xid} is prepared as ${quote(gid)}, and has not ended`];
    } },
  { name: "two-phase-off", on: ["begin_prepare", "prepare", "prepare_streamed", ...FINISHES], when: ({ twoPhase }) => !twoPhase,
    check: () => ["tag", "the slot does not have two_phase set"] },
  { name: "prepare-without-begin", on: ["prepare"],
    check({ open }) {
      if (!open) return ["tag", "no Begin Prepare has opened a transaction"];
      const fits = !open.streamed && (!open.opener || open.opener.layout.role === "begin_prepare");
      return !fits && ["tag", "Prepare must follow Begin Prepare, but another message opened the transaction"];
    } },
  { name: "prepare-as-begun", on: ["prepare"],
    check({ open }, message) {
      const begin = open?.opener;
      if (begin?.layout.role !== "begin_prepare") return null;
      const meaning = ["lsn", "end_lsn", "time", "xid", "gid"].find((one) => begin.means[one] !== message.means[one]);
      const show = { lsn: formatLsn, end_lsn: formatLsn, gid: quote }[meaning] ?? String;
      const name = named(message, meaning);
      return meaning && [name, `Begin Prepare has ${name} ${show(begin.means[meaning])}, not ${show(message.means[meaning])}`];
    } },
  { name: "prepared-twice", on: ["prepare", "prepare_streamed"],
    check({ prepared, note }, { means: { gid } }) {
      const { prepare } = prepared.has(gid) ? note(prepared.get(gid)) : {};
      return prepare && ["gid", `transaction ${prepare.xid} is prepared as ${quote(gid)}, and has not ended`];
    } },
  { name: "resolved-twice", on: FINISHES,
    check: ({ finishedGids }, { means: { gid } }) =>
      finishedGids.has(gid) && ["gid", `the transaction prepared as ${quote(gid)} has ended already`] },
  { name: "resolved-as-prepared", on: FINISHES,
    check({ streamed, topXids, prepared, note }, { means }) {
      const { xid, gid, prepare_end_lsn: end, prepare_time: time } = means;
      if (streamed.has(xid) || topXids.has(xid)) return ["xid", `transaction ${xid} is being streamed and is not prepared`];
      if (!prepared.has(gid)) return null;
      const { prepare } = note(prepared.get(gid));
      if (xid !== prepare.xid) return ["xid", `transaction ${prepare.xid} is prepared as ${quote(gid)}, not ${xid}`];
      if (end !== undefined && end !== prepare.end_lsn) {
        return ["prepare_end_lsn", `Prepare has end_lsn ${formatLsn(prepare.end_lsn)}, not ${formatLsn(end)}`];
      }
      return time !== undefined && time !== prepare.time && ["prepare_time", `Prepare has prepare_time ${prepare.time}, not ${time}`];
    } },
  { name: "resolved-gid", on: FINISHES,
    check({ gidByXid, prepared }, { means: { xid, gid } }) {
      const expected = gidByXid.get(xid);
      const fits = expected === undefined || prepared.has(gid);
      return !fits && ["gid", `transaction ${xid} is prepared as ${quote(expected)}, not ${quote(gid)}`];
    } },
  { name: "gid-length", on: ["begin_prepare", "prepare_streamed", ...FINISHES],
    check(_, { means: { gid } }) {
      const size = encodeText(gid).length;
      return size > MOST_GID_BYTES && ["gid", `a gid has at most ${MOST_GID_BYTES} bytes, not ${size}`];
    } },
  { name: "commit-order", on: Object.keys(ORDERED),
    check({ lastLsn }, message) {
      const { layout: { role }, means } = message;
      const meaning = ORDERED[role];
      const lsn = means[meaning];
      if (lsn === undefined || (role === "payload" && isTransactional(means)) || (role === "abort_streamed" && !lsn)) return null;
      if (lsn > lastLsn || (lsn === lastLsn && role !== "payload")) return null;
      return [named(message, meaning), `${formatLsn(lsn)} is not after ${formatLsn(lastLsn)}, the end of the last transaction`];
    } },
  { name: "end-beyond-start", on: Object.keys(STARTED),
    check(_, message) {
      const { layout: { role }, means } = message;
      const start = means[STARTED[role]];
      return means.end_lsn <= start && [named(message, "end_lsn"), `${formatLsn(means.end_lsn)} is not after ${formatLsn(start)}`];
    } },
  { name: "prepare-order",
    on: ["begin", "open_block", "commit_streamed", "abort_streamed", "payload", "begin_prepare", "prepare", "prepare_streamed", ...FINISHES],
    check({ latePrepare }, { layout: { role }, means: { gid } }) {
      if (!latePrepare || (role === "commit_prepared" && gid === latePrepare.gid)) return null;
      return ["tag", `the Prepare of ${quote(latePrepare.gid)} has an LSN before the end of the last transaction, so its Commit Prepared ` +
        "must follow directly"];
    } },
  { name: "message-order", on: ["payload"],
    check({ open, note }, { means }) {
      const { lsn } = means;
      if (lsn === undefined || !isTransactional(means) || !open) return null;
      const last = open.streamed ? note(open.streamed).messageLsn : open.messageLsn;
      if (lsn <= last) return ["lsn", `${formatLsn(lsn)} is not after ${formatLsn(last)} of the previous logical message`];
      const end = open.opener?.means.lsn;
      return end !== undefined && lsn > end && ["lsn", `${formatLsn(lsn)} is after ${formatLsn(end)}, the end of its transaction`];
    } },
  { name: "message-before-end", on: STREAM_ENDS,
    check({ streamed, note }, message) {
      const { xid, lsn } = message.means;
      const last = streamed.has(xid) ? note(streamed.get(xid)).messageLsn : 0n;
      return lsn < last && [named(message, "lsn"), `${formatLsn(lsn)} is before ${formatLsn(last)} of its logical message`];
    } },
  { name: "relation-before-use", on: ["insert", "update", "delete"], check: relationMissing },
  { name: "relation-before-truncate", on: ["truncate"], check: relationMissing },
  { name: "relation-in-block", on: ["insert", "update", "delete"], inBlocks: true, check: relationMissingInBlock },
  { name: "truncate-in-block", on: ["truncate"], inBlocks: true, check: relationMissingInBlock },
  { name: "truncate-something", on: ["truncate"],
    check: (_, message) => !message.means.relations.length && [`${named(message, "relations")}.count`, "no relation is listed"] },
  { name: "truncate-once", on: ["truncate"],
    check(_, message) {
      const { relations } = message.means;
      const twice = relations.findIndex((oid, i) => relations.indexOf(oid) < i);
      return twice >= 0 && [`${named(message, "relations")}[${twice}]`, `the relation ${relations[twice]} is listed twice`];
    } },
  { name: "type-for-relation", on: [...OPENERS, ...CLOSERS, ...CHANGES, "payload", "origin"],
    check: ({ pendingTypes }) =>
      pendingTypes.length > 0 && ["tag", `the Relation for the Type message of ${pendingTypes.at(-1)} does not follow`] },
  { name: "type-built-in", on: ["type"],
    check: (_, { means: { oid } }) => oid < FIRST_USER_TYPE_OID && ["oid", `type ${oid} is built in and has no Type message`] },
];

/** Rules that the decoder checks. */
const DECODER_RULES = ["message", "envelope", "xid-in-blocks"];

/** Rules that only `pgoutput check` knows, by what they are about. */
const COMMAND_LINE_RULES = {
  "LSNs of XLogData": ["envelope-lsns-equal", "envelope-lsn-zero", "envelope-lsn", "envelope-as-message", "envelope-before-origin", "envelope-order"],
  "columns of Relation": ["type-before-relation", "key-flags", "names", "oid-valid"],
  "rows": ["column-count", "old-complete", "key-only", "key-complete", "replica-identity", "replica-identity-needed", "old-row-needed"],
  "options messages and binary": ["messages-off", "binary-off"],
};

/** Return a text in quotation marks, as Python's repr. */
function quote(text) {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", [mark]: `\\${mark}` };
  const escaped = text.replace(/[\\'"]|(?! )[\p{C}\p{Z}]/gu, (one) => {
    const code = one.codePointAt(0);
    if (short[one]) return short[one];
    if (one === "'" || one === '"') return one;
    const [letter, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${letter}${code.toString(16).padStart(digits, "0")}`;
  });
  return mark + escaped + mark;
}
