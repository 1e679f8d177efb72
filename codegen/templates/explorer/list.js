// The list of messages. Only the visible rows are in the document.

const ROW_HEIGHT = 28;
const MOST_PIXELS = 8_000_000; // browsers draw no higher elements

const list = byId("list");

function rowCount() {
  return state.rows ? state.rows.length : state.store.count;
}

function rowAt(position) {
  return state.rows ? state.rows[position] : position;
}

function positionOf(row) {
  return state.rows ? state.rows.indexOf(row) : row;
}

/** Return the number of rows that fit into the list, and its height and range of scrolling in pixels. */
function measure() {
  const visible = Math.max(1, Math.floor(list.clientHeight / ROW_HEIGHT));
  const height = Math.min(rowCount() * ROW_HEIGHT, MOST_PIXELS);
  return { visible, height, range: Math.max(1, height - list.clientHeight), most: Math.max(0, rowCount() - visible) };
}

function drawList() {
  const { visible, height, range, most } = measure();
  const exact = rowCount() * ROW_HEIGHT === height;
  const first = Math.floor(exact ? list.scrollTop / ROW_HEIGHT : Math.min(1, list.scrollTop / range) * most);
  const rows = [];
  for (let i = first; i < Math.min(first + visible + 2, rowCount()); i++) rows.push(drawRow(rowAt(i), i));
  byId("rows").style.transform = `translateY(${exact ? first * ROW_HEIGHT : Math.min(list.scrollTop, height - visible * ROW_HEIGHT)}px)`;
  byId("height").style.height = `${height}px`;
  byId("rows").replaceChildren(...rows);
  if (rows.some(({ id }) => id === `row${state.row}`)) list.setAttribute("aria-activedescendant", `row${state.row}`);
  else list.removeAttribute("aria-activedescendant");
  byId("none").hidden = rowCount() > 0;
}

function drawRow(row, position) {
  const problem = problemOf(row);
  const title = titleOf(row);
  const { pieces } = explainRow(state.store, state.index, row);
  const values = new Map(pieces.map((piece) => [piece.path, piece.value]));
  const time = timeOf(row, values);
  return h(
    "div",
    {
      id: `row${row}`, class: `row${problem ? " bad" : ""}`, role: "option", "data-row": row,
      "aria-selected": String(row === state.row), "aria-posinset": position + 1, "aria-setsize": rowCount(),
      title: problem || null,
    },
    drawLanes(row, ROW_HEIGHT),
    h("span", { class: "number" }, String(row + 1)),
    h("span", { class: "time", title: time || null }, /\d\d:\d\d:\d\d(\.\d{1,3})?/.exec(time)?.[0] ?? ""),
    h("span", { class: `title tag-${tagGroup(row)}` }, title),
    h("span", { class: "summary" }, problem || summaryOf(row, pieces, values)),
  );
}

/** Return the title of a message: its own, or its envelope's. */
function titleOf(row) {
  const { store, index } = state;
  const layout = VERSIONS.get(LATEST).byTag[index.tags[row]] ?? ENVELOPE.byTag[store.bytes(row)[0]];
  return layout?.title ?? "Unknown";
}

/** Return the group of a message, which has a colour. */
function tagGroup(row) {
  const role = VERSIONS.get(LATEST).byTag[state.index.tags[row]]?.role ?? "";
  if (["insert", "update", "delete", "truncate"].includes(role)) return role;
  return ["relation", "type", "origin", "payload", ""].includes(role) ? "other" : "transaction";
}

/** Return the time of a message as text: its own, that of its transaction, or when it was sent; "" for none. */
function timeOf(row, values) {
  const own = ["commit_time", "prepare_time", "rollback_time", "abort_time"].find((name) => values.has(name));
  const transaction = state.index.list[state.index.transactions[row]];
  const value = values.get(own) ?? transaction?.time ?? values.get("send_time") ?? values.get("client_time");
  return value === undefined || value === null ? "" : formatValue({ type: "timestamp", value });
}

/** Return the columns of the table that a message changes; none for other messages. */
function columnsAt(row) {
  const { store, index } = state;
  return isChange(index, row) ? relationAt(store, index, index.descriptions[row]).columns : [];
}

/** Return the name of a type by its OID, also if a Type message has it; "" for one that is not known. */
function typeLabel(oid) {
  return typeName(oid) || (state.index.types.get(oid) ?? "");
}

/** Return a cell as text for the page. */
function cellLabel(piece, column) {
  const text = cellText(piece, column);
  return text === null ? formatValue(piece) : JSON.stringify(text);
}

/** Return what identifies a message among its kind, in a few words. */
function summaryOf(row, pieces, values) {
  const { store, index } = state;
  const described = index.descriptions[row];
  const relation = described >= 0 ? relationAt(store, index, described) : null;
  const parts = [];
  if (relation) parts.push([relation.namespace, relation.name].filter(Boolean).join("."));
  for (const name of ["gid", "prefix", "xid", "subxid"]) {
    if (values.has(name)) parts.push(name === "prefix" ? values.get(name) : `${name} ${values.get(name)}`);
  }
  if (described < 0 && typeof values.get("name") === "string") parts.push(values.get("name"));
  for (const name of ["final_lsn", "commit_lsn", "prepare_lsn", "flushed_lsn"]) {
    if (values.has(name)) parts.push(formatLsn(values.get(name)));
  }
  if (relation && isChange(index, row)) {
    const cells = pieces.flatMap((piece) => {
      const { tuple, number } = cellPlace(piece) ?? {};
      return tuple && (tuple === "new" || !values.has("new[0]")) && piece.type !== "null" ? [cut(cellLabel(piece, relation.columns[number]), 40)] : [];
    });
    if (cells.length) parts.push(cells.slice(0, 12).join(", "));
  }
  return parts.join(" · ");
}

/** Scroll so that the message that is shown is visible. */
function revealRow() {
  const position = positionOf(state.row);
  const { visible, height, range, most } = measure();
  if (position < 0) return;
  if (rowCount() * ROW_HEIGHT !== height) {
    const first = Math.floor((list.scrollTop / range) * most);
    if (position < first || position >= first + visible) {
      list.scrollTop = (Math.min(most, Math.max(0, position - (visible >> 1))) / Math.max(1, most)) * range;
    }
    return;
  }
  const top = position * ROW_HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
}

const STEPS = { ArrowDown: () => 1, ArrowUp: () => -1, PageDown: () => measure().visible, PageUp: () => -measure().visible,
  Home: () => -Infinity, End: () => Infinity };

list.addEventListener("scroll", drawList);
list.addEventListener("click", ({ target }) => {
  const row = target.closest("[data-row]");
  if (row) select(Number(row.dataset.row));
});
list.addEventListener("keydown", (event) => {
  const step = STEPS[event.key]?.();
  if (step === undefined || !rowCount()) return;
  event.preventDefault();
  select(rowAt(Math.max(0, Math.min(rowCount() - 1, positionOf(state.row) + step))));
});
new ResizeObserver(drawList).observe(list);
onChange((names) => {
  if (names.includes("stream")) list.scrollTop = 0;
  if (names.includes("row") || names.includes("rows")) {
    revealRow();
    drawList();
  }
});
