// LSNs, timestamps, and the marker UNCHANGED.

export const UNCHANGED = Symbol("UNCHANGED");

/** PostgreSQL's epoch, 2000-01-01 00:00 UTC, in microseconds since 1970-01-01 00:00 UTC. */
export const EPOCH_UNIX_MICROSECONDS = 946_684_800_000_000n;

/** The first and the last moment with a year from 1 to 9999, in microseconds since 1970-01-01 00:00 UTC. */
const YEARS = { first: -62_135_596_800_000_000n, last: 253_402_300_799_999_999n };

/** Return an LSN as PostgreSQL writes it: `16/B374D848` (pg_lsn_out). */
export function formatLsn(lsn) {
  if (BigInt.asUintN(64, lsn) !== lsn) {
    throw new RangeError(`an LSN is a number from 0 to 2**64 - 1, not ${lsn}`);
  }
  return `${(lsn >> 32n).toString(16)}/${(lsn & 0xffffffffn).toString(16)}`.toUpperCase();
}

/** Return the LSN of a text such as `16/B374D848` (pg_lsn_in). */
export function parseLsn(text) {
  const parts = /^([0-9a-f]{1,8})\/([0-9a-f]{1,8})$/i.exec(text);
  if (parts === null) throw new RangeError(`'${text}' is not an LSN such as '16/B374D848'`);
  return (BigInt(`0x${parts[1]}`) << 32n) | BigInt(`0x${parts[2]}`);
}

/** Return a timestamp in ISO 8601 with its microseconds; null if its year is not from 1 to 9999. */
export function formatTimestamp(timestamp) {
  const unix = timestamp + EPOCH_UNIX_MICROSECONDS;
  if (unix < YEARS.first || unix > YEARS.last) return null;
  const fraction = modulo(unix, 1_000_000n);
  const seconds = new Date(Number((unix - fraction) / 1000n)).toISOString().slice(0, 19);
  return `${seconds}${fraction === 0n ? "" : `.${String(fraction).padStart(6, "0")}`}+00:00`;
}

/** Return the timestamp of a time in ISO 8601 with a zone. */
export function parseTimestamp(time) {
  const parts = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(?:Z|([+-])(\d\d):(\d\d))$/.exec(time);
  const date = new Date(`${parts?.[1]}Z`);
  // Date takes 24:00:00, and February 30 for a day in March.
  const isInYears = parts !== null && !parts[1].startsWith("0000");
  if (!isInYears || Number.isNaN(date.getTime()) || date.toISOString().slice(0, 19) !== parts[1]) {
    throw new RangeError(`'${time}' is not a time such as '2026-01-01T00:00:00+00:00'`);
  }
  const [, , fraction = "", sign, hours = 0, minutes = 0] = parts;
  const offset = BigInt(`${sign === "-" ? "-" : ""}${Number(hours) * 60 + Number(minutes)}`);
  return fromDate(date) + BigInt(fraction.padEnd(6, "0")) - offset * 60_000_000n;
}

export function toDate(timestamp) {
  const unix = timestamp + EPOCH_UNIX_MICROSECONDS;
  const date = new Date(Number((unix - modulo(unix, 1000n)) / 1000n));
  if (Number.isNaN(date.getTime())) throw new RangeError(`no Date has the timestamp ${timestamp}`);
  return date;
}

export function fromDate(date) {
  return BigInt(date.getTime()) * 1000n - EPOCH_UNIX_MICROSECONDS;
}

/**
 * Return the remainder of a division that rounds down; it is never negative.
 *
 * @param {bigint} value
 * @param {bigint} divisor
 */
function modulo(value, divisor) {
  return ((value % divisor) + divisor) % divisor;
}
