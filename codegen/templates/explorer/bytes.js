// Bytes of hexadecimal digits and base64.

const DIGITS = new Int8Array(256).fill(-1);
for (let i = 0; i < 16; i++) {
  DIGITS["0123456789abcdef".charCodeAt(i)] = i;
  DIGITS["0123456789ABCDEF".charCodeAt(i)] = i;
}

/** Write the bytes of hexadecimal digits to `target` at `at`; return the position after them, -1 if a digit is wrong. */
function writeHex(source, start, end, target, at) {
  if ((end - start) % 2) return -1;
  for (let i = start; i < end; i += 2) {
    const byte = (DIGITS[source[i]] << 4) | DIGITS[source[i + 1]];
    if (byte < 0) return -1;
    target[at++] = byte;
  }
  return at;
}

/** Return the bytes of hexadecimal digits, which spaces may separate; null if the text is not that. */
function fromHex(text) {
  const digits = text.replace(/\s+/g, "");
  if (digits.length % 2 || !/^[0-9a-f]*$/i.test(digits)) return null;
  return parseHex(digits);
}

/** Return the bytes of base64, with the alphabet of URLs or the other one; null if the text is not base64. */
function fromBase64(text) {
  try {
    const plain = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
    return Uint8Array.from(plain, (character) => character.charCodeAt(0));
  } catch {
    return null;
  }
}

/** Return bytes as base64 with the alphabet of URLs, without padding. */
function toBase64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

/** Return the concatenation of byte arrays. */
function concatenate(parts) {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
