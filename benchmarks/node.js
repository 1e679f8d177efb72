// Decodes messages with npm's pg-logical-replication. node.py sends a command per line and reads an answer per line.
const fs = require('fs');
const { createInterface } = require('readline');
const { PgoutputPlugin } = require('pg-logical-replication');

const plugin = new PgoutputPlugin({ protoVersion: 1, publicationNames: ['p'] });
let messages = [];
let last;

const commands = {
  // Load a file of messages, each after its length; the first is the Relation message of the others.
  load(path) {
    const data = fs.readFileSync(path);
    messages = [];
    for (let at = 0; at < data.length; ) {
      const start = at + 4;
      at = start + data.readUInt32BE(at);
      messages.push(data.subarray(start, at));
    }
    plugin.parse(messages.shift());
    return messages.length;
  },
  // Return the cells of all tuples; bytes as hex digits.
  read() {
    const cell = (value) => (Buffer.isBuffer(value) ? { hex: value.toString('hex') } : value ?? null);
    const tuple = (relation, cells) => relation.columns.map(({ name }) => cell(cells[name]));
    return messages.flatMap((data) => {
      const { relation, key, old, new: new_ } = plugin.parse(data);
      return [key, old, new_].filter(Boolean).map((cells) => tuple(relation, cells));
    });
  },
  // Decode all messages; return the seconds.
  run() {
    const start = process.hrtime.bigint();
    for (const data of messages) last = plugin.parse(data);
    return Number(process.hrtime.bigint() - start) / 1e9;
  },
};

createInterface({ input: process.stdin }).on('line', (line) => {
  const [command, argument] = line.split('\t');
  process.stdout.write(JSON.stringify(commands[command](argument)) + '\n');
});
