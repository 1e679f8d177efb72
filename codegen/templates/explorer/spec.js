// The lines of the spec and the server's functions that a message comes from.

/** Draw the lines of the spec that describe a layout and its pieces. */
function drawSpec(layout, pieces) {
  const box = byId("yaml");
  box.replaceChildren();
  byId("functions").replaceChildren();
  if (!layout) return;
  const { text, source } = SPEC.files[layout.file];
  const lines = text.split("\n");
  const shown = new Set(blockLines(lines, layout.line));
  for (const { line, field } of pieces) {
    for (const one of blockLines(lines, line ?? layout.line)) shown.add(one);
    for (const cell of field?.cells ?? []) for (const one of blockLines(lines, cell.line)) shown.add(one);
  }
  let last = 0;
  for (const number of [...shown].sort((a, b) => a - b)) {
    if (last && number > last + 1) box.append(h("div", { class: "gap", "aria-hidden": "true" }, "⋮"));
    box.append(h("div", { "data-line": number, class: "line" }, h("span", { class: "number" }, String(number)), lines[number - 1] || " "));
    last = number;
  }
  byId("yaml-file").textContent = `spec/${layout.file}`;
  byId("server-file").textContent = source;
  const functions = new Set(pieces.map((piece) => piece.source).filter(Boolean));
  byId("functions").append(...[...functions].map((name) => h("button", { type: "button", "data-source": name }, name)));
}

/** Yield the numbers of a line and of the lines below it that are indented further. */
function* blockLines(lines, number) {
  const indent = (text) => text.length - text.trimStart().length;
  const first = indent(lines[number - 1]);
  yield number;
  for (let i = number; i < lines.length && lines[i].trim() && indent(lines[i]) > first; i++) yield i + 1;
}

/** Return in words where a message may come in a stream, from the states of the protocol version. */
function placesOf(layout) {
  const steps = SPEC.versions[layout.version ?? LATEST].states.filter(([, message]) => message === layout.name);
  const places = steps.map(([from, , , , condition]) => SPEC.states[from] + (condition ? ` (${condition})` : ""));
  return [...new Set(places)].map((text) => text[0].toLowerCase() + text.slice(1)).join("; ");
}
