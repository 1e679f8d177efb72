// Reads pcap and pcapng files: the messages of logical replication in TCP connections to a PostgreSQL server.

const PCAP = { 0xa1b2c3d4: false, 0xa1b23c4d: false, 0xd4c3b2a1: true, 0x4d3cb2a1: true };
const PCAPNG = 0x0a0d0d0a;

function isPackets(bytes) {
  if (bytes.length < 24) return false;
  const magic = new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0);
  return magic in PCAP || magic === PCAPNG;
}

function readPackets(bytes, store) {
  const isBlocks = new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0) === PCAPNG;
  let end = 0;
  readConnections((use) => (end = (isBlocks ? eachBlock : eachPacket)(bytes, use)), store);
  if (end < bytes.length) throw new FileError(`byte ${end}: no whole ${isBlocks ? "block" : "packet"} begins here`);
}

/** Add the messages of packets: `each` calls a function with each packet and the type of its link. */
function readConnections(each, store) {
  const connections = new Map();
  let order = 0;
  each((packet, link) => {
    const segment = findSegment(packet, link);
    if (segment) addSegment(connections, segment, order++);
  });
  let gaps = 0;
  const messages = [];
  for (const { segments } of connections.values()) {
    const runs = joinSegments(segments);
    gaps += Math.max(0, runs.length - 1);
    let copies = "unknown"; // what CopyData has: "replication", "tables", or "unknown" if its beginning is missing
    for (const { tag, body, order: at } of runs.flatMap((run) => [...frames(run)])) {
      const query = tag === "Q" ? decodeText(body, 0, body.length - 1) : "";
      if (/^\s*START_REPLICATION\s+SLOT/i.test(query)) store.settings = readCommand(query);
      if (query) copies = /^\s*START_REPLICATION/i.test(query) ? "replication" : "tables";
      copies = { W: "replication", H: "tables", G: "tables" }[tag] ?? copies;
      const isMessage = copies === "replication" || (copies === "unknown" && isEnvelope(body));
      if (tag === "d" && isMessage) messages.push({ at, body });
    }
  }
  messages.sort((a, b) => a.at - b.at);
  for (const { body } of messages) addCopyData(body, store);
  if (gaps) store.note = `, in which packets are missing in ${gaps} place${gaps === 1 ? "" : "s"}`;
}

/** Return the settings in the command START_REPLICATION. */
function readCommand(query) {
  const option = (name) => new RegExp(`"?${name}"?\\s+'([^']*)'`, "i").exec(query)?.[1];
  const streaming = (option("streaming") ?? "off").toLowerCase();
  return {
    version: Number(option("proto_version") ?? LATEST),
    streaming: { true: "on", false: "off" }[streaming] ?? streaming,
    twoPhase: !["off", "false", "0"].includes(option("two_phase") ?? ""), // the slot may have it, too
  };
}

/** Call a function with each packet of a pcap file; return the end of the last one. */
function eachPacket(bytes, use) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const little = PCAP[view.getUint32(0)];
  const link = view.getUint32(20, little) & 0xffff;
  let at = 24;
  while (at + 16 <= bytes.length) {
    const size = view.getUint32(at + 8, little);
    if (!size || size > bytes.length - at - 16) break;
    use(bytes.subarray(at + 16, at + 16 + size), link);
    at += 16 + size;
  }
  return at;
}

/** Call a function with each packet of a pcapng file; return the end of the last block. */
function eachBlock(bytes, use) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let little = false;
  let links = [];
  let at = 0;
  while (at + 12 <= bytes.length) {
    if (view.getUint32(at) === PCAPNG) {
      little = view.getUint32(at + 8) === 0x4d3c2b1a;
      links = [];
    }
    const type = view.getUint32(at, little);
    const size = view.getUint32(at + 4, little);
    if (size < 12 || size > bytes.length - at || view.getUint32(at + size - 4, little) !== size) break;
    if (type === 1) links.push(view.getUint16(at + 8, little));
    if (type === 6 && at + 28 <= bytes.length) {
      const length = view.getUint32(at + 20, little);
      if (length > size - 32) break;
      use(bytes.subarray(at + 28, at + 28 + length), links[view.getUint32(at + 8, little)]);
    }
    at += size;
  }
  return at;
}

const ETHERNET = 1;
const RAW = 101;

/** Sizes of the headers before an IP packet, by the link's type; Ethernet's may be longer. */
const LINK_HEADERS = { 0: 4, 1: 14, 12: 0, 101: 0, 108: 4, 113: 16, 228: 0, 229: 0, 276: 20 };

/** Return the type of the link if bytes are a packet with a TCP segment, and not a message; null for others. */
function linkOf(bytes) {
  const type = (bytes[12] << 8) | bytes[13];
  const isIp = bytes[0] === 0x45 && ((bytes[2] << 8) | bytes[3]) === bytes.length;
  const link = [0x0800, 0x8100, 0x86dd].includes(type) ? ETHERNET : isIp ? RAW : null;
  return link !== null && findSegment(bytes, link) ? link : null;
}

/** Return the TCP segment of a packet: its ends, its position in the stream and its bytes; null for others. */
function findSegment(packet, link) {
  let at = LINK_HEADERS[link];
  if (at === undefined) return null;
  while (link === ETHERNET && packet[at - 2] === 0x81 && packet[at - 1] === 0) at += 4; // VLAN
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
    connections.set(key, { base: (sequence + (starts ? 1 : 0)) >>> 0, segments: [] });
  }
  const one = connections.get(key);
  if (data.length) one.segments.push({ at: (sequence - one.base) | 0, data, order });
}

/** Return the runs of segments without a gap between them, without what was sent twice. */
function joinSegments(segments) {
  const runs = [];
  let end = 0;
  let latest = 0; // a frame is complete when all packets before its end have come
  for (const { at, data, order } of segments.sort((a, b) => a.at - b.at || a.order - b.order)) {
    if (!runs.length || at > end) {
      runs.push([]);
      end = at;
    }
    if (at + data.length <= end) continue;
    latest = Math.max(latest, order);
    runs.at(-1).push({ data: data.subarray(end - at), order: latest });
    end = at + data.length;
  }
  return runs;
}

/** Yield the protocol's frames in a run of segments. After bytes that begin no frame, the next segment is tried. */
function* frames(run) {
  const bytes = concatenate(run.map(({ data }) => data));
  const ends = [];
  for (const { data } of run) ends.push((ends.at(-1) ?? 0) + data.length);
  let part = 0;
  for (let at = startupEnd(bytes); at + 5 <= bytes.length; ) {
    while (ends[part] <= at) part += 1;
    const end = frameEnd(bytes, at);
    const tag = String.fromCharCode(bytes[at]);
    if (!/[A-Za-z1-3]/.test(tag) || end < at + 5 || end > bytes.length) {
      at = ends[part];
      continue;
    }
    while (ends[part] < end) part += 1;
    yield { tag, body: bytes.subarray(at + 5, end), order: run[part].order };
    at = end;
  }
}

/** Return the end of a client's startup messages, which have no tag: 0 for a server. */
function startupEnd(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0;
  while (at + 8 <= bytes.length && [0x30000, 0x30002, 80877103, 80877104].includes(view.getUint32(at + 4))) {
    at += Math.max(8, view.getUint32(at));
  }
  return at;
}
