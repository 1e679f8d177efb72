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

function drawTree({ pieces }, row) {
  const columns = isChange(state.index, row) ? columnsOf(state.store, state.index, state.index.descriptions[row]) : [];
  tree.replaceChildren(...nest(pieces).map((node) => drawNode(node, pieces, columns, 1)));
}

/** Return the value of a piece, with what it means: the type of an OID, or a cell in binary format as text. */
function meaningOf(piece, column) {
  const value = cut(formatValue(piece));
  if (piece.type === "binary" && column) {
    const text = binaryText(piece.value, column.type_oid);
    return text ? cut(JSON.stringify(text)) : value;
  }
  const name = piece.path.endsWith("type_oid") && typeName(piece.value);
  return name ? `${value} ${name}` : value;
}

function drawNode(node, pieces, columns, level) {
  const piece = pieces[node.piece];
  const [, , number] = /^(new|old|key)\[(\d+)\]$/.exec(node.path) ?? [];
  const column = columns[number];
  const label = column ? [node.name, column.name, typeName(column.type_oid)].filter(Boolean).join(" ") : node.name;
  const value = piece ? meaningOf(piece, column) : "";
  return h(
    "li",
    {
      role: "treeitem", id: piece ? `field${node.piece}` : null, "data-piece": piece ? node.piece : null,
      "aria-level": level, "aria-selected": "false", "aria-expanded": node.children.length ? "true" : null,
      "aria-label": node.children.length ? `${label} ${value} ${piece ? piece.notation : ""}` : null,
    },
    h(
      "div",
      { class: "field", title: piece?.doc ?? null },
      h("span", { class: "name" }, `${label} `),
      piece && h("span", { class: `value ${piece.type}` }, `${value} `),
      piece && h("span", { class: "notation" }, piece.notation),
    ),
    node.children.length ? h("ul", { role: "group" }, node.children.map((child) => drawNode(child, pieces, columns, level + 1))) : "",
  );
}

/** Show the editor of a piece, or that of all bytes of the message. */
function drawEditor(piece) {
  const data = state.store.bytes(state.row);
  byId("editor").hidden = !piece && data.length > SHOWN_BYTES;
  byId("edit-name").textContent = piece?.path ?? "all bytes";
  byId("edit-doc").textContent = piece?.doc ?? "";
  byId("edit-field").hidden = !piece;
  byId("edit-value").value = piece ? editableText(piece) : "";
  byId("edit-bytes").value = toHex(piece ? data.subarray(piece.start, piece.end) : data.subarray(0, SHOWN_BYTES), " ");
  byId("edit-null").hidden = piece?.kind !== "cell" || piece.type === "null";
  byId("edit-error").textContent = "";
}

/** Encode the message again with what the editor says, and read the whole stream again. */
function applyEdit(edit) {
  try {
    load("edit", { row: state.row, bytes: edit(state.store.bytes(state.row)) }, { row: state.row, piece: state.piece });
  } catch (error) {
    if (!(error instanceof EditError || error instanceof EncodeError || error instanceof RangeError)) throw error;
    byId("edit-error").textContent = error.message;
  }
}
