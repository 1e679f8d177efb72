// Draws the transactions as lanes beside the messages, one column for each.

const LANE = 14; // width of a lane, in pixels
const MOST_LANES = 10;

const GLYPHS = {
  begin: "circle", open: "start", close: "stop", savepoint: "small",
  rollback: "cross", prepare: "diamond", commit: "disc", abort: "cross",
};

/** Return the transactions in whose lanes a row is. */
function transactionsAt(row) {
  const { list, lanes } = state.index;
  const found = lanes.slice(0, MOST_LANES).map((numbers) => {
    let low = 0;
    let high = numbers.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[numbers[middle]].first <= row) low = middle + 1;
      else high = middle;
    }
    const one = low ? list[numbers[low - 1]] : null;
    return one && row <= one.last ? one : null;
  });
  return found.filter(Boolean);
}

/** Return the width of the lanes, in pixels. */
function lanesWidth() {
  return Math.min(state.index.lanes.length, MOST_LANES) * LANE + 6;
}

/** Return the drawing of the lanes beside a message. */
function drawLanes(row, height) {
  const { index } = state;
  const drawing = svg("svg", { class: "lanes", width: lanesWidth(), height, "aria-hidden": "true" });
  for (const one of transactionsAt(row)) {
    const own = one.id === index.transactions[row];
    const x = one.lane * LANE + LANE / 2 + 2;
    const between = one.prepared !== undefined && row > one.prepared;
    const line = `M${x} ${row === one.first ? height / 2 : 0}V${row === one.last && one.end ? height / 2 : height}`;
    const shape = `lane${own ? " own" : ""}${between ? " prepared" : ""}`;
    const group = svg("g", { class: `hue${one.id % 6}` }, svg("path", { d: line, class: shape }));
    if (own) group.append(drawGlyph(GLYPHS[MARKS[index.marks[row]]] ?? "tick", x, height / 2));
    drawing.append(group);
  }
  return drawing;
}

function drawGlyph(glyph, x, y) {
  const paths = {
    circle: `M${x - 4} ${y}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0`,
    disc: `M${x - 5} ${y}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0`,
    diamond: `M${x} ${y - 6}l6 6l-6 6l-6 -6z`,
    cross: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`,
    start: `M${x - 5} ${y - 4}h10v4h-10z`,
    stop: `M${x - 5} ${y}h10v4h-10z`,
    small: `M${x} ${y}h7m-3 -3l3 3l-3 3`,
    tick: `M${x} ${y}h5`,
  };
  return svg("path", { d: paths[glyph], class: `glyph ${glyph}` });
}

const MARK_WORDS = {
  begin: "begins", open: "stream block opens", close: "stream block ends", savepoint: "first change of a subtransaction",
  rollback: "subtransaction rolled back", prepare: "prepared", commit: "committed", abort: "rolled back",
};

/** Return in words what a message does to its transaction. */
function describeTransaction(row) {
  const one = state.index.list[state.index.transactions[row]];
  if (!one) return "";
  const words = MARK_WORDS[MARKS[state.index.marks[row]]];
  return `transaction ${one.xid}${words ? ` ${words}` : ""}`;
}
