// Decodes the same messages with the npm package logicalrep and with npm's pg-logical-replication, in turns.
// Arguments: the package, and a file of messages, each after its length; the first is a Relation message.
const fs = require('fs');
const { PgoutputPlugin } = require('pg-logical-replication');

const ROUNDS = 25;
const [, , path, file] = process.argv;

function read() {
  const data = fs.readFileSync(file);
  const messages = [];
  for (let at = 0; at < data.length; ) {
    const start = at + 4;
    at = start + data.readUInt32BE(at);
    messages.push(data.subarray(start, at));
  }
  return messages;
}

/** Return the start and the length of each binary cell of a message, one after the other. */
function binaryCells(data, { key, old, new: new_ }) {
  const cells = [key, old, new_].flatMap((tuple) => tuple ?? []).filter((cell) => cell instanceof Uint8Array);
  return Int32Array.from(cells.flatMap(({ byteOffset, length }) => [byteOffset - data.byteOffset, length]));
}

/** Return only the views of the binary cells, which each decoder has to make. */
function views({ data, cells }) {
  const found = new Array(cells.length / 2);
  for (let i = 0; i < cells.length; i += 2) {
    found[i / 2] = new Uint8Array(data.buffer, data.byteOffset + cells[i], cells[i + 1]);
  }
  return found;
}

/** Return the microseconds of CPU time that decoding all messages takes. */
function time(decode, messages) {
  const start = process.cpuUsage();
  for (const message of messages) last = decode(message);
  const { user, system } = process.cpuUsage(start);
  return user + system;
}

let last;
import(path).then(({ StreamDecoder }) => {
  const plugin = new PgoutputPlugin({ protoVersion: 1, publicationNames: ['p'] });
  const decoder = new StreamDecoder(4);
  const messages = read();
  const located = messages.map((data) => ({ data, cells: binaryCells(data, decoder.decode(data)) }));
  const rounds = [];
  for (let i = 0; i < 2 * ROUNDS; i++) {
    const ours = time((data) => decoder.decode(data), messages);
    const theirs = time((data) => plugin.parse(data), messages);
    const floor = time(views, located);
    if (i >= ROUNDS) rounds.push([ours, theirs, floor]); // by then the code is compiled
  }
  console.log(JSON.stringify(rounds.map((times) => times.map((time) => (1000 * time) / messages.length))));
});
