// The few things that this page does to its elements. Texts come from servers:
// they are always text, never HTML. What did not change is not touched, so that
// a selection, the focus and a screen reader stay where they are.

export const $ = (id) => document.getElementById(id);

export function setText(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

export function make(tag, className, text) {
  const el = document.createElement(tag);
  if (className) el.className = className;
  if (text != null) el.textContent = text;
  return el;
}

// each gives an element one child for each item, and fills it.
export function each(parent, items, create, fill) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, i) => {
    if (!parent.children[i]) parent.append(create(item));
    fill(parent.children[i], item);
  });
}

// state shows the state of something by its word and its mark.
export function setState(el, state, text) {
  const name = `state state-${state}`;
  if (el.className !== name) el.className = name;
  setText(el, text);
}

// sentence shows words, and commands that can be copied.
export function sentence(el, parts) {
  parts = parts || [];
  const same = el.children.length === parts.length &&
    parts.every((p, i) => !!p.code === el.children[i].classList.contains('command'));
  if (!same) el.replaceChildren(...parts.map((p) => p.code ? command() : make('span')));
  parts.forEach((p, i) => setText(p.code ? el.children[i].firstElementChild : el.children[i], p.text));
}

function command() {
  const el = make('span', 'command');
  const code = make('code');
  const button = make('button', '', 'Copy');
  button.type = 'button';
  button.addEventListener('click', async () => {
    setText(button, await copy(code) ? 'Copied' : 'Selected');
    setTimeout(() => setText(button, 'Copy'), 2000);
  });
  el.append(code, button);
  return el;
}

// copy puts a command on the clipboard. Where a browser does not allow that, the
// command is selected.
async function copy(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return false;
  }
}
