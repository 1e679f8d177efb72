// The text of values in binary format, as PostgreSQL writes it.

/** Return the name of a built-in type, such as `int4` or `text[]`; "" for another one. */
function typeName(oid) {
  return SPEC.types[oid] ?? "";
}

const asView = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.length);

/** Days of 400 years, after which the calendar repeats itself. */
const CYCLE = 146_097;

/** Return a date, given in days since 2000-01-01, and its era: `0044-03-15` and ` BC` (EncodeDateOnly). */
function dateParts(days) {
  const cycles = Math.floor(days / CYCLE);
  const date = new Date(Date.UTC(2000, 0, 1 + days - cycles * CYCLE));
  const year = date.getUTCFullYear() + cycles * 400;
  const text = String(year > 0 ? year : 1 - year).padStart(4, "0") + date.toISOString().slice(4, 10);
  return [text, year > 0 ? "" : " BC"];
}

function dateText(bytes) {
  const days = asView(bytes).getInt32(0);
  if (days === 0x7fffffff) return "infinity";
  return days === -0x80000000 ? "-infinity" : dateParts(days).join("");
}

const DAY = 86_400_000_000n;

/** Return a function that writes a time in microseconds since 2000-01-01, with a zone (EncodeDateTime). */
function timestampText(zone) {
  return (bytes) => {
    const time = asView(bytes).getBigInt64(0);
    if (time === 2n ** 63n - 1n) return "infinity";
    if (time === -(2n ** 63n)) return "-infinity";
    const ofDay = ((time % DAY) + DAY) % DAY;
    const [date, era] = dateParts(Number((time - ofDay) / DAY));
    return `${date} ${timeText(ofDay)}${zone}${era}`;
  };
}

/** Return a time of day, given in microseconds: `12:00:00.5` (EncodeTimeOnly). */
function timeText(time) {
  const parts = [time / 3_600_000_000n, (time / 60_000_000n) % 60n, (time / 1_000_000n) % 60n];
  const fraction = String(time % 1_000_000n).padStart(6, "0").replace(/0+$/, "");
  return parts.map((part) => String(part).padStart(2, "0")).join(":") + (fraction && `.${fraction}`);
}

/** Return the shortest number, with an exponent, that is nearer to a float4 than to its neighbours (f2d in f2s.c). */
function shortestFloat4(value) {
  const bits = new Int32Array(Float32Array.of(value).buffer)[0];
  const limits = [bits - 1, bits + 1].map((one) => (value + new Float32Array(Int32Array.of(one).buffer)[0]) / 2);
  const [mantissa, exponent] = Math.abs(value).toExponential(100).split("e"); // all digits
  const digits = mantissa.replace(".", "");
  for (let i = 0; ; i++) {
    const floor = Number(digits.slice(0, i + 1));
    const rest = digits.slice(i + 1);
    const isUp = /^50*$/.test(rest) ? floor % 2 === 1 : rest >= "5"; // a tie goes to the even digit
    for (const one of isUp ? [floor + 1, floor] : [floor, floor + 1]) {
      const found = Math.sign(value) * Number(`${one}e${exponent - i}`);
      if (Math.fround(found) === value && !limits.includes(found)) return found.toExponential(i);
    }
  }
}

/** Return the shortest text of a float with a size of `digits` decimal digits (float4out, float8out). */
function floatText(value, digits) {
  if (!Number.isFinite(value) || value === 0) return Object.is(value, -0) ? "-0" : String(value);
  const text = digits === 6 ? shortestFloat4(value) : value.toExponential();
  const [mantissa, exponent] = text.split("e");
  if (exponent >= -4 && exponent < digits) return String(Number(text));
  return `${mantissa}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

/** Functions that return the text of a value, by type: its size in bytes, 0 for any, and the function. */
const BINARY = {
  bool: [1, (bytes) => (bytes[0] ? "t" : "f")],
  int2: [2, (bytes) => asView(bytes).getInt16(0)],
  int4: [4, (bytes) => asView(bytes).getInt32(0)],
  int8: [8, (bytes) => asView(bytes).getBigInt64(0)],
  oid: [4, (bytes) => asView(bytes).getUint32(0)],
  float4: [4, (bytes) => floatText(asView(bytes).getFloat32(0), 6)],
  float8: [8, (bytes) => floatText(asView(bytes).getFloat64(0), 15)],
  date: [4, dateText],
  time: [8, (bytes) => timeText(asView(bytes).getBigInt64(0))],
  timestamp: [8, timestampText("")],
  timestamptz: [8, timestampText("+00")],
  uuid: [16, (bytes) => toHex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-")],
  bytea: [0, (bytes) => `\\x${toHex(bytes)}`],
  jsonb: [0, (bytes) => decodeText(bytes.subarray(1))],
  ...Object.fromEntries(["text", "varchar", "bpchar", "name", "json", "xml"].map((name) => [name, [0, decodeText]])),
};

/** Return the text of a value in binary format by the OID of its type; null if the type is not known here. */
function binaryText(bytes, oid) {
  const [size, read] = BINARY[typeName(oid)] ?? [];
  return read && (!size || bytes.length === size) ? String(read(bytes)) : null;
}
