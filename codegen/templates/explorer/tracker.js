// Follows the transactions of a stream. The rules and their texts are those of pgoutput's TransactionTracker.

const OPENERS = { begin: "commit", begin_prepare: "prepare", open_block: "close_block" };

/** What a message does to its transaction; a column of the index has the positions in this list. */
const MARKS = ["", "begin", "open", "close", "savepoint", "rollback", "prepare", "commit", "abort"];

class Tracker {
  /** `report` is called with a row and the text of the rule that its message breaks. */
  constructor(report) {
    this.report = report;
    this.transactions = [];
    this.streamed = new Map();
    this.prepared = new Map();
    this.current = null;
    this.closer = "";
    this.subtransactions = new Map();
    /** Position in MARKS of what the last message did. */
    this.marked = 0;
  }

  /** Follow a message; return its transaction, null for none. A rule that the message breaks is only reported. */
  feed(row, layout, means) {
    this.row = row;
    this.layout = layout;
    this.marked = 0;
    const transaction = this[layout.role]?.(means) ?? null;
    if (transaction) transaction.last = row;
    return transaction;
  }

  refuse(text) {
    this.report(this.row, `${this.layout.name}: ${text}`);
  }

  start(xid, kind) {
    const opener = this.layout.role in OPENERS ? this.layout.name : "NoneType";
    const one = { id: this.transactions.length, xid, kind, opener, gid: "", first: this.row, last: this.row, end: "" };
    this.transactions.push(one);
    return one;
  }

  mark(transaction, kind) {
    this.marked = MARKS.indexOf(kind);
    return transaction;
  }

  requireNoneOpen() {
    if (this.current) this.refuse(`transaction ${this.current.xid} is still open`);
  }

  requireStreamed(xid) {
    if (!this.streamed.has(xid)) this.refuse(`transaction ${xid} has not had its first block`);
  }

  requireOpen() {
    if (!this.current) this.refuse("no transaction is open");
    return this.current;
  }

  finish(transaction, end) {
    transaction.end = end;
    this.subtransactions.delete(transaction);
    return this.mark(transaction, end);
  }

  begin({ xid, gid = "" }) {
    this.requireNoneOpen();
    this.closer = OPENERS[this.layout.role];
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
    this.requireUnusedGid(means.gid);
    return this.keepPrepared(this.close(means), means.gid);
  }

  open_block({ xid, first_block }) {
    const known = this.streamed.get(xid);
    if (first_block && known) this.refuse(`transaction ${xid} has had its first block already`);
    if (!first_block) this.requireStreamed(xid);
    this.requireNoneOpen();
    const transaction = known ?? this.start(xid, "streamed");
    this.streamed.set(xid, transaction);
    this.current = transaction;
    this.closer = "close_block";
    return this.mark(transaction, "open");
  }

  close_block(means) {
    return this.mark(this.close(means), "close");
  }

  commit_streamed({ xid }) {
    return this.finish(this.endStreamed(xid), "commit");
  }

  prepare_streamed({ xid, gid }) {
    this.requireUnusedGid(gid);
    return this.keepPrepared(this.endStreamed(xid), gid);
  }

  abort_streamed({ xid, subxid }) {
    if (subxid === xid) return this.finish(this.endStreamed(xid), "abort");
    const transaction = this.streamed.get(xid);
    if (!transaction) return null; // PostgreSQL 18.0 to 18.4 send it for a subtransaction that was not streamed
    this.requireNoneOpen();
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
    const transaction = this.requireOpen();
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
    return this.requireOpen();
  }

  relation() {
    return this.current;
  }

  type() {
    return this.current;
  }

  close({ xid }) {
    const transaction = this.current ?? this.requireOpen();
    const { role } = this.layout;
    if (!transaction || role !== this.closer) {
      const openers = Object.keys(OPENERS).filter((one) => OPENERS[one] === role);
      const names = VERSIONS.get(LATEST).messages.filter((one) => openers.includes(one.role)).map(({ name }) => name);
      const there = transaction ? transaction.opener : "no message";
      this.refuse(`must follow ${names.join(" or ")}, but ${there} opened transaction ${transaction?.xid ?? "None"}`);
    }
    this.current = null;
    return transaction ?? this.start(xid ?? 0, "whole");
  }

  endStreamed(xid) {
    this.requireStreamed(xid);
    this.requireNoneOpen();
    this.current = null;
    const transaction = this.streamed.get(xid) ?? this.start(xid, "streamed");
    this.streamed.delete(xid);
    return transaction;
  }

  requireUnusedGid(gid) {
    if (this.prepared.has(gid)) this.refuse(`a transaction is prepared as '${gid}' already`);
  }

  keepPrepared(transaction, gid) {
    transaction.gid = gid;
    transaction.end = "prepare";
    transaction.prepared = this.row;
    this.prepared.set(gid, transaction);
    return this.mark(transaction, "prepare");
  }

  endPrepared(gid) {
    this.requireNoneOpen();
    this.current = null;
    const transaction = this.prepared.get(gid) ?? null;
    this.prepared.delete(gid);
    return transaction;
  }
}
