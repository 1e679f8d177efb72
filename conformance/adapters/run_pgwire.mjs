// Runs npm's pgwire on test vectors: the messages go through ReplicationStream.pgoutputDecode.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';

const require = createRequire(import.meta.url);
const { serve, unclaimed } = require('./loop.js');
const { toJson } = require('./messages.js');

// The class is not exported.
const source = readFileSync(require.resolve('pgwire').replace(/index\.js$/, 'mod.js'), 'utf8');
const module = 'data:text/javascript,' + encodeURIComponent(source + '\nexport { LogicalrepReader };');
const { LogicalrepReader } = await import(module);

serve(
  () => {
    const queue = [];
    const stream = { async *[Symbol.asyncIterator]() { for (;;) yield { messages: [queue.shift()] }; } };
    const decoder = LogicalrepReader.decodeStream(stream);
    return async (data) => {
      queue.push({ data });
      const { done, value } = await decoder.next();
      if (done) throw Error('the stream has ended');
      const [message] = value.messages;
      // A key and an old row are not told apart.
      const { beforeRaw: old, afterRaw: after } = message;
      const { key, old: _, ...json } = toJson[message.tag]({ ...message, new: after, old });
      return json;
    };
  },
  (request) => unclaimed(request, [1], 'messages', 'binary'),
);
