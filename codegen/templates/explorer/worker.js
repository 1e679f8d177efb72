// Reads, indexes and filters a stream beside the page, which stays responsive.

let current = null;

const COMMANDS = {
  async open({ bytes, settings }, progress) {
    return load(await readFile(bytes, settings), progress);
  },
  apply({ settings }, progress) {
    return load({ ...current, settings }, progress);
  },
  edit({ row, bytes }, progress) {
    return load({ ...current, store: current.store.replaced(row, bytes) }, progress);
  },
  filter({ query }) {
    return filterRows(current.store, current.index, query);
  },
};

function load({ store, format, settings }, progress) {
  const wrong = checkSettings(settings);
  if (wrong) throw new FileError(wrong);
  current = { store, format, settings, index: buildIndex(store, settings, progress) };
  const { size, count } = store;
  const copy = { data: store.data.slice(0, size), ends: store.ends.slice(0, count), channels: store.channels.slice(0, count), size, count };
  return { format, settings, index: current.index, store: copy };
}

onmessage = async ({ data: { id, command, ...values } }) => {
  try {
    const result = await COMMANDS[command](values, (part) => postMessage({ id, part }));
    postMessage({ id, result }, result.store ? [result.store.data.buffer] : []);
  } catch (error) {
    const text = error instanceof RangeError ? `the file is too large for this browser (${error.message})` : error.message;
    postMessage({ id, error: text });
    if (!(error instanceof FileError)) console.error(error);
  }
};
