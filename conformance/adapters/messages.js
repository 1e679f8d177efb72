// The messages of pg-logical-replication, and of pgwire, from which it took the names of fields, as JSON.
const { cell, lsn, replicaIdentity, time } = require('./loop.js');

const oid = ({ relationOid }) => relationOid;
const row = ({ columns }, values) => columns.map(({ name }) => cell(values[name]));
// A key has only the columns of the replica identity.
const keyRow = ({ columns }, values) => columns.map(({ name }) => cell(values[name] ?? null));
// An unchanged value in `after` was replaced by that in `old`: equal ones are not compared.
const newRow = ({ columns }, after, old) =>
  columns.map(({ name }) => (old && old[name] === after[name] ? {} : cell(after[name])));

exports.toJson = {
  begin: (m) => ({ type: 'Begin', final_lsn: lsn(m.commitLsn), commit_time: time(m.commitTime), xid: m.xid }),
  commit: (m) => ({
    type: 'Commit',
    commit_lsn: lsn(m.commitLsn),
    end_lsn: lsn(m.commitEndLsn),
    commit_time: time(m.commitTime),
  }),
  origin: (m) => ({ type: 'Origin', origin_lsn: lsn(m.originLsn), name: m.originName }),
  type: (m) => ({ type: 'Type', oid: m.typeOid, namespace: m.typeSchema, name: m.typeName }),
  relation: (m) => ({
    type: 'Relation',
    oid: m.relationOid,
    namespace: m.schema,
    name: m.name,
    replica_identity: replicaIdentity[m.replicaIdentity] ?? m.replicaIdentity,
    columns: m.columns.map(({ flags, name, typeOid, typeMod }) => ({
      flags,
      name,
      type_oid: typeOid,
      type_modifier: typeMod,
    })),
  }),
  insert: (m) => ({ type: 'Insert', relation_oid: oid(m.relation), new: row(m.relation, m.new) }),
  update: (m) => ({
    type: 'Update',
    relation_oid: oid(m.relation),
    key: m.key && keyRow(m.relation, m.key),
    old: m.old && row(m.relation, m.old),
    new: newRow(m.relation, m.new, m.old),
  }),
  delete: (m) => ({
    type: 'Delete',
    relation_oid: oid(m.relation),
    key: m.key && keyRow(m.relation, m.key),
    old: m.old && row(m.relation, m.old),
  }),
  truncate: (m) => ({
    type: 'Truncate',
    options: m.cascade + 2 * m.restartIdentity,
    relation_oids: m.relations.map(oid),
  }),
  message: (m) => ({
    type: 'LogicalMessage',
    flags: m.flags,
    lsn: lsn(m.messageLsn),
    prefix: m.prefix,
    content: cell(m.content),
  }),
};
