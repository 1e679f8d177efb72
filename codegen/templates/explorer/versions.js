// The same bytes, read as each protocol version.

/** Draw what each version reads in the bytes of the message; versions that read the same share a column. */
function drawVersions(data) {
  const table = byId("versions");
  table.replaceChildren();
  if (!data) return;
  const inStream = byId("in-block").checked;
  const columns = new Map();
  for (const protocol of VERSIONS.values()) {
    const { streaming } = state.settings;
    const usable = STREAMING_SINCE[streaming] <= protocol.version ? streaming : "off";
    const { pieces, error } = explain(protocol, data, { inStream: inStream && protocol.version >= FIRST_WITH_BLOCKS, streaming: usable });
    const lines = pieces.map((piece) => `${piece.path} ${cut(formatValue(piece), 40)}`);
    const key = JSON.stringify([lines, error?.message]).replace(/protocol version \d+/g, "protocol version");
    const column = columns.get(key) ?? { numbers: [], lines, error };
    column.numbers.push(protocol.version);
    columns.set(key, column);
  }
  for (const { numbers, lines, error } of columns.values()) {
    table.append(
      h(
        "section",
        { class: error ? "bad" : "" },
        h("h3", {}, `Version ${numbers.length > 1 ? `${numbers[0]} to ${numbers.at(-1)}` : numbers[0]}`),
        lines.length ? h("ol", {}, lines.slice(0, 200).map((line) => h("li", {}, line))) : "",
        error ? h("p", { class: "error" }, error.message) : "",
      ),
    );
  }
}
