// Text and bytes of messages: UTF-8 to strings and back without loss, and bytes as hexadecimal digits.
//
// Bytes that are not valid UTF-8 become the lone surrogates U+DC80 to U+DCFF, as in Python (PEP 383).

const encoder = new TextEncoder();
const latin1Decoder = new TextDecoder("latin1");
const utf8Decoder = new TextDecoder("utf-8", { ignoreBOM: true });

// The methods of Node's Buffer are several times as fast as TextDecoder; other runtimes may lack them.
const buffer = globalThis.Buffer?.prototype;
const latin1Slice = buffer?.latin1Slice ?? slice(latin1Decoder);
const utf8Slice = buffer?.utf8Slice ?? slice(utf8Decoder);

function slice(decoder) {
  return /** @this {Uint8Array} */ function (start, end) {
    return decoder.decode(this.subarray(start, end));
  };
}

/** Return bytes as a string of one character per byte. The characters of bytes above 0x7F are unspecified. */
export function decodeBytes(data) {
  return latin1Slice.call(data, 0, data.length);
}

/** Return whether all bytes from `start` to `end` are ASCII characters. */
export function isAscii(data, start, end) {
  let bits = 0;
  for (let i = start; i < end; i++) bits |= data[i];
  return bits < 0x80;
}

/** Return the text of the bytes from `start` to `end`. */
export function decodeText(data, start = 0, end = data.length) {
  const text = utf8Slice.call(data, start, end);
  return text.includes("\ufffd") ? decodeEscaped(data, start, end) : text;
}

function decodeEscaped(data, start, end) {
  let text = "";
  let pos = start;
  while (pos < end) {
    const size = characterSize(data, pos, end);
    if (size === 0) text += String.fromCharCode(0xdc00 + data[pos]);
    else text += utf8Slice.call(data, pos, pos + size);
    pos += size || 1;
  }
  return text;
}

/** Return the size of the UTF-8 character at `pos`, in bytes; 0 if the bytes there are not valid UTF-8. */
function characterSize(data, pos, end) {
  const first = data[pos];
  if (first < 0x80) return 1;
  const size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (pos + size > end) return 0;
  for (let i = 1; i < size; i++) if (data[pos + i] >> 6 !== 2) return 0;
  const second = data[pos + 1];
  const overlong = (first === 0xe0 && second < 0xa0) || (first === 0xf0 && second < 0x90);
  const surrogate = first === 0xed && second > 0x9f;
  const tooHigh = first === 0xf4 && second > 0x8f;
  return overlong || surrogate || tooHigh ? 0 : size;
}

/**
 * Return the bytes of a text in which lone surrogates represent bytes that are not valid UTF-8.
 *
 * Throws RangeError if no decoder returns this text: a surrogate represents no byte, or several surrogates
 * together represent bytes that are valid UTF-8.
 */
export function encodeText(text) {
  if (!/\p{Surrogate}/u.test(text)) return encoder.encode(text);
  const parts = [];
  for (const one of text) {
    const code = one.codePointAt(0);
    if (code < 0xd800 || code > 0xdfff) parts.push(...encoder.encode(one));
    else if (code >= 0xdc80 && code <= 0xdcff) parts.push(code - 0xdc00);
    else throw new RangeError(`the character '\\u${code.toString(16)}' stands for no byte`);
  }
  const data = Uint8Array.from(parts);
  if (decodeText(data) !== text) throw new RangeError("surrogates stand for bytes that are valid UTF-8");
  return data;
}

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

/** Return bytes as hexadecimal digits. */
export function toHex(bytes, separator = "") {
  return Array.from(bytes, (byte) => HEX[byte]).join(separator);
}

/** Return the bytes of hexadecimal digits, two for each byte, without anything else between them. */
export function parseHex(digits) {
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

/** Return a byte as hexadecimal digits: `0x0a`. */
export function hexByte(byte) {
  return `0x${HEX[byte] ?? byte.toString(16)}`;
}

/** Return a byte in the texts of errors: `'N'` or `0x00`. */
export function character(byte) {
  return byte > 0x20 && byte < 0x7f ? `'${String.fromCharCode(byte)}'` : hexByte(byte);
}
