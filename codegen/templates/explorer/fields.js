// The fields of the message as a tree, and the editor of one field.

const tree = byId("tree");

/** Return the nested groups of pieces, by the names in their paths. */
function nest(pieces) {
  const root = { children: [] };
  const nodes = new Map([["", root]]);
  const nodeAt = (path) => {
    const found = nodes.get(path);
    if (found) return found;
    const at = Math.max(path.lastIndexOf("."), path.endsWith("]") ? path.lastIndexOf("[") : -1);
    const node = { path, name: path.slice(at < 0 ? 0 : at).replace(/^\./, ""), piece: -1, children: [] };
    nodes.set(path, node);
    nodeAt(path.slice(0, Math.max(at, 0))).children.push(node);
    return node;
  };
  pieces.forEach((piece, i) => {
    const node = nodeAt(piece.path);
    if (node.piece < 0) node.piece = i;
    else root.children.push({ ...node, piece: i, children: [] }); // an envelope has the same names
  });
  return root.children;
}

/** Draw the tuples of a change as the rows of a table. */
function drawTuples({ pieces }, columns) {
  const tuples = new Map();
  pieces.forEach((piece, i) => {
    const { tuple, number } = cellPlace(piece) ?? {};
    if (!tuple) return;
    if (!tuples.has(tuple)) tuples.set(tuple, []);
    tuples.get(tuple)[number] = h("td", { "data-piece": i, class: piece.type }, cut(cellLabel(piece, columns[number]), 60));
  });
  byId("tuples-title").hidden = byId("tuples").hidden = !tuples.size;
  const names = columns.map(({ name, type_oid, isKey }) =>
    h("th", { scope: "col", class: isKey ? "key" : null, title: typeLabel(type_oid) || null }, name));
  const rows = [...tuples].map(([tuple, cells]) => h("tr", {}, h("th", { scope: "row" }, tuple), cells));
  byId("tuples").replaceChildren(h("table", {}, h("tr", {}, h("td"), names), rows));
}

function drawTree({ pieces }, columns) {
  tree.replaceChildren(...nest(pieces).flatMap((node) => drawNode(node, pieces, columns, 1)));
}

/** Return the value of a piece, with what it means: the name of a type, or a cell in binary format as text. */
function meaningOf(piece, column) {
  if (piece.kind === "cell") return cut(cellLabel(piece, column));
  const value = cut(formatValue(piece));
  const name = piece.path.endsWith("type_oid") && typeLabel(piece.value);
  return name ? `${value} ${name}` : value;
}

/** Return the items of a node and of what is in it, one after the other: an item's name must not have its children's. */
function drawNode(node, pieces, columns, level) {
  const piece = pieces[node.piece];
  const column = columns[piece && cellPlace(piece)?.number];
  const label = column ? [node.name, column.name, typeLabel(column.type_oid)].filter(Boolean).join(" ") : node.name;
  const item = h(
    "li",
    {
      role: "treeitem", id: piece ? `field${node.piece}` : null, "data-piece": piece ? node.piece : null,
      "aria-level": level, "aria-selected": "false", class: "field", title: piece?.doc ?? null,
    },
    h("span", { class: "name" }, `${label} `),
    piece && h("span", { class: `value ${piece.type}` }, `${meaningOf(piece, column)} `),
    piece && h("span", { class: "notation" }, piece.notation),
  );
  return [item, ...node.children.flatMap((child) => drawNode(child, pieces, columns, level + 1))];
}

/** Show the editor of a piece, or that of all bytes of the message. */
function drawEditor(piece) {
  const data = state.store.bytes(state.row);
  byId("editor").hidden = !piece && data.length > SHOWN_BYTES;
  byId("edit-name").textContent = piece?.path ?? "all bytes";
  byId("edit-doc").textContent = piece?.doc ?? "";
  const text = piece ? editableText(piece) : "";
  byId("edit-field").hidden = !piece || text.includes("\r"); // a text area changes the ends of lines
  byId("edit-value").value = text;
  byId("edit-value").rows = Math.min(6, text.split("\n").length);
  byId("edit-bytes").value = toHex(piece ? data.subarray(piece.start, piece.end) : data.subarray(0, SHOWN_BYTES), " ");
  byId("edit-null").hidden = piece?.kind !== "cell" || piece.type === "null";
  byId("edit-error").textContent = "";
}

/** Encode the message again with what the editor says, and read the whole stream again. */
function applyEdit(edit) {
  try {
    const path = shown.pieces[state.piece]?.path;
    load("edit", { row: state.row, bytes: edit(state.store.bytes(state.row)) }, { row: state.row, path });
  } catch (error) {
    if (!(error instanceof EditError || error instanceof EncodeError || error instanceof RangeError)) throw error;
    byId("edit-error").textContent = `${titleOf(state.row)}: ${error.message.replace(/^\./, "")}`;
  }
}
