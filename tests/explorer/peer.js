// Runs the explorer's core in node: reads commands as JSON lines from standard input, and answers in JSON lines.

const fs = require("node:fs");
const readline = require("node:readline");
const vm = require("node:vm");

const page = fs.readFileSync(process.argv[2], "utf8");
const [, core] = /<script id="core">([^]*?)<\/script>/.exec(page);
const names = "readFile buildIndex filterRows binaryText explainRecord explain VERSIONS ENVELOPE SPEC toHex fromHex editValue editableText editCell " +
  "Store encodeText MARKS RULES DECODER_RULES COMMAND_LINE_RULES";
const explorer = vm.runInThisContext(`(() => {${core}\nreturn { ${names.split(" ").join(", ")} };})()`);

const plain = (value) =>
  typeof value === "bigint" ? String(value)
  : value instanceof Uint8Array ? { hex: explorer.toHex(value) }
  : typeof value === "string" ? { hex: explorer.toHex(explorer.encodeText(value)) }
  : typeof value === "number" ? String(value)
  : value;

const protocolOf = (version) => (version === null ? explorer.ENVELOPE : explorer.VERSIONS.get(version));

const COMMANDS = {
  rules: () => ({
    decoder: explorer.DECODER_RULES, order: explorer.RULES.map(({ name }) => name), commandLine: explorer.COMMAND_LINE_RULES,
  }),
  examples: () => Object.entries(explorer.SPEC.versions).map(([version, { example }]) => ({ version: Number(version), ...example })),
  check({ version, streaming, twoPhase, messages }) {
    const store = new explorer.Store();
    for (const [channel, data] of messages) store.add(channel, explorer.fromHex(data));
    const { errors } = explorer.buildIndex(store, { version, streaming, twoPhase });
    return [...errors].map(([row, { rule, text }]) => [row, rule, text]);
  },
  async open({ content, version = 4, streaming = "off", twoPhase = false }) {
    const bytes = new Uint8Array(Buffer.from(content, "base64"));
    const { store, format, settings, damage } = await explorer.readFile(bytes, { version, streaming, twoPhase });
    const index = explorer.buildIndex(store, settings);
    const messages = [];
    for (let row = 0; row < store.count; row++) {
      const context = { inStream: Boolean(index.flags[row] & 1), streaming: settings.streaming };
      const protocol = explorer.VERSIONS.get(index.versions[row]);
      const { pieces, error } = explorer.explainRecord(store.channel(row), store.bytes(row), protocol, context);
      messages.push({
        channel: store.channel(row), data: explorer.toHex(store.bytes(row)), problem: index.errors.get(row) ?? null,
        error: error && { text: error.message, field: error.field, offset: error.offset, message: error.messageType },
        pieces: pieces.map((one) => [one.start, one.end, one.path, one.type, one.notation, plain(one.value), one.doc]),
        transaction: index.transactions[row], mark: explorer.MARKS[index.marks[row]],
      });
    }
    return { format, settings, damage, messages, transactions: index.list.map((one) => ({ ...one, time: plain(one.time) })) };
  },
  async search({ content, texts }) {
    const bytes = new Uint8Array(Buffer.from(content, "base64"));
    const { store, settings } = await explorer.readFile(bytes, { version: 4, streaming: "off", twoPhase: false });
    const index = explorer.buildIndex(store, settings);
    const query = { tags: [], transaction: -1, problems: false };
    return texts.map((text) => [...explorer.filterRows(store, index, { ...query, text })]);
  },
  async follow({ content, rows }) {
    const bytes = new Uint8Array(Buffer.from(content, "base64"));
    const { store, settings } = await explorer.readFile(bytes, { version: 4, streaming: "off", twoPhase: false });
    const index = explorer.buildIndex(store, settings);
    const query = { tags: [], transaction: -1, problems: false, text: "" };
    return rows.map((followed) => [...explorer.filterRows(store, index, { ...query, followed })]);
  },
  binary: ({ cells }) => cells.map(([data, oid]) => explorer.binaryText(explorer.fromHex(data), oid)),
  explain({ data, version, inStream, streaming }) {
    const { error } = explorer.explain(protocolOf(version), explorer.fromHex(data), { inStream, streaming });
    return error && [error.message, error.messageType, error.field, error.offset];
  },
  reencode({ data, version, inStream, streaming }) {
    const bytes = explorer.fromHex(data);
    const { pieces } = explorer.explain(protocolOf(version), bytes, { inStream, streaming });
    return pieces.map((piece, i) => {
      const hasValue = piece.type !== "null" && piece.type !== "unchanged";
      const text = explorer.editableText(piece);
      return explorer.toHex(hasValue ? explorer.editValue(bytes, pieces, i, text) : explorer.editCell(bytes, pieces, i, piece.type));
    });
  },
  edit({ data, version, inStream, streaming, path, text }) {
    const bytes = explorer.fromHex(data);
    const { pieces } = explorer.explain(protocolOf(version), bytes, { inStream, streaming });
    const i = pieces.findIndex((piece) => piece.path === path);
    const edited = text === null ? explorer.editCell(bytes, pieces, i, "null") : explorer.editValue(bytes, pieces, i, text);
    return explorer.toHex(edited);
  },
};

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { command, ...values } = JSON.parse(line);
    let answer;
    try {
      answer = { result: await COMMANDS[command](values) };
    } catch (error) {
      answer = { error: error.message, kind: error.constructor.name };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
})();
