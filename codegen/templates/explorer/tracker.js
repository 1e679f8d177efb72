// Follows the transactions of a stream, as logicalrep's TransactionTracker with `lenient`.

/** What a message does to its transaction; a column of the index has the positions in this list. */
const MARKS = ["", "begin", "open", "close", "savepoint", "rollback", "prepare", "commit", "abort"];

class Tracker {
  constructor() {
    this.transactions = [];
    this.streamed = new Map();
    this.prepared = new Map();
    this.current = null;
    this.subtransactions = new Map();
    /** Position in MARKS of what the last message did. */
    this.marked = 0;
  }

  /** Follow a message; return its transaction, null for none. A missing first message is assumed to have come. */
  feed(row, layout, means) {
    this.row = row;
    this.layout = layout;
    this.marked = 0;
    const transaction = this[layout.role]?.(means) ?? null;
    if (transaction) Object.assign(transaction, { last: row, time: means.time ?? transaction.time });
    return transaction;
  }

  start(xid, kind) {
    const one = { id: this.transactions.length, xid, kind, gid: "", first: this.row, last: this.row, end: "", time: null };
    this.transactions.push(one);
    return one;
  }

  mark(transaction, kind) {
    this.marked = MARKS.indexOf(kind);
    return transaction;
  }

  finish(transaction, end) {
    transaction.end = end;
    this.subtransactions.delete(transaction);
    return this.mark(transaction, end);
  }

  begin({ xid, gid = "" }) {
    this.current = this.start(xid, this.layout.role === "begin" ? "whole" : "prepared");
    this.current.gid = gid;
    return this.mark(this.current, "begin");
  }

  begin_prepare(means) {
    return this.begin(means);
  }

  commit(means) {
    return this.finish(this.close(means), "commit");
  }

  prepare(means) {
    return this.keepPrepared(this.close(means), means.gid);
  }

  open_block({ xid }) {
    this.current = this.streamed.get(xid) ?? this.start(xid, "streamed");
    this.streamed.set(xid, this.current);
    return this.mark(this.current, "open");
  }

  close_block(means) {
    return this.mark(this.close(means), "close");
  }

  commit_streamed({ xid }) {
    return this.finish(this.endStreamed(xid), "commit");
  }

  prepare_streamed({ xid, gid }) {
    return this.keepPrepared(this.endStreamed(xid), gid);
  }

  abort_streamed({ xid, subxid }) {
    if (subxid === xid) return this.finish(this.endStreamed(xid), "abort");
    const transaction = this.streamed.get(xid);
    if (!transaction) return null; // PostgreSQL 18.0 to 18.4 send it for a subtransaction that was not streamed
    this.current = null;
    return this.mark(transaction, "rollback");
  }

  commit_prepared({ gid }) {
    const transaction = this.endPrepared(gid);
    return transaction && this.finish(transaction, "commit");
  }

  rollback_prepared({ gid }) {
    const transaction = this.endPrepared(gid);
    return transaction && this.finish(transaction, "abort");
  }

  change({ subxid }) {
    const transaction = this.current;
    if (!transaction || subxid === undefined || subxid === transaction.xid) return transaction;
    const known = this.subtransactions.get(transaction) ?? new Set();
    if (!known.has(subxid)) this.mark(transaction, "savepoint");
    this.subtransactions.set(transaction, known.add(subxid));
    return transaction;
  }

  insert(means) {
    return this.change(means);
  }

  update(means) {
    return this.change(means);
  }

  delete(means) {
    return this.change(means);
  }

  truncate(means) {
    return this.change(means);
  }

  payload(means) {
    return means.transactional === 0 ? null : this.change(means);
  }

  origin() {
    return this.current;
  }

  relation() {
    return this.current;
  }

  type() {
    return this.current;
  }

  close({ xid }) {
    const transaction = this.current ?? this.start(xid ?? 0, "whole");
    this.current = null;
    return transaction;
  }

  endStreamed(xid) {
    this.current = null;
    const transaction = this.streamed.get(xid) ?? this.start(xid, "streamed");
    this.streamed.delete(xid);
    return transaction;
  }

  keepPrepared(transaction, gid) {
    transaction.gid = gid;
    transaction.end = "prepare";
    transaction.prepared = this.row;
    this.prepared.set(gid, transaction);
    return this.mark(transaction, "prepare");
  }

  endPrepared(gid) {
    this.current = null;
    const transaction = this.prepared.get(gid) ?? null;
    this.prepared.delete(gid);
    return transaction;
  }
}
