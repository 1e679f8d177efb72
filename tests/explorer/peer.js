// Runs the explorer's core in node: reads commands as JSON lines from standard input, and answers in JSON lines.

const fs = require("node:fs");
const readline = require("node:readline");
const vm = require("node:vm");

const page = fs.readFileSync(process.argv[2], "utf8");
const [, core] = /<script id="core">([^]*?)<\/script>/.exec(page);
const names = "readFile Decoder Tracker buildIndex explainRecord explain VERSIONS SPEC toHex fromHex fromBase64 toBase64 " +
  "editValue editableText editCell EditError FileError Store encodeText filterRows writeCapture MARKS";
const explorer = vm.runInThisContext(`(() => {${core}\nreturn { ${names.split(" ").join(", ")} };})()`);

const plain = (value) =>
  typeof value === "bigint" ? String(value)
  : value instanceof Uint8Array ? { hex: explorer.toHex(value) }
  : typeof value === "string" ? { hex: explorer.toHex(explorer.encodeText(value)) }
  : typeof value === "number" ? String(value)
  : value;

const COMMANDS = {
  async open({ content, version = 4, streaming = "off", twoPhase = false }) {
    const bytes = new Uint8Array(Buffer.from(content, "base64"));
    const { store, format, settings } = await explorer.readFile(bytes, { version, streaming, twoPhase });
    const index = explorer.buildIndex(store, settings);
    const messages = [];
    for (let row = 0; row < store.count; row++) {
      const context = { inStream: Boolean(index.flags[row] & 1), streaming: settings.streaming };
      const protocol = explorer.VERSIONS.get(index.versions[row]);
      const { pieces, error } = explorer.explainRecord(store.channel(row), store.bytes(row), protocol, context);
      messages.push({
        channel: store.channel(row), data: explorer.toHex(store.bytes(row)), problem: index.errors.get(row) ?? null,
        error: error && { text: error.message, field: error.field, offset: error.offset, message: error.messageName },
        pieces: pieces.map((one) => [one.start, one.end, one.path, one.type, one.notation, plain(one.value), one.doc]),
        transaction: index.transactions[row], mark: explorer.MARKS[index.marks[row]],
      });
    }
    return { format, settings, messages, transactions: index.list };
  },
  explain({ data, version, inStream, streaming }) {
    const { pieces, error } = explorer.explain(explorer.VERSIONS.get(version), explorer.fromHex(data), { inStream, streaming });
    return { pieces: pieces.length, end: pieces.at(-1)?.end ?? 0, error: error && [error.message, error.messageName, error.field, error.offset] };
  },
  reencode({ data, version, inStream, streaming }) {
    const bytes = explorer.fromHex(data);
    const { pieces } = explorer.explain(explorer.VERSIONS.get(version), bytes, { inStream, streaming });
    return pieces.map((_, i) => explorer.toHex(explorer.editValue(bytes, pieces, i, explorer.editableText(pieces[i]))));
  },
  edit({ data, version, inStream, streaming, path, text }) {
    const bytes = explorer.fromHex(data);
    const { pieces } = explorer.explain(explorer.VERSIONS.get(version), bytes, { inStream, streaming });
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
