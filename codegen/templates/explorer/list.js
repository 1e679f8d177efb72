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
  return h(
    "div",
    {
      id: `row${row}`, class: `row${problem ? " bad" : ""}`, role: "option", "data-row": row,
      "aria-selected": String(row === state.row), "aria-posinset": position + 1, "aria-setsize": rowCount(),
      title: problem || null,
    },
    drawLanes(row, ROW_HEIGHT),
    h("span", { class: "number" }, String(row + 1)),
    h("span", { class: `title tag-${tagGroup(row)}` }, title),
    h("span", { class: "summary" }, problem || summaryOf(row)),
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

/** Return what identifies a message among its kind, in a few words. */
function summaryOf(row) {
  const { index } = state;
  const values = valuesOf(row);
  const described = index.descriptions[row];
  const parts = [];
  if (described >= 0) {
    parts.push(relationName(state.store, index, described).filter(Boolean).join("."));
  }
  for (const name of ["gid", "prefix", "xid", "subxid"]) {
    if (values.has(name)) parts.push(name === "prefix" ? values.get(name) : `${name} ${values.get(name)}`);
  }
  if (described < 0 && typeof values.get("name") === "string") parts.push(values.get("name"));
  for (const name of ["final_lsn", "commit_lsn", "prepare_lsn", "flushed_lsn"]) {
    if (values.has(name)) parts.push(formatLsn(values.get(name)));
  }
  const time = ["commit_time", "prepare_time", "rollback_time", "abort_time", "send_time"].find((name) => values.has(name));
  if (time) parts.push(formatValue({ type: "timestamp", value: values.get(time) }));
  const key = values.get("new[0]") ?? values.get("old[0]") ?? values.get("key[0]");
  if (typeof key === "string") parts.push(cut(JSON.stringify(key), 40));
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
