// Reads, indexes and filters a stream beside the page, which stays responsive.

let current = null;

/** Edits that can be taken back, and those that were taken back: the row of a message, and its bytes then. */
let past = [];
let future = [];

const COMMANDS = {
  async open({ bytes, settings }, progress) {
    const opened = load(await readFile(bytes, settings), progress);
    [past, future] = [[], []];
    return { ...opened, past: 0, future: 0 };
  },
  apply({ settings }, progress) {
    return load({ ...current, settings }, progress);
  },
  edit({ row, bytes }, progress) {
    future = [];
    return replace(row, bytes, past, progress);
  },
  undo(_, progress) {
    const { row, bytes } = past.pop();
    return replace(row, bytes, future, progress);
  },
  redo(_, progress) {
    const { row, bytes } = future.pop();
    return replace(row, bytes, past, progress);
  },
  filter({ query }) {
    return filterRows(current.store, current.index, query);
  },
};

/** Give a message other bytes, and put those that it had on a stack. */
function replace(row, bytes, stack, progress) {
  stack.push({ row, bytes: current.store.bytes(row).slice() });
  const result = load({ ...current, store: current.store.replaced(row, bytes) }, progress);
  return { ...result, row, past: past.length, future: future.length };
}

function load({ store, format, settings, damage }, progress) {
  const wrong = checkSettings(settings);
  if (wrong) throw new FileError(wrong);
  current = { store, format, settings, damage, index: buildIndex(store, settings, progress) };
  const { size, count } = store;
  const copy = { data: store.data.slice(0, size), ends: store.ends.slice(0, count), channels: store.channels.slice(0, count), size, count };
  return { format, settings, damage, index: current.index, store: copy };
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
