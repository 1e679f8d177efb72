// Runs npm's pg-logical-replication on test vectors. Values stay text, so that they can be compared.
const { PgoutputPlugin } = require('pg-logical-replication');
const { types } = require('pg');
const { serve, unclaimed } = require('./loop.js');
const { toJson } = require('./messages.js');

types.getTypeParser = () => (text) => text;

serve(
  () => {
    const plugin = new PgoutputPlugin({ protoVersion: 1, publicationNames: ['p'] });
    return (data) => {
      const message = plugin.parse(data);
      return toJson[message.tag](message);
    };
  },
  (request) => unclaimed(request, [1, 2], 'messages', 'binary'),
);
