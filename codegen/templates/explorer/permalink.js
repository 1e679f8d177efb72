// The link that holds the stream, the options and the selection in its hash, which browsers send to no server.

const LONGEST_LINK = 100_000;

/** Return the stream as bytes: for each message its channel, its size in 4 bytes, and its bytes. */
function packStore(store, rows) {
  const parts = rows.flatMap((row) => {
    const bytes = store.bytes(row);
    return [Uint8Array.of(store.channels[row]), encoded((writer) => writer.integer(bytes.length, 4)), bytes];
  });
  return concatenate(parts);
}

/** Return the capture file of a packed stream. */
function unpackStore(packed, settings) {
  const store = new Store(packed.length);
  for (let at = 0; at + 5 <= packed.length; ) {
    const size = frameEnd(packed, at) - at - 1;
    store.add(CHANNELS[packed[at]] ?? "data", packed.subarray(at + 5, at + 5 + size));
    at += 5 + size;
  }
  return new TextEncoder().encode(writeCapture(store, settings));
}

/** Return the hash of a link to what the page shows: the whole stream, or one message if that is too long. */
async function linkHash() {
  const { store, settings, row } = state;
  const path = shown.pieces[state.piece]?.path;
  const all = store.size < LONGEST_LINK * 10;
  const rows = all ? Array.from({ length: store.count }, (_, i) => i) : [row];
  let data = toBase64(await compress(packStore(store, rows), "deflate"));
  const whole = all && data.length <= LONGEST_LINK;
  if (!whole) data = toBase64(await compress(packStore(store, [row]), "deflate"));
  const values = { v: settings.version, s: settings.streaming, t: Number(settings.twoPhase), m: whole ? row + 1 : 1, ...(path && { f: path }), d: data };
  return { hash: `#${new URLSearchParams(values)}`, whole };
}

/** Show the stream that a link's hash holds, if it holds one; a damaged one is told. */
async function openHash(hash) {
  const values = new URLSearchParams(hash.slice(1));
  if (!values.has("d") && !values.has("v")) return;
  const settings = { version: Number(values.get("v")), streaming: values.get("s") ?? "off", twoPhase: values.get("t") === "1" };
  try {
    const packed = fromBase64(values.get("d") ?? "");
    if (!packed?.length) throw new FileError("it holds no stream");
    const [unpacked, damage] = await decompress(packed, "deflate");
    if (damage) throw new FileError(damage);
    await load("open", { bytes: unpackStore(unpacked, settings), settings }, { row: Math.max(0, Math.trunc(Number(values.get("m")) - 1) || 0), path: values.get("f") });
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    byId("problem").textContent = `The link is damaged: ${error.message}`;
  }
}

let ownHash = "";
let linking = 0;

/** Write the link to the address bar, if it is short, after the last of several changes. */
function keepHash() {
  clearTimeout(linking);
  linking = setTimeout(async () => {
    if (state.store.size > 50_000) return;
    const { hash } = await linkHash();
    ownHash = hash;
    history.replaceState(null, "", hash);
  }, 200);
}

addEventListener("hashchange", () => {
  if (location.hash !== ownHash) openHash(location.hash);
});
onChange(keepHash);
