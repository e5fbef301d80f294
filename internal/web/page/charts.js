// The charts of the last hour, drawn by uPlot. Each can be read with the arrow
// keys, which a screen reader follows as it does a slider, and as a table.

import {bytes, clock, dash, perSecond, plainSeconds, seconds, short} from './format.js';
import {$, each, make, setText} from './dom.js';
import {points} from './hour.js';

const span = 3600; // seconds
const tableStep = 300;

// Powers of two, for bytes.
const binary = Array.from({length: 56}, (_, i) => 2 ** i);
// Time spans that people count in.
const times = [.1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

export const charts = [
  {id: 'throughput', title: 'Throughput', format: perSecond, mark: short, least: 4,
    series: [{key: 'rows', name: 'rows appended', of: 'mean'}]},
  {id: 'latency', title: 'Latency, commit to append', format: seconds, mark: plainSeconds, log: true,
    series: [{key: 'p50', name: 'p50', of: 'mean'}, {key: 'p99', name: 'p99', of: 'most'}]},
  {id: 'lag', title: 'WAL behind the writers', format: bytes, mark: bytes, least: 64 * 1024, incrs: binary,
    series: [{key: 'unconfirmed', name: 'unconfirmed', of: 'most'}, {key: 'retained', name: 'retained', of: 'most'}]},
  {id: 'age', title: 'Age of the oldest unpublished row', format: seconds, mark: seconds, least: 1, incrs: times,
    series: [{key: 'age', name: 'age', of: 'most'}]},
];

const colours = ['--first', '--second'];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function makeCharts() {
  for (const chart of charts) build(chart);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => charts.forEach((c) => c.plot && c.plot.redraw()));
  return {
    // draw shows the points up to an end, in Unix time.
    draw(end) { for (const chart of charts) draw(chart, end); },
    show(id, visible) { $(id).hidden = !visible; },
  };
}

function build(chart) {
  const figure = make('figure', 'chart');
  figure.id = chart.id;
  const caption = make('figcaption');
  const title = make('h3', '', chart.title);
  title.id = `${chart.id}-title`;
  chart.when = make('span', 'when');
  caption.append(title, chart.when);

  const values = make('dl', 'values');
  chart.values = chart.series.map((s, i) => {
    const row = make('div', i ? 'second' : 'first');
    const name = make('dt');
    name.append(make('i'), make('span', '', s.name));
    const value = make('dd', '', dash);
    row.append(name, value);
    values.append(row);
    return value;
  });

  chart.box = make('div', 'plot');
  chart.none = make('p', 'none', 'No sample yet');
  chart.box.append(chart.none);
  chart.box.tabIndex = 0;
  chart.box.setAttribute('role', 'slider');
  chart.box.setAttribute('aria-label', `${chart.title}: move along the last hour`);
  chart.box.setAttribute('aria-valuemin', '0');
  chart.box.addEventListener('keydown', (e) => move(chart, e));
  chart.box.addEventListener('focus', () => tell(chart, null));
  chart.box.addEventListener('blur', () => chart.plot && chart.plot.setCursor({left: -10, top: -10}));

  chart.details = make('details');
  const scroll = make('div', 'scroll');
  scroll.tabIndex = 0;
  scroll.setAttribute('role', 'region');
  scroll.setAttribute('aria-label', `${chart.title} as a table`);
  const table = make('table');
  const head = make('tr');
  chart.body = make('tbody');
  for (const text of ['Five minutes from', ...chart.series.map((s) => `${s.name}, ${s.of}`)]) {
    const th = make('th', '', text);
    th.scope = 'col';
    head.append(th);
  }
  const thead = make('thead');
  thead.append(head);
  table.append(thead, chart.body);
  scroll.append(table);
  chart.details.append(make('summary', '', 'As a table'), scroll);
  chart.details.addEventListener('toggle', () => fillTable(chart));

  figure.append(caption, values, chart.box, chart.details);
  $('charts').append(figure);
}

function draw(chart, end) {
  chart.end = end;
  const p = points();
  const low = (v) => chart.log && v != null ? Math.max(v, 1e-4) : v; // a logarithm has no zero
  chart.data = [p.at, ...chart.series.map((s) => p[s.key].map(low))];
  chart.status = p.status;
  const known = chart.data.slice(1).some((column) => column.some((v) => v != null));
  setText(chart.none, p.at.length === 0 ? 'The first sample comes in seconds' : 'Nothing was seen in this hour');
  chart.none.hidden = known;
  if (chart.plot) chart.plot.setData(chart.data);
  else plot(chart);
  if (document.activeElement !== chart.box) tell(chart, null);
  show(chart);
  fillTable(chart);
}

function plot(chart) {
  const axis = {stroke: () => css('--muted'), grid: {stroke: () => css('--grid'), width: 1}, ticks: {show: false}, font: '12px system-ui, sans-serif'};
  const size = () => ({width: Math.max(120, chart.box.clientWidth), height: 176});
  const hourMinute = new Intl.DateTimeFormat('en-GB', {hour: '2-digit', minute: '2-digit'});
  chart.plot = new uPlot({
    ...size(),
    padding: [8, 18, 0, 0],
    legend: {show: false},
    cursor: {y: false, drag: {x: false, y: false}, sync: {key: 'hour'}, points: {size: 8}},
    scales: {
      x: {range: () => [chart.end - span, chart.end]},
      y: chart.log ?
        {distr: 3, range: (u, min, max) => min == null ? [1e-4, 1] : [10 ** Math.floor(Math.log10(min)), 10 ** Math.ceil(Math.log10(max) + 1e-9)]} :
        {range: (u, min, max) => [0, Math.max(chart.least, (max || 0) * 1.1)]},
    },
    axes: [
      {...axis, size: 28, space: 56, values: (u, at) => at.map((t) => hourMinute.format(t * 1000))},
      {...axis, size: 64, space: 34, incrs: chart.incrs, values: (u, at) => at.map((v) => v == null ? '' : chart.mark(v)),
        ...chart.log && {filter: decades, grid: {...axis.grid, filter: decades}}},
    ],
    series: [{}, ...chart.series.map((s, i) => ({
      stroke: () => css(colours[i]), width: 2, dash: i ? [6, 4] : undefined,
      points: {show: false, size: 5, fill: () => css(colours[i]), filter: (u, n) => alone(u.data[n])},
    }))],
    hooks: {drawClear: [(u) => shade(chart, u)], setCursor: [() => show(chart)]},
  }, chart.data, chart.box);
  new ResizeObserver(() => chart.plot.setSize(size())).observe(chart.box);
}

// decades are the powers of ten among the marks of a logarithmic axis.
function decades(u, at) {
  return at.map((v) => v != null && Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-6 ? v : null);
}

// alone is the points that no line goes through.
function alone(column) {
  const at = [];
  column.forEach((v, i) => { if (v != null && column[i - 1] == null && column[i + 1] == null) at.push(i); });
  return at;
}

// shade lays the colour of the level under the time at which it was not ok, with
// a line on top of it.
function shade(chart, u) {
  const {left, top, height} = u.bbox;
  const at = u.data[0];
  u.ctx.save();
  for (let i = 0; i < at.length; i++) {
    const level = chart.status[i];
    if (level !== 'warn' && level !== 'critical') continue;
    const from = Math.max(left, u.valToPos(at[i] - 5, 'x', true));
    const to = u.valToPos(at[i], 'x', true);
    if (to <= from) continue;
    u.ctx.fillStyle = css(`--${level}-tint`);
    u.ctx.fillRect(from, top, to - from + .5, height);
    u.ctx.fillStyle = css(`--${level}`);
    u.ctx.fillRect(from, top, to - from + .5, level === 'critical' ? 4 : 2);
  }
  u.ctx.restore();
}

// current is the point that is read: the cursor's, or the last one.
function current(chart) {
  const i = chart.plot && chart.plot.cursor.idx;
  const last = chart.data[0].length - 1;
  return i == null || chart.plot.cursor.left < 0 ? last : Math.min(i, last);
}

function show(chart) {
  if (!chart.data) return;
  const i = current(chart);
  const last = chart.data[0].length - 1;
  chart.values.forEach((el, n) => setText(el, i < 0 ? dash : chart.format(chart.data[n + 1][i])));
  setText(chart.when, i < 0 || i === last ? '' : `at ${clock(new Date(chart.data[0][i] * 1000))}`);
}

const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -60, PageUp: 60, Home: -Infinity, End: Infinity};

function move(chart, e) {
  if (!(e.key in steps) || !chart.plot || chart.data[0].length === 0) return;
  e.preventDefault();
  const last = chart.data[0].length - 1;
  const i = Math.min(last, Math.max(0, current(chart) + steps[e.key]));
  chart.plot.setCursor({left: chart.plot.valToPos(chart.data[0][i], 'x'), top: 0});
  tell(chart, i);
}

// tell has the slider say what there is at a point, or at the last one.
function tell(chart, i) {
  if (!chart.data || chart.data[0].length === 0) {
    chart.box.setAttribute('aria-valuetext', 'no sample yet');
    return;
  }
  const last = chart.data[0].length - 1;
  if (i == null) i = last;
  const values = chart.series.map((s, n) => `${s.name} ${chart.data[n + 1][i] == null ? 'not known' : chart.format(chart.data[n + 1][i])}`);
  chart.box.setAttribute('aria-valuemax', String(last));
  chart.box.setAttribute('aria-valuenow', String(i));
  chart.box.setAttribute('aria-valuetext', `${clock(new Date(chart.data[0][i] * 1000))}: ${values.join(', ')}`);
}

// fillTable shows each five minutes, the last ones first, while it is open.
function fillTable(chart) {
  if (!chart.details.open || !chart.data) return;
  const rows = new Map();
  chart.data[0].forEach((at, i) => {
    const from = Math.floor(at / tableStep) * tableStep;
    if (!rows.has(from)) rows.set(from, chart.series.map(() => []));
    chart.series.forEach((_, n) => { if (chart.data[n + 1][i] != null) rows.get(from)[n].push(chart.data[n + 1][i]); });
  });
  const sum = (all, of) => all.length === 0 ? null : of === 'most' ? Math.max(...all) : all.reduce((a, b) => a + b) / all.length;
  each(chart.body, [...rows].reverse(), () => {
    const tr = make('tr');
    const th = make('th');
    th.scope = 'row';
    tr.append(th, ...chart.series.map(() => make('td')));
    return tr;
  }, (tr, [from, columns]) => {
    setText(tr.children[0], clock(new Date(from * 1000)).replace(/:00$/, ''));
    columns.forEach((all, n) => setText(tr.children[n + 1], chart.format(sum(all, chart.series[n].of))));
  });
}
