// Runs the decoder of npm's postgres (sql.subscribe) on test vectors.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';

const require = createRequire(import.meta.url);
const { cell, serve, unclaimed } = require('./loop.js');

// The function is not exported.
const path = require.resolve('postgres').replace(/cjs\/src\/index\.js$/, 'src/subscribe.js');
const source = readFileSync(path, 'utf8') + '\nexport { parse };';
const { parse } = await import('data:text/javascript,' + encodeURIComponent(source));

const transform = { column: {}, value: {}, row: {} };

serve(
  () => {
    const state = {};
    return (data) => {
      let json = {};
      const handle = (row, { command, relation, key, old }) => {
        const cells = (values) => relation.columns.map(({ name }) => cell(values[name]));
        json = { type: command[0].toUpperCase() + command.slice(1) };
        if (command === 'delete') json[key ? 'key' : 'old'] = cells(row);
        else json.new = cells(row);
        if (old) json[key ? 'key' : 'old'] = cells(old);
      };
      parse(data, state, {}, handle, transform);
      return data[0] === 0x52 ? relation(state[data.readUInt32BE(1)]) : json;
    };
  },
  (request) => unclaimed(request, [1]),
);

// A schema without a name is changed to pg_catalog.
function relation({ schema, table, columns }) {
  return {
    type: 'Relation',
    namespace: schema === 'pg_catalog' ? '' : schema,
    name: table,
    columns: columns.map(({ key, name, type, atttypmod }) => ({
      flags: key,
      name,
      type_oid: type,
      type_modifier: atttypmod | 0, // it is read as an unsigned number, and not used
    })),
  };
}
