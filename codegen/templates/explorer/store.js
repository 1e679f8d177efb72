// Messages of a file, one after the other in one array of bytes.

class Store {
  constructor(capacity = 1 << 16) {
    this.data = new Uint8Array(capacity);
    this.ends = new Uint32Array(1024);
    this.channels = new Uint8Array(1024);
    this.size = 0;
    this.count = 0;
    /** What the name of the file's format ends with. */
    this.note = "";
    /** The settings that the file says it has; null for none. */
    this.settings = null;
  }

  /** Make room for `size` more bytes; return the position of the first. */
  reserve(size) {
    if (this.size + size > this.data.length) {
      this.data = grow(this.data, Math.max(this.size + size, this.data.length * 2));
    }
    return this.size;
  }

  /** End a message at the position `end`. */
  finish(channel, end) {
    if (this.count === this.ends.length) {
      this.ends = grow(this.ends, this.count * 2);
      this.channels = grow(this.channels, this.count * 2);
    }
    this.channels[this.count] = CHANNELS.indexOf(channel);
    this.ends[this.count] = this.size = end;
    this.count += 1;
  }

  add(channel, bytes) {
    const at = this.reserve(bytes.length);
    this.data.set(bytes, at);
    this.finish(channel, at + bytes.length);
  }

  /** Return a message's bytes, without a copy. */
  bytes(row) {
    return this.data.subarray(row ? this.ends[row - 1] : 0, this.ends[row]);
  }

  channel(row) {
    return CHANNELS[this.channels[row]];
  }

  /** Return a copy in which message `row` has other bytes; it is removed if they are null. */
  replaced(row, bytes) {
    const copy = new Store(this.size + (bytes?.length ?? 0));
    for (let i = 0; i < this.count; i++) {
      if (i !== row) copy.add(this.channel(i), this.bytes(i));
      else if (bytes) copy.add(this.channel(i), bytes);
    }
    return copy;
  }
}

function grow(array, length) {
  const larger = new array.constructor(length);
  larger.set(array);
  return larger;
}
