// The mark of a level, in the page and as its icon. Each has a shape of its own.

import {$} from './dom.js';

const marks = {
  ok: ['#16955f', 'M12 1a11 11 0 1 0 0 22 11 11 0 0 0 0-22Zm-1.7 16.4-4.9-4.9 2-2 2.9 2.9 6.3-6.3 2 2Z'],
  warn: ['#d99a00', 'M12 1.6.8 22h22.4ZM10.7 9h2.6v6.4h-2.6Zm0 8h2.6v2.6h-2.6Z'],
  critical: ['#d92d3a', 'M7.4 1h9.2L23 7.4v9.2L16.6 23H7.4L1 16.6V7.4Zm.8 5.3-1.9 1.9 3.8 3.8-3.8 3.8 1.9 1.9 3.8-3.8 3.8 3.8 1.9-1.9-3.8-3.8 3.8-3.8-1.9-1.9-3.8 3.8Z'],
  unknown: ['#7a8594', 'M12 1a11 11 0 1 0 0 22 11 11 0 0 0 0-22ZM6 10.6h12v2.8H6Z'],
};

let shown = '';

export function showIcon(level) {
  if (level === shown) return;
  shown = level;
  const [colour, path] = marks[level];
  $('icon').setAttribute('d', path);
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><path fill="${colour}" fill-rule="evenodd" d="${path}"/></svg>`;
  document.querySelector('link[rel=icon]').href = `data:image/svg+xml,${encodeURIComponent(svg)}`;
}
