// The samples of the last hour. What was seen of a relay before it was started
// anew is kept here, since that has forgotten it.

const span = 3600, step = 5; // seconds
const columns = ['rows', 'p50', 'p99', 'unconfirmed', 'retained', 'age'];

let samples = []; // {at, status, rows, …}, the oldest first

const unpack = (c) => c.at.map((at, i) => ({at, status: c.status[i], ...Object.fromEntries(columns.map((k) => [k, c[k][i]]))}));

// take takes what a relay knows of the last hour, or a new sample.
export function take(c) {
  const more = unpack(c);
  const from = more.length ? more[0].at : Infinity;
  samples = samples.filter((s) => s.at < from).concat(more);
  const last = samples.length ? samples[samples.length - 1].at : 0;
  samples = samples.filter((s) => s.at > last - span);
}

// points are the samples by column, with a hole where some are missing.
export function points() {
  const p = {at: [], status: []};
  for (const k of columns) p[k] = [];
  let before = null;
  for (const s of samples) {
    if (before !== null && s.at - before > 3 * step) add(p, {at: before + step, status: null});
    add(p, s);
    before = s.at;
  }
  return p;
}

function add(p, s) {
  p.at.push(s.at);
  p.status.push(s.status);
  for (const k of columns) p[k].push(s[k] ?? null);
}
