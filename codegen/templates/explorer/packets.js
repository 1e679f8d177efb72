// Reads pcap and pcapng files: the messages of logical replication in TCP connections to a PostgreSQL server.

const PCAP = { 0xa1b2c3d4: false, 0xa1b23c4d: false, 0xd4c3b2a1: true, 0x4d3cb2a1: true };
const PCAPNG = 0x0a0d0d0a;

function isPackets(bytes) {
  if (bytes.length < 24) return false;
  const magic = new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0);
  return magic in PCAP || magic === PCAPNG;
}

function readPackets(bytes, store) {
  const connections = new Map();
  const read = new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0) === PCAPNG ? eachBlock : eachPacket;
  let order = 0;
  read(bytes, (packet, link) => {
    const segment = findSegment(packet, link);
    if (segment) addSegment(connections, segment, order++);
  });
  let settings = {};
  const messages = [];
  for (const one of connections.values()) {
    for (const { bytes: frame, order: at } of frames(one)) {
      const query = frame[0] === 0x51 ? UTF8.decode(frame.subarray(5, -1)) : "";
      if (/^\s*START_REPLICATION\s+SLOT/i.test(query)) settings = readCommand(query);
      if (frame[0] === 0x64) messages.push({ at, data: frame.subarray(5), sender: one.sender });
    }
  }
  messages.sort((a, b) => a.at - b.at);
  for (const { data, sender } of messages) addCopyData(data, store, sender);
  return settings;
}

/** Return the settings in the command START_REPLICATION. */
function readCommand(query) {
  const option = (name) => new RegExp(`"?${name}"?\\s+'([^']*)'`, "i").exec(query)?.[1];
  const streaming = option("streaming") ?? "off";
  return {
    version: Number(option("proto_version") ?? LATEST),
    streaming: { true: "on", false: "off" }[streaming] ?? streaming,
    twoPhase: ["on", "true"].includes(option("two_phase") ?? ""),
  };
}

function eachPacket(bytes, use) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const little = PCAP[view.getUint32(0)];
  const link = view.getUint32(20, little) & 0xffff;
  for (let at = 24; at + 16 <= bytes.length; ) {
    const size = view.getUint32(at + 8, little);
    use(bytes.subarray(at + 16, at + 16 + size), link);
    at += 16 + size;
  }
}

function eachBlock(bytes, use) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let little = false;
  let links = [];
  for (let at = 0; at + 12 <= bytes.length; ) {
    if (view.getUint32(at) === PCAPNG) {
      little = view.getUint32(at + 8) === 0x4d3c2b1a;
      links = [];
    }
    const type = view.getUint32(at, little);
    const size = view.getUint32(at + 4, little);
    if (size < 12) return;
    if (type === 1) links.push(view.getUint16(at + 8, little));
    if (type === 6 && at + 28 <= bytes.length) {
      const length = view.getUint32(at + 20, little);
      use(bytes.subarray(at + 28, at + 28 + length), links[view.getUint32(at + 8, little)]);
    }
    at += size;
  }
}

/** Sizes of the headers before an IP packet, by the link's type; Ethernet's may be longer. */
const LINK_HEADERS = { 0: 4, 1: 14, 12: 0, 101: 0, 108: 4, 113: 16, 228: 0, 229: 0, 276: 20 };

/** Return the TCP segment of a packet: its ends, its position in the stream and its bytes; null for others. */
function findSegment(packet, link) {
  let at = LINK_HEADERS[link];
  if (at === undefined) return null;
  while (link === 1 && packet[at - 2] === 0x81 && packet[at - 1] === 0) at += 4; // VLAN
  const view = new DataView(packet.buffer, packet.byteOffset, packet.length);
  if (packet.length < at + 20) return null;
  const six = packet[at] >> 4 === 6;
  if ((!six && packet[at] >> 4 !== 4) || packet[at + (six ? 6 : 9)] !== 6) return null;
  const tcp = at + (six ? 40 : (packet[at] & 15) * 4);
  const size = six ? view.getUint16(at + 4) + 40 : view.getUint16(at + 2) || packet.length - at;
  if (tcp + 20 > packet.length) return null;
  const addresses = six ? packet.subarray(at + 8, at + 40) : packet.subarray(at + 12, at + 20);
  const half = addresses.length / 2;
  return {
    from: `${toHex(addresses.subarray(0, half))}:${view.getUint16(tcp)}`,
    to: `${toHex(addresses.subarray(half))}:${view.getUint16(tcp + 2)}`,
    sequence: view.getUint32(tcp + 4),
    starts: Boolean(packet[tcp + 13] & 2),
    data: packet.subarray(tcp + (packet[tcp + 12] >> 4) * 4, at + size),
  };
}

function addSegment(connections, { from, to, sequence, starts, data }, order) {
  const key = `${from} ${to}`;
  if (starts || !connections.has(key)) {
    const used = connections.get(key);
    if (used && used.segments.length) connections.set(`${key} ${order}`, used); // the ports are used again
    connections.set(key, { base: (sequence + (starts ? 1 : 0)) >>> 0, segments: [], sender: "" });
  }
  const one = connections.get(key);
  if (data.length) one.segments.push({ at: (sequence - one.base) | 0, data, order });
}

/** Yield the frames of the protocol in one direction of a connection, without what was sent twice. */
function* frames(connection) {
  const segments = connection.segments.sort((a, b) => a.at - b.at || a.order - b.order);
  const parts = [];
  let size = 0;
  for (const one of segments) {
    if (one.at + one.data.length <= size) continue;
    if (one.at > size) break; // a packet is missing
    parts.push({ data: one.data.subarray(size - one.at), end: one.at + one.data.length, order: one.order });
    size = one.at + one.data.length;
  }
  const bytes = concatenate(parts.map(({ data }) => data));
  const untagged = startupEnd(bytes);
  connection.sender = untagged > 0 ? "client" : "server";
  let part = 0;
  for (let at = untagged; at + 5 <= bytes.length; ) {
    const end = frameEnd(bytes, at);
    if (end < at + 5 || end > bytes.length) return;
    while (part < parts.length - 1 && parts[part].end < end) part += 1;
    yield { bytes: bytes.subarray(at, end), order: parts[part]?.order ?? 0 };
    at = end;
  }
}

/** Return the end of a client's startup messages, which have no tag: 0 for a server. */
function startupEnd(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0;
  while (at + 8 <= bytes.length && [0x30000, 0x30002, 80877103, 80877104].includes(view.getUint32(at + 4))) {
    at += view.getUint32(at);
  }
  return at;
}
