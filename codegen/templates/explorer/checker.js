// Checks the order of a stream's messages, as the Python class Checker does: this file has the state, and the spec has the rules.

/** The first protocol version with stream blocks. */
const FIRST_WITH_BLOCKS = Math.min(...[...VERSIONS.values()].filter(({ messages }) => messages.some(({ role }) => role === "open_block")).map(({ version }) => version));

class Checker {
  constructor(settings) {
    this.settings = settings;
    this.decoder = newDecoder(settings);
    this.tracker = new Tracker();
    this.streamed = this.tracker.streamed;
    this.prepared = this.tracker.prepared;
    /** The open transaction or stream block, null for none; its `opener` is null if that is missing. */
    this.open = null;
    /** Rows of the Relation messages that are in effect outside stream blocks, by OID. */
    this.relations = new Map();
    /** OIDs of relations for which a broken rule was reported. */
    this.ignored = new Set();
    this.topXids = new Map();
    this.gidByXid = new Map();
    this.finishedGids = new Set();
    this.lastLsn = 0n;
    this.latePrepare = null;
    this.pendingTypes = [];
    this.openerMissing = false;
    const notes = new WeakMap();
    /** Return the checker's own state of a transaction. None is `resent`: the page shows one connection. */
    this.note = (transaction) => {
      if (!notes.has(transaction)) {
        notes.set(transaction, { relations: new Map(), subxids: new Set(), aborted: new Set(), messageLsn: 0n, prepare: null, resent: false });
      }
      return notes.get(transaction);
    };
    const used = RULES.filter(({ when }) => !when || when(settings));
    /** The rules by role, outside stream blocks and inside. */
    this.rules = [used.filter(({ inBlocks }) => !inBlocks), used].map((rules) => {
      const roles = new Set(rules.flatMap(({ on }) => on));
      return Object.fromEntries([...roles].map((role) => [role, rules.filter(({ on }) => on.includes(role))]));
    });
  }

  /** LSN of the last logical message in the open transaction; 0 for none. */
  get messageLsn() {
    if (!this.open) return 0n;
    const { streamed } = this.open;
    return (streamed ? this.note(streamed) : this.open).messageLsn;
  }

  /** Return the values of the message that prepared a transaction, by its gid; null for none. */
  prepareOf(gid) {
    return this.prepared.has(gid) ? this.note(this.prepared.get(gid)).prepare : null;
  }

  get inStream() {
    return this.decoder.inStream;
  }

  /**
   * Read the next message; return it with its transaction, and the rule that it breaks: null, or its name and a text.
   *
   * `inStream` says whether the message was read as in a stream block. Raises DecodeError.
   */
  feed(row, data) {
    this.tracker.row = row;
    let { inStream } = this;
    let message;
    let violation = null;
    try {
      message = withMeanings(this.decoder.layoutOf(data), this.decoder.decode(data));
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      this.decoder.inStream = inStream; // the xid of the block that a damaged Stream Start opens is unknown
      ({ message, violation, inStream } = this.readElsewhere(data, error));
    }
    violation ??= this.check(message);
    if (violation) this.suppressRepeats(message);
    const transaction = this.apply(row, message) ?? this.open?.streamed ?? null;
    this.decoder.inStream = Boolean(this.open?.streamed);
    return { ...message, transaction, violation, inStream };
  }

  check(message) {
    const { layout } = message;
    for (const { name, check } of this.rules[Number(this.inStream)][layout.role] ?? []) {
      const found = check(this, message);
      if (!found) continue;
      const [field, text] = found;
      return { rule: name, text: `${layout.name}${field === "tag" ? "" : `.${field}`}: ${text}` };
    }
    return null;
  }

  /** Read a message that is valid inside stream blocks only, or outside only, in the wrong place. Raises `error`. */
  readElsewhere(data, error) {
    const { version, streaming } = this.settings;
    let message;
    try {
      const elsewhere = layoutOf(VERSIONS.get(Math.max(version, FIRST_WITH_BLOCKS)), data);
      message = withMeanings(elsewhere, decodeMessage(elsewhere, data, !this.inStream, streaming));
    } catch {
      throw error;
    }
    const { layout, means } = message;
    const hasBlocks = version >= FIRST_WITH_BLOCKS;
    const found = { message, violation: null, inStream: !this.inStream };
    if (["open_block", "close_block"].includes(layout.role) && hasBlocks) return found; // a rule reports it
    if (layout.role === "abort_streamed" && means.subxid !== means.xid) return found; // bug 19616 of PostgreSQL 18.0 to 18.4
    const field = layout.fields.find(({ when }) => when === "in_stream");
    if (!field) throw error;
    const xid = means[field.means];
    if (xid === undefined) {
      found.violation = { rule: "xid-in-blocks", text: `a stream block is open, but ${layout.name} has no ${field.name}` };
      return found;
    }
    found.violation = { rule: "xid-in-blocks", text: `no stream block is open, but ${layout.name} has an ${field.name}, ${xid}` };
    if (!this.open && hasBlocks) this.openBlock(xid);
    return found;
  }

  /** Open a stream block for a message with an xid, whose Stream Start is missing. */
  openBlock(xid) {
    const top = this.topXids.get(xid) ?? xid;
    if (!this.streamed.has(top)) this.streamed.set(top, this.tracker.start(xid, "streamed"));
    this.opened(null, this.streamed.get(top));
    this.openerMissing = true;
  }

  opened(opener, streamed = null) {
    this.open = { opener, streamed, messages: 0, changes: 0, messageLsn: 0n };
  }

  /** Keep later messages from breaking a rule because this one does. */
  suppressRepeats({ layout, means }) {
    if (["relation", "type"].includes(layout.role) && !this.open) this.opened(null);
    if (means.relation !== undefined) this.ignored.add(means.relation);
    for (const oid of means.relations ?? []) this.ignored.add(oid);
  }

  /** Update the state with a message, whether it breaks a rule or not; return its transaction, null for none. */
  apply(row, message) {
    const { layout, means } = message;
    const { role } = layout;
    if (this.open) this.open.messages += 1;
    if (this.pendingTypes.length && role !== "relation" && role !== "type") this.pendingTypes = [];
    this.latePrepare = null;
    this.forgetReplaced(role, means);
    const transaction = this.tracker.feed(row, layout, means);
    this[role]?.(means, transaction, message, row);
    return transaction;
  }

  /** Forget what a message out of order replaces: a prepare with the same gid, or a missing Stream Start. */
  forgetReplaced(role, { xid, gid, first_block }) {
    if (["open_block", "commit_streamed", "prepare_streamed", "abort_streamed"].includes(role) && !this.streamed.has(xid)) {
      this.openerMissing &&= role === "open_block" && first_block;
    }
    const replaced = ["prepare", "prepare_streamed"].includes(role) && this.prepared.get(gid);
    if (replaced) this.gidByXid.delete(this.note(replaced).prepare.xid);
  }

  forgetSubtransactions(transaction) {
    for (const subxid of this.note(transaction).subxids) this.topXids.delete(subxid);
  }

  addSubtransaction(xid) {
    const streamed = this.open?.streamed;
    if (!streamed || xid === undefined || xid === streamed.xid || this.topXids.has(xid)) return;
    this.topXids.set(xid, streamed.xid);
    this.note(streamed).subxids.add(xid);
  }

  // What messages do, by their roles

  begin(means, transaction, message) {
    this.opened(message);
  }

  begin_prepare(means, transaction, message) {
    this.opened(message);
  }

  open_block(means, transaction, message) {
    this.opened(message, transaction);
  }

  close_block() {
    this.open = null;
  }

  commit({ end_lsn }) {
    this.open = null;
    this.lastLsn = end_lsn;
  }

  commit_streamed({ end_lsn }, transaction) {
    this.forgetSubtransactions(transaction);
    for (const [oid, row] of this.note(transaction).relations) {
      if (!(this.relations.get(oid) >= row)) this.relations.set(oid, row);
    }
    this.commit({ end_lsn });
  }

  commit_prepared({ end_lsn, gid }, transaction) {
    if (transaction) this.gidByXid.delete(this.note(transaction).prepare.xid);
    this.finishedGids.add(gid);
    this.commit({ end_lsn });
  }

  rollback_prepared(means, transaction) {
    this.commit_prepared(means, transaction);
  }

  prepare(means, transaction) {
    this.open = null;
    this.forgetSubtransactions(transaction);
    this.note(transaction).prepare = means;
    this.gidByXid.set(means.xid, means.gid);
    this.finishedGids.delete(means.gid);
    if (means.lsn < this.lastLsn) this.latePrepare = means;
    else this.lastLsn = means.end_lsn;
  }

  prepare_streamed(means, transaction) {
    this.prepare(means, transaction);
  }

  abort_streamed({ xid, subxid, lsn }, transaction) {
    if (lsn) this.lastLsn = lsn;
    if (!transaction) return;
    this.open = null;
    if (xid === subxid) {
      this.forgetSubtransactions(transaction);
      return;
    }
    const note = this.note(transaction);
    note.aborted.add(subxid);
    if (!this.topXids.has(subxid)) this.topXids.set(subxid, transaction.xid);
    note.subxids.add(subxid);
    note.relations = new Map(); // the server sends the relations again (pgoutput_stream_abort)
  }

  change({ subxid }) {
    if (!this.open) this.opened(null);
    this.open.changes += 1;
    if (this.open.streamed) this.addSubtransaction(subxid);
  }

  insert(means) {
    this.change(means);
  }

  update(means) {
    this.change(means);
  }

  delete(means) {
    this.change(means);
  }

  truncate(means) {
    this.change(means);
  }

  payload(means, transaction, message) {
    const lsn = means.lsn ?? 0n;
    if (!isTransactional(message)) {
      this.lastLsn = lsn || this.lastLsn;
      return;
    }
    this.change({});
    const { streamed } = this.open;
    (streamed ? this.note(streamed) : this.open).messageLsn = lsn;
  }

  relation({ oid, subxid }, transaction, message, row) {
    const streamed = this.open?.streamed;
    if (streamed) this.addSubtransaction(subxid);
    (streamed ? this.note(streamed).relations : this.relations).set(oid, row);
    this.ignored.delete(oid);
    this.pendingTypes = [];
  }

  type({ oid, subxid }) {
    this.pendingTypes.push(oid);
    this.addSubtransaction(subxid);
  }
}
