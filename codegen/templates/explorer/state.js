// What the page shows, and the worker that makes it.

/** A filter that accepts all messages. `followed` is a message of the row whose changes are shown, -1 for all rows. */
const NO_FILTER = { tags: [], transaction: -1, problems: false, text: "", followed: -1 };

const state = {
  store: new Store(1),
  index: buildIndex(new Store(1), { version: LATEST, streaming: "off" }),
  settings: { version: LATEST, streaming: "off", twoPhase: false },
  format: "",
  /** What the file is damaged by, after its last message; "" for nothing. */
  damage: "",
  /** Numbers of edits that can be taken back, and done again. */
  past: 0,
  future: 0,
  /** Rows of the messages that the filter accepts; null for all. */
  rows: null,
  query: { ...NO_FILTER },
  /** Row of the message that is shown, and the number of its piece; -1 for none. */
  row: -1,
  piece: -1,
};

const listeners = [];

/** Call `listener` with the names of what changed: "stream", "rows", "row" or "piece". */
function onChange(listener) {
  listeners.push(listener);
}

function change(...names) {
  for (const listener of listeners) listener(names);
}

const worker = new Worker(
  URL.createObjectURL(new Blob([byId("core").textContent, byId("worker").textContent], { type: "text/javascript" })),
);
const pending = new Map();
let requests = 0;

worker.onmessage = ({ data: { id, result, error, part } }) => {
  const request = pending.get(id);
  if (part !== undefined) {
    request.progress(part);
    return;
  }
  pending.delete(id);
  byId("list").ariaBusy = String(pending.size > 0);
  if (error === undefined) request.resolve(result);
  else request.reject(new FileError(error));
};

/** Send a command to the worker; return its result. */
function ask(command, values = {}, transfer = []) {
  const id = requests++;
  return new Promise((resolve, reject) => {
    const progress = (part) => say("Reading …", part);
    pending.set(id, { resolve, reject, progress });
    byId("list").ariaBusy = "true";
    worker.postMessage({ id, command, ...values }, transfer);
  });
}

/** What the status line tells of the stream. */
let summary = "";

/**
 * Show another stream, the result of a command of the worker; an error is told, and changes nothing.
 *
 * Shows the message `row`, and in it the last piece with the path `path`.
 */
async function load(command, values = {}, { row = 0, path = null } = {}) {
  byId("problem").textContent = "";
  try {
    const { store, ...result } = await ask(command, values, values.bytes && command === "open" ? [values.bytes.buffer] : []);
    Object.assign(state, result, { store: Object.assign(new Store(1), store), rows: null });
    state.row = Math.min(result.row ?? row, state.store.count - 1);
    state.piece = path === null || state.row < 0 ? -1 : explainRow(state.store, state.index, state.row).pieces.findLastIndex((one) => one.path === path);
    if (command === "open") state.query = { ...NO_FILTER };
    if (command !== "open" && isFiltered()) state.rows = await ask("filter", { query: state.query });
    const problems = state.index.errorCount + state.index.outOfPlaceCount;
    const parts = [counted(state.store.count, "message"), counted(state.index.list.length, "transaction")];
    summary = `${state.format}: ${parts.join(", ")}, ${problems ? counted(problems, "problem") : "no problem"}`;
    say(summary);
    if (state.damage) byId("problem").textContent = `The file is damaged after message ${state.store.count}: ${state.damage}`;
    change("stream", "rows", "row", "piece");
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    say(summary);
    byId("problem").textContent = error.message;
  }
}

function isFiltered() {
  const { tags, transaction, problems, text, followed } = state.query;
  return tags.length > 0 || transaction >= 0 || problems || text !== "" || followed >= 0;
}

/** Show only the messages that a filter accepts; `query` has what changes in it. */
async function filter(query) {
  Object.assign(state.query, query);
  const rows = isFiltered() ? await ask("filter", { query: state.query }) : null;
  state.rows = rows;
  if (rows?.length && !rows.includes(state.row)) select(rows[0]);
  change("rows");
}

/** Show a message. */
function select(row, piece = -1) {
  state.row = row;
  state.piece = piece;
  change("row", "piece");
}

/** Show a piece of the message. */
function selectPiece(piece) {
  state.piece = piece;
  change("piece");
}

/** Return the error of a message: it cannot be decoded, or breaks a rule of order; "" for none. */
function problemOf(row) {
  if (!(state.index.flags[row] & (FAILED | OUT_OF_PLACE))) return "";
  const { rule, text } = state.index.errors.get(row) ?? { rule: "message", text: explainRow(state.store, state.index, row).error?.message };
  if (rule === "message") return text ?? "the message is out of place";
  return `${text} (${rule})`;
}
