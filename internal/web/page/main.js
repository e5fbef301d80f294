import {makeCharts} from './charts.js';
import {$, setText} from './dom.js';
import {clock, levels, seconds} from './format.js';
import {showIcon} from './icon.js';
import {take} from './hour.js';
import {listen} from './live.js';
import {level, show} from './view.js';

const root = document.documentElement;
const charts = makeCharts();
let view = null; // the last one
let viewAt = 0; // when it came, by a clock that nobody sets
let link = 'connecting';
let said = ''; // the level that was announced

// now is the relay's time.
const now = () => new Date(view.now).getTime() + performance.now() - viewAt;
const end = () => Math.floor((view ? now() : Date.now()) / 1000);

function render() {
  const l = level(view, link);
  if (root.dataset.level !== l) root.dataset.level = l;
  showIcon(l);
  const word = link === 'lost' ? 'No connection' : levels[l];
  const title = view ? `${word} · ${view.names.stream} · walrelay` : `${word} · walrelay`;
  if (document.title !== title) document.title = title;
  if (view) show(view, link, link === 'lost' ? new Date(view.now).getTime() : now());
  announce(l);
}

// announce has a screen reader say the level when it changes, and nothing else.
function announce(l) {
  const what = link === 'lost' ? 'lost' : l;
  if (what === said || !view && link !== 'lost') return;
  said = what;
  const first = view && view.reasons[0] ? view.reasons[0].map((p) => p.text).join('') : '';
  setText($('announce'), what === 'lost' ? 'No connection to walrelay.' : `Level: ${levels[l]}. ${l === 'ok' ? '' : first}`);
}

listen({
  hour(columns) {
    take(columns);
    charts.draw(end());
  },
  sample(columns) {
    take(columns);
    charts.draw(end());
  },
  view(v) {
    const other = v.assets !== root.dataset.assets || view && JSON.stringify(view.names) !== JSON.stringify(v.names);
    if (other && performance.now() > 10000) { // another release, or another relay
      location.reload();
      return;
    }
    view = v;
    viewAt = performance.now();
    const polling = v.health.role === 'polling'; // which knows of no commit, and holds no WAL
    charts.show('lag', !polling);
    setText($('latency-title'), polling ? 'Latency, creation to append' : 'Latency, commit to append');
    render();
  },
  link(state, silent, heardAt) {
    link = state;
    if (root.dataset.link !== state) root.dataset.link = state;
    setText($('link-text'), state === 'live' ? 'live' : state === 'connecting' ? 'connecting …' : 'no connection');
    $('gone').hidden = state !== 'lost';
    if (state === 'lost') {
      const since = heardAt ? `walrelay has not answered since ${clock(heardAt)}, for ${seconds(Math.floor(silent))}. What is shown is from then.` : 'walrelay does not answer.';
      setText($('gone'), `${since} Trying again …`);
    }
    render();
  },
});
