// Decodes the same messages with the generated TypeScript and with npm's pg-logical-replication, in turns.
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

/** Return the microseconds of CPU time that decoding all messages takes. */
function time(decode, messages) {
  const start = process.cpuUsage();
  for (const data of messages) last = decode(data);
  const { user, system } = process.cpuUsage(start);
  return user + system;
}

let last;
import(path).then(({ StreamDecoder }) => {
  const plugin = new PgoutputPlugin({ protoVersion: 1, publicationNames: ['p'] });
  const decoder = new StreamDecoder(4);
  const messages = read();
  const rounds = [];
  for (let i = 0; i < 2 * ROUNDS; i++) {
    const ours = time((data) => decoder.decode(data), messages);
    const theirs = time((data) => plugin.parse(data), messages);
    if (i >= ROUNDS) rounds.push([ours, theirs]); // by then the code is compiled
  }
  console.log(JSON.stringify(rounds.map((times) => times.map((time) => (1000 * time) / messages.length))));
});
