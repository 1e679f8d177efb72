// Runs the logicalrep parser of npm's @rocicorp/zero on test vectors. Values stay text, to be compared.
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const { serve, unclaimed } = require('./loop.js');
const { toJson } = require('./messages.js');

// The class is not exported.
const folder = require.resolve('@rocicorp/zero').replace(/zero\/src\/zero\.js$/, 'zero-cache/src/services/');
const { PgoutputParser } = await import(`${folder}change-source/pg/logical-replication/pgoutput-parser.js`);

serve(
  () => {
    const parser = new PgoutputParser({ getTypeParser: () => String });
    return (data) => {
      const message = parser.parse(data);
      return toJson[message.tag](message);
    };
  },
  (request) => unclaimed(request, [1], 'messages', 'binary'),
);
