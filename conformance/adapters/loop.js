// Answers requests of `logicalrep vectors run` with a decoder in JavaScript.
const { createInterface } = require('readline');

// newDecoder() returns a function that decodes one message (a Buffer) and returns it as JSON, or throws.
// claims(request) returns the reason why the decoder does not claim to decode a request, if any.
exports.serve = async (newDecoder, claims) => {
  for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    const skip = claims(request);
    const answer = skip ? { skip } : await decoded(await newDecoder(), request.messages);
    process.stdout.write(toLine({ id: request.id, ...answer }));
  }
};

async function decoded(decode, messages) {
  const done = [];
  for (const message of messages) {
    try {
      done.push((await decode(Buffer.from(message, 'hex'))) ?? {});
    } catch (error) {
      return { messages: done, error: { text: String(error) } };
    }
  }
  return { messages: done };
}

// Returns the reason to skip a request, if its version is too new or it has other options.
exports.unclaimed = ({ version, options }, versions, ...claimed) => {
  if (!versions.includes(version)) return `version ${version}`;
  if (options.streaming !== 'off') return 'streaming';
  return ['two_phase', 'binary', 'messages'].find((name) => options[name] && !claimed.includes(name));
};

// 00000016/B374D848 as 16/B374D848; null, which is 0, as 0/0.
exports.lsn = (text) => (text ?? '0/0').split('/').map((half) => parseInt(half, 16).toString(16).toUpperCase()).join('/');

// Microseconds since 1970 as a time; outside of the years 1 to 9999, as microseconds since 2000.
exports.time = (micros) => {
  const [seconds, rest] = [micros / 1000000n, micros % 1000000n];
  const date = new Date(Number(rest < 0n ? seconds - 1n : seconds) * 1000);
  if (!(date.getTime() >= -62135596800000 && date.getTime() < 253402300800000)) return integer(micros - 946684800000000n);
  const fraction = ((rest + 1000000n) % 1000000n).toString().padStart(6, '0');
  return date.toISOString().slice(0, 19) + (fraction === '000000' ? '' : `.${fraction}`) + '+00:00';
};

// An integer of 64 bits, which JSON.stringify would round or refuse: a mark, which `toLine` removes.
const integer = (value) => `integer ${value}`;
const toLine = (answer) => JSON.stringify(answer).replace(/"integer (-?\d+)"/g, '$1') + '\n';

exports.cell = (value) => {
  if (value === undefined) return { unchanged: true };
  return value instanceof Uint8Array ? { binary: Buffer.from(value).toString('hex') } : value;
};

exports.replicaIdentity = { default: 'd', nothing: 'n', full: 'f', index: 'i' };
