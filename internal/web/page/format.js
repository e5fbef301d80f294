// Numbers and times as people read them. What is not known is a dash.

export const dash = '–';

const plain = new Intl.NumberFormat('en', {maximumFractionDigits: 0});

// short is a number with at most three digits that matter.
export function short(n) {
  const a = Math.abs(n);
  return a >= 100 ? plain.format(n) : a >= 10 ? n.toFixed(1).replace(/\.0$/, '') : n.toFixed(a < 1 && a > 0 ? 2 : 1).replace(/\.?0+$/, '');
}

export function count(n) { return n == null ? dash : plain.format(n); }

export function perSecond(n) { return n == null ? dash : `${short(n)} rows/s`; }

const sizes = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

export function bytes(n) {
  if (n == null) return dash;
  let i = 0;
  for (; Math.abs(n) >= 1023.5 && i < sizes.length - 1; i++) n /= 1024;
  return `${i === 0 ? plain.format(n) : short(n)} ${sizes[i]}`;
}

// seconds is a time span, in one unit below a minute and in two above.
export function seconds(s) {
  if (s == null) return dash;
  if (s === 0) return '0 s';
  if (s < 1e-3) return `${short(s * 1e6)} µs`;
  if (s < 1) return `${short(s * 1e3)} ms`;
  if (s < 60) return `${short(s)} s`;
  const two = (large, name, small, smaller) => {
    const rest = Math.floor(s % large / small);
    return `${Math.floor(s / large)} ${name}` + (rest > 0 ? ` ${rest} ${smaller}` : '');
  };
  if (s < 3600) return two(60, 'min', 1, 's');
  if (s < 86400) return two(3600, 'h', 60, 'min');
  return two(86400, 'd', 3600, 'h');
}

// plainSeconds is a power of ten of seconds.
export function plainSeconds(s) { return s < 1 ? seconds(s) : `${plain.format(s)} s`; }

const clockTime = new Intl.DateTimeFormat('en-GB', {hour: '2-digit', minute: '2-digit', second: '2-digit'});
const dayTime = new Intl.DateTimeFormat('en-GB', {day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit', second: '2-digit'});

// clock is a time of day, with the day where that is not today's.
export function clock(date) {
  return date.toDateString() === new Date().toDateString() ? clockTime.format(date) : dayTime.format(date);
}

export const levels = {ok: 'OK', warn: 'Warning', critical: 'Critical', unknown: 'Not known', idle: 'Idle'};
