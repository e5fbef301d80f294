// The connection to the relay. A browser connects again by itself when one is
// cut, but not when the answer is an error, and it does not notice one on which
// nothing comes any more; this does.

const lostAfter = 4000; // the relay tells how it is every second
const deadAfter = 12000; // then the connection is made anew
const retryAfter = 2000;

// listen calls handlers.view, .hour and .sample with what comes, and
// handlers.link every second with 'connecting', 'live' or 'lost', and since when
// nothing came.
export function listen(handlers) {
  const opened = performance.now();
  let source = null;
  let heard = 0; // when something came, by a clock that nobody sets
  let heardAt = null; // the same, as a date
  let tried = 0;

  const connect = () => {
    if (source) source.close();
    tried = performance.now();
    source = new EventSource('events');
    for (const name of ['view', 'hour', 'sample']) {
      source.addEventListener(name, (e) => {
        heard = performance.now();
        heardAt = new Date();
        handlers[name](JSON.parse(e.data));
        check();
      });
    }
    source.addEventListener('error', check);
  };

  const check = () => {
    const now = performance.now();
    const silent = now - (heard || opened);
    const closed = source.readyState === EventSource.CLOSED;
    if (closed && now - tried > retryAfter || now - Math.max(heard, tried) > deadAfter) connect();
    handlers.link(silent < lostAfter ? (heard ? 'live' : 'connecting') : 'lost', silent / 1000, heardAt);
  };

  connect();
  setInterval(check, 1000);
  // A machine that slept, or a network that came back, is no time to wait.
  for (const name of ['online', 'pageshow']) {
    addEventListener(name, () => { if (performance.now() - (heard || opened) > lostAfter) connect(); });
  }
}
