// The bytes of the message, in pieces that light up together with their fields.

const SHOWN_BYTES = 4096;
const hex = byId("hex");
const narrow = matchMedia("(max-width: 700px)");

/** Draw the bytes of a message; bytes after an error are marked. */
function drawHex({ pieces, error, start }, data) {
  const perLine = narrow.matches ? 8 : 16;
  const shown = data.subarray(0, SHOWN_BYTES);
  const bytes = [];
  const characters = [];
  const add = (from, to, attributes) => {
    const part = shown.subarray(from, to);
    if (!part.length) return;
    const digits = toHex(part, " ");
    const label = `${digits}, ${attributes["aria-label"]}`;
    bytes.push(h("span", { role: "option", ...attributes, "aria-label": label }, `${digits} `));
    const text = Array.from(part, (byte) => (byte > 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·")).join("");
    characters.push(h("span", { ...attributes, id: null, "aria-label": null, "aria-selected": null }, text));
  };
  let end = 0;
  pieces.forEach((piece, i) => {
    if (piece.end === piece.start) return;
    add(piece.start, piece.end, {
      "data-piece": i, id: `hex${i}`, "aria-selected": "false", "aria-label": `${piece.path}, ${cut(formatValue(piece), 60)}`,
    });
    end = piece.end;
  });
  if (error) {
    const at = Math.max(end, start + error.offset);
    add(end, at, { class: "rest", "aria-selected": "false", "aria-label": "bytes before the error" });
    add(at, data.length, { class: "wrong", "aria-selected": "false", "aria-label": "bytes from the error on" });
  }
  const lines = Math.ceil(shown.length / perLine);
  const offsets = Array.from({ length: lines }, (_, i) => (i * perLine).toString(16).padStart(4, "0")).join("\n");
  hex.style.setProperty("--per-line", perLine);
  byId("offsets").textContent = offsets;
  byId("bytes").replaceChildren(...bytes);
  byId("characters").replaceChildren(...characters);
  byId("more").textContent = data.length > SHOWN_BYTES ? `${counted(data.length - SHOWN_BYTES, "more byte")} not shown` : "";
}
