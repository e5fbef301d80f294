// All of the page but its charts.

import {bytes, clock, count, levels, seconds} from './format.js';
import {$, each, make, sentence, setState, setText} from './dom.js';

const roles = {
  starting: 'Starting',
  backfill: 'Backfill: publishes what the table holds, then streams',
  streaming: 'Streams rows as they commit',
  standby: 'Stands by: another relay works',
  polling: 'Polls the table',
};

const stages = {
  writers: ['Writers', (n) => `table ${n.table}`],
  wal: ['WAL and slot', (n) => `slot ${n.slot}`],
  table: ['Outbox table', () => ''],
  connection: ['Replication connection', () => ''],
  relay: ['Relay', () => ''],
  redis: ['Redis stream', (n) => `stream ${n.stream}`],
  groups: ['Consumer groups', () => ''],
};

const shown = 6; // transitions at once

// level is what the page says: what is old is not known.
export function level(v, link) {
  return !v || link === 'lost' ? 'unknown' : v.health.status;
}

export function show(v, link, now) {
  const h = v.health;
  const polling = h.role === 'polling';
  setText($('names'), `${v.names.table} → ${v.names.stream}`);
  showLevel(v, link, now);
  each($('reasons'), v.reasons, () => make('li'), (li, parts) => sentence(li, parts));

  $('outlook').hidden = polling && !v.cause;
  $('cause-row').hidden = polling && !v.cause;
  $('runway-row').hidden = polling;
  $('rates-row').hidden = polling;
  sentence($('cause'), v.cause || [{text: 'No more is kept than usual.'}]);
  setText($('runway'), runway(h));
  setText($('rates'), rates(h.rates));

  each($('path'), v.stages, stage, (li, s) => fillStage(li, s, v, link, now));
  showBlind(h, now);
  showGroups(h, now);
  showTransitions(v);
  setText($('process'), `walrelay ${v.version}` + (h.started ? `, started ${clock(new Date(h.started))}` : ''));
}

function showLevel(v, link, now) {
  const h = v.health;
  const l = level(v, link);
  const last = v.transitions[0];
  let since = '';
  if (l !== 'unknown' && last && last.status === l) since = ` for ${seconds(Math.floor((now - new Date(last.at)) / 1000))}`;
  else if (l === 'ok' && !last && h.started) since = ` for ${seconds(Math.floor((now - new Date(h.started)) / 1000))}`;
  setText($('level'), levels[l]);
  setText($('level-since'), since);
  setText($('role'), link === 'lost' ? `It was: ${roles[h.role] || h.role}` : roles[h.role] || h.role);
}

function runway(h) {
  const r = h.runway_seconds;
  if (h.slot && h.slot.wal_status === 'lost') return 'Over: PostgreSQL has removed WAL that was needed';
  if (r == null) return h.postgresql.away_since ? 'Not known' : 'No end in sight';
  return r === 0 ? 'Used up' : `${seconds(r < 60 ? r : Math.floor(r))} at the present rate`;
}

function rates(r) {
  if (r.written_bytes_per_second == null) return 'Not known yet';
  const confirmed = r.confirmed_bytes_per_second;
  return `${bytes(r.written_bytes_per_second)}/s written, ${confirmed == null ? 'not known what is' : `${bytes(confirmed)}/s`} confirmed`;
}

function stage() {
  const li = make('li', 'stage');
  li.append(make('h3'), make('p', 'state'), make('p', 'where'), make('p', 'doing'));
  return li;
}

function fillStage(li, s, v, link, now) {
  const [title, where] = stages[s.name] || [s.name, () => ''];
  const state = link === 'lost' ? 'unknown' : s.state;
  if (li.dataset.state !== state) li.dataset.state = state;
  setText(li.children[0], title);
  setState(li.children[1], state, levels[state] || state);
  setText(li.children[2], where(v.names) || '');
  const since = s.since ? ` for ${seconds(Math.max(0, Math.floor((now - new Date(s.since)) / 1000)))}` : '';
  setText(li.children[3], s.text + since);
}

// showBlind says that PostgreSQL is as it was when the monitor last saw it.
function showBlind(h, now) {
  const p = h.postgresql;
  $('blind').hidden = !p.away_since;
  document.documentElement.dataset.monitor = p.away_since ? 'blind' : 'sees';
  if (!p.away_since) return;
  const seen = p.seen_at ? `as last seen at ${clock(new Date(p.seen_at))}` : 'not known';
  setText($('blind'), `The monitor has not reached PostgreSQL for ${seconds(Math.max(0, Math.floor((now - new Date(p.away_since)) / 1000)))}: slot, lags and age are ${seen}.`);
}

function showGroups(h) {
  const s = h.stream;
  const groups = s && s.groups || [];
  let note = '';
  if (!s) note = 'Redis has not told of the stream yet.';
  else if (!s.groups) note = s.groups_error ? `They cannot be read: ${s.groups_error}` : 'They are not known.';
  else if (groups.length === 0) note = 'No consumer group reads the stream.';
  else if (s.group_count > groups.length) note = `${groups.length} of ${s.group_count} are shown.`;
  if (s && h.redis.away_since) note += `${note ? ' ' : ''}As last seen: Redis is away.`;
  setText($('groups-note'), note);
  $('groups-note').hidden = !note;
  $('groups-scroll').hidden = groups.length === 0;
  each($('groups'), groups, () => {
    const tr = make('tr');
    const th = make('th');
    th.scope = 'row';
    tr.append(th, make('td'), make('td'), make('td'));
    return tr;
  }, (tr, g) => [g.name, count(g.lag), count(g.pending), count(g.consumers)].forEach((text, i) => setText(tr.children[i], text)));
}

function showTransitions(v) {
  const all = v.transitions;
  const started = v.health.started;
  setText($('transitions-note'), all.length ? '' : `The level has not changed${started ? ` since ${clock(new Date(started))}` : ''}.`);
  $('transitions-note').hidden = all.length > 0;
  each($('transitions'), all.slice(0, shown), transition, fillTransition);
  each($('earlier'), all.slice(shown), transition, fillTransition);
  $('earlier-more').hidden = all.length <= shown;
}

function transition() {
  const li = make('li');
  const what = make('p');
  what.append(make('span', 'state'), make('span', 'lasted'));
  li.append(make('time'), what, make('p', 'why'));
  return li;
}

function fillTransition(li, t) {
  const [time, what, why] = li.children;
  if (time.dateTime !== t.at) time.dateTime = t.at;
  setText(time, clock(new Date(t.at)));
  setState(what.children[0], t.status, levels[t.status]);
  setText(what.children[1], ` after ${seconds(Math.round(t.lasted_seconds))} of ${levels[t.before]}`);
  sentence(why, t.reason);
}
