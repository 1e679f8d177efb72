// Joins the parts of the page: draws the message, lights up what belongs together, and listens to the controls.

/** The message that is drawn: its pieces, layout and error. */
let shown = { pieces: [], layout: null, error: null };

/** Number of the piece under the pointer; -1 for none. */
let hovered = -1;

function drawMessage() {
  const { row, store } = state;
  byId("message").hidden = row < 0;
  if (row < 0) return;
  const data = store.bytes(row);
  shown = explainRow(store, state.index, row);
  const layout = shown.layout ?? shown.outer;
  byId("message-title").textContent = `${row + 1}. ${titleOf(row)}`;
  byId("message-doc").textContent = layout?.doc ?? "";
  const at = layout && layout.version !== null ? placesOf(layout) : "";
  byId("message-place").textContent = [
    counted(data.length, "byte"),
    describeTransaction(row),
    shown.context.inStream ? "in a stream block" : "",
    at && `comes ${at}`,
  ].filter(Boolean).join(" · ");
  byId("message-problem").textContent = problemOf(row);
  byId("only").hidden = state.index.transactions[row] < 0;
  const columns = columnsAt(row);
  byId("follow").hidden = !columns.length || !shown.pieces.some(cellPlace);
  byId("in-block").checked = shown.context.inStream;
  drawHex(shown, data);
  drawTuples(shown, columns);
  drawTree(shown, columns);
  drawSpec(layout, shown.pieces);
  drawVersions(payloadOf(store.channel(row), data));
}

/** Return the numbers of the pieces that belong to an element of the page. */
function piecesOf(element) {
  const one = element.closest("[data-piece], [data-line], [data-source]");
  if (!one) return [];
  const { piece, line, source } = one.dataset;
  if (piece !== undefined) return [Number(piece)];
  return shown.pieces.flatMap((found, i) => (found.source === source || found.line === Number(line) ? [i] : []));
}

/** Light up pieces of the message in its bytes, its fields, the spec and the server's functions. */
function light(numbers, name) {
  const pieces = numbers.map((i) => shown.pieces[i]).filter(Boolean);
  const lines = new Set(pieces.map(({ line }) => String(line)));
  const sources = new Set(pieces.map(({ source }) => source));
  const own = new Set(numbers.map(String));
  for (const element of byId("message").querySelectorAll("[data-piece], [data-line], [data-source]")) {
    const { piece, line, source } = element.dataset;
    element.classList.toggle(name, own.has(piece) || lines.has(line) || sources.has(source));
  }
}

function drawPiece() {
  const { piece } = state;
  light(piece < 0 ? [] : [piece], "chosen");
  for (const box of [hex, tree]) {
    const chosen = box.querySelector(`[data-piece="${piece}"]`);
    for (const element of box.querySelectorAll("[aria-selected=true]")) element.setAttribute("aria-selected", "false");
    if (chosen) {
      chosen.setAttribute("aria-selected", "true");
      box.setAttribute("aria-activedescendant", chosen.id);
      scrollInside(box, chosen);
    } else {
      box.removeAttribute("aria-activedescendant");
    }
  }
  const line = byId("yaml").querySelector(".chosen");
  if (line) scrollInside(byId("yaml"), line);
  if (state.row >= 0) drawEditor(shown.pieces[piece]);
}

/** Scroll a box, not the page, so that an element in it is visible. */
function scrollInside(box, element) {
  const [outer, inner] = [box.getBoundingClientRect(), element.getBoundingClientRect()];
  if (inner.top < outer.top) box.scrollTop += inner.top - outer.top;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom;
}

function drawControls() {
  byId("version").value = state.settings.version;
  byId("streaming").value = state.settings.streaming;
  byId("two-phase").checked = state.settings.twoPhase;
  byId("undo").disabled = !state.past;
  byId("redo").disabled = !state.future;
  byId("search").value = state.query.text;
  byId("problems").checked = state.query.problems;
  byId("kind").value = String(state.query.tags);
  byId("transaction").hidden = state.query.transaction < 0;
  byId("followed").hidden = state.query.followed < 0;
  const one = state.index.list[state.query.transaction];
  if (one) byId("transaction").textContent = `transaction ${one.xid} ×`;
}

/** Open the example of a version, or of the replication protocol (0), at its first message with a name. */
function openExample(version, name = "") {
  const { streaming = "off", two_phase = false, messages } = SPEC.versions[version]?.example ?? {};
  const lines = messages?.map((data) => ({ data })) ?? SPEC.envelope.example;
  const header = { proto_version: version || LATEST, options: { streaming }, slot_two_phase: two_phase };
  const text = [header, ...lines].map((line) => JSON.stringify(line)).join("\n");
  const tag = (VERSIONS.get(version) ?? ENVELOPE).byName.get(name)?.tag ?? "";
  const row = lines.findIndex((line) => Object.values(line)[0].startsWith(toHex(encodeText(tag))));
  return load("open", { bytes: new TextEncoder().encode(text), settings: state.settings }, { row });
}

async function openFile(file) {
  say(`Reading ${file.name} …`, 0);
  await load("open", { bytes: new Uint8Array(await file.arrayBuffer()), settings: { ...state.settings } });
}

function applySettings() {
  const settings = {
    ...state.settings, version: Number(byId("version").value), streaming: byId("streaming").value,
    twoPhase: byId("two-phase").checked,
  };
  load("apply", { settings }, { row: state.row, path: shown.pieces[state.piece]?.path });
}

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text]));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Show the next message with a problem, after the message that is shown. */
function nextProblem() {
  const { flags } = state.index;
  const bad = (_, i) => flags[(state.row + 1 + i) % flags.length] & (FAILED | OUT_OF_PLACE);
  const found = Array.prototype.findIndex.call(flags, bad);
  if (found < 0) {
    say("No message has a problem.");
    return;
  }
  select((state.row + 1 + found) % flags.length);
  byId("message-problem").scrollIntoView({ block: "nearest" });
}

function fillRules() {
  const names = (rules) => rules.flatMap((name) => [h("code", {}, name), " "]);
  byId("own-rules").append(...names([...DECODER_RULES, ...RULES.map(({ name }) => name)]));
  for (const [about, rules] of Object.entries(COMMAND_LINE_RULES)) byId("other-rules").append(h("li", {}, `${about}: `, names(rules)));
}

function fillControls() {
  for (const number of VERSIONS.keys()) byId("version").append(h("option", { value: number }, String(number)));
  for (const name of Object.keys(STREAMING_SINCE)) byId("streaming").append(h("option", {}, name));
  const kinds = listKinds();
  const keepalives = ["PrimaryKeepalive", "StandbyStatusUpdate"];
  const others = kinds.filter(({ name }) => !keepalives.includes(name)).map(({ tag }) => tag);
  byId("kind").append(h("option", { value: String(others) }, "Without keepalives"));
  for (const { title, tag } of kinds) byId("kind").append(h("option", { value: String(tag) }, title));
  const groups = [...VERSIONS].reverse().map(([number, { messages }]) =>
    h("optgroup", { label: `Version ${number}` }, messages.map((one) => h("option", { value: `${number} ${one.name}` }, one.title))));
  const envelopes = ENVELOPE.messages.map((one) => h("option", { value: `0 ${one.name}` }, one.title));
  byId("example").append(...groups, h("optgroup", { label: "Replication protocol" }, envelopes));
}

/** Timer that ends when the reader stops typing. */
let typing = 0;

function listen() {
  const on = (id, type, listener) => byId(id).addEventListener(type, listener);
  on("open", "click", () => byId("file").click());
  on("file", "change", ({ target }) => target.files[0] && openFile(target.files[0]));
  on("paste", "click", () => byId("pasting").showModal());
  on("pasting", "close", () => {
    const bytes = new TextEncoder().encode(byId("pasted").value);
    if (byId("pasting").returnValue === "read" && bytes.length) load("open", { bytes, settings: { ...state.settings } });
  });
  on("example", "change", ({ target }) => {
    const [version, name] = target.value.split(" ");
    openExample(Number(version), name);
    target.value = "";
  });
  for (const id of ["version", "streaming", "two-phase"]) on(id, "change", applySettings);
  on("save", "click", () => save("messages.jsonl", writeCapture(state.store, state.settings)));
  on("link", "click", async () => {
    const { hash, whole } = await linkHash();
    history.replaceState(null, "", (ownHash = hash));
    await navigator.clipboard?.writeText(location.href).catch(() => {});
    say(whole ? "The address is a link to this stream and message." : "The stream is too long for a link: the address holds this message alone.");
  });
  on("undo", "click", undo);
  on("redo", "click", redo);
  on("search", "input", ({ target }) => {
    clearTimeout(typing);
    typing = setTimeout(() => filter({ text: target.value.trim() }), 150);
  });
  on("kind", "change", ({ target }) => filter({ tags: target.value ? target.value.split(",").map(Number) : [] }));
  on("problems", "change", ({ target }) => filter({ problems: target.checked }));
  on("only", "click", () => filter({ transaction: state.index.transactions[state.row] }));
  on("follow", "click", () => filter({ followed: state.row }));
  on("followed", "click", () => filter({ followed: -1 }));
  on("transaction", "click", () => filter({ transaction: -1 }));
  on("next", "click", nextProblem);
  on("in-block", "change", () => drawVersions(payloadOf(state.store.channel(state.row), state.store.bytes(state.row))));
  on("editor", "submit", (event) => {
    event.preventDefault();
    const piece = shown.pieces[state.piece];
    if (event.submitter?.id === "edit-null") applyEdit((data) => editCell(data, shown.pieces, state.piece, "null"));
    else if (event.submitter?.id === "apply-bytes" || !piece) {
      applyEdit((data) => editBytes(data, piece ?? { start: 0, end: data.length }, byId("edit-bytes").value));
    }
    else applyEdit((data) => editValue(data, shown.pieces, state.piece, byId("edit-value").value));
  });
  on("edit-value", "keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    byId("editor").requestSubmit(byId("apply-value"));
  });
  on("message", "pointerover", ({ target }) => light(piecesOf(target), "lit"));
  on("message", "pointerleave", () => light([], "lit"));
  on("message", "click", ({ target }) => {
    const [first] = piecesOf(target);
    if (first !== undefined) selectPiece(first);
  });
  for (const box of [hex, tree]) box.addEventListener("keydown", stepPiece);
  on("yaml", "keydown", stepPiece);
  document.addEventListener("keydown", shortcut);
  document.addEventListener("paste", (event) => {
    if (event.target.matches?.("input, textarea")) return;
    byId("pasted").value = event.clipboardData.getData("text");
    if (byId("pasted").value) byId("pasting").showModal();
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (file) openFile(file);
  });
}

function stepPiece(event) {
  const last = shown.pieces.length - 1;
  const to = { ArrowRight: state.piece + 1, ArrowDown: state.piece + 1, ArrowLeft: state.piece - 1, ArrowUp: state.piece - 1, Home: 0, End: last };
  if (!(event.key in to)) return;
  event.preventDefault();
  selectPiece(Math.max(0, Math.min(last, to[event.key])));
}

function undo() {
  if (state.past) load("undo");
}

function redo() {
  if (state.future) load("redo");
}

const SHORTCUTS = { "/": () => byId("search").focus(), e: () => byId("edit-value").focus(), n: nextProblem,
  j: () => select(rowAt(Math.min(rowCount() - 1, positionOf(state.row) + 1))), k: () => select(rowAt(Math.max(0, positionOf(state.row) - 1))) };

function shortcut(event) {
  const isTyping = event.target.matches("input, textarea, select") || byId("pasting").open;
  const letter = event.key.toLowerCase();
  if (!isTyping && (event.ctrlKey || event.metaKey) && (letter === "z" || letter === "y")) {
    event.preventDefault();
    if (event.shiftKey || letter === "y") redo();
    else undo();
    return;
  }
  const action = SHORTCUTS[event.key];
  if (isTyping || !action || event.ctrlKey || event.metaKey || event.altKey || !rowCount()) return;
  event.preventDefault();
  action();
}

onChange((names) => {
  drawControls();
  if (names.includes("row") || names.includes("stream")) drawMessage();
  if (names.includes("piece") || names.includes("row")) drawPiece();
});
narrow.addEventListener("change", () => change("row"));
fillControls();
fillRules();
listen();
openHash(location.hash).then(async () => {
  if (state.store.count) return;
  const { textContent } = byId("problem");
  await openExample(LATEST);
  byId("problem").textContent = textContent;
});
