// Conveniences on top of pages that work without this script. Nothing here makes HTML out of data: live regions are
// parsed from the same page that the server draws.
'use strict';

// A select with data-submit sends its form by itself.
for (const select of document.querySelectorAll('select[data-submit]')) {
  const button = select.form.querySelector('button');
  if (button) button.hidden = true;
  select.addEventListener('change', () => select.form.requestSubmit());
}

// A slider shows its number.
document.addEventListener('input', ({ target }) => { if (target.type === 'range') target.nextElementSibling.value = target.value; });

// Relative times stay current, and say the viewer's own time beside UTC.
const UNITS = [[120, 1, 's'], [7200, 60, 'min'], [172800, 3600, 'h'], [Infinity, 86400, 'days']];
function ago(ms) {
  const seconds = Math.floor(Math.abs(ms) / 1000);
  if (seconds < 2) return 'now';
  const [, size, unit] = UNITS.find(([most]) => seconds < most);
  const words = `${Math.floor(seconds / size)} ${unit}`;
  return ms < 0 ? `${words} ago` : `in ${words}`;
}
function tick() {
  for (const time of document.querySelectorAll('time[data-ago]')) time.textContent = ago(Date.parse(time.dateTime) - Date.now());
}
function ownTimes(within) {
  for (const time of within.querySelectorAll('time[datetime]')) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.getTime())) time.title = `${time.title}, ${at.toLocaleString()} here`;
  }
}

// Ticks: how many, and a range with shift.
const list = document.getElementById('list');
let last = null;
const boxes = () => [...document.querySelectorAll('#list input[name=id]')];
const chosen = () => boxes().filter((box) => box.checked).length;
function sayChosen() {
  const said = document.querySelector('[data-chosen]');
  if (!said) return;
  said.dataset.said ??= said.textContent;
  said.textContent = chosen() ? `${chosen()} ticked` : said.dataset.said;
}
list?.addEventListener('click', (event) => {
  if (event.target.name !== 'id') return;
  const all = boxes();
  const [from, to] = [all.indexOf(last), all.indexOf(event.target)].sort((a, b) => a - b);
  if (event.shiftKey && from >= 0) for (const box of all.slice(from, to + 1)) box.checked = event.target.checked;
  last = event.target;
  sayChosen();
});

// Copy buttons. Without a secure context there is no clipboard, and then there are no buttons.
function copyButtons(within) {
  if (!navigator.clipboard) return;
  for (const code of within.querySelectorAll('[data-copy]')) {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'copy';
    button.textContent = 'Copy';
    button.addEventListener('click', async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = 'Copied';
      setTimeout(() => { button.textContent = 'Copy'; }, 1500);
    });
    code.after(' ', button);
  }
}

// Live regions: the page is fetched again and its regions are swapped. What the reader works with is left alone. A slow
// server is asked less often, and a hidden page does not ask at all.
const FIRST = 3000;
let [paused, wait, timer, told] = [false, FIRST, 0, 0];
const live = document.querySelector('[data-live]:not([data-live=off])');
const isBusy = (region) => chosen() > 0 || region.contains(document.activeElement) || region.querySelector('details[open]')
  || new URLSearchParams(location.search).has('cursor') || String(getSelection()).length > 0;
function state(words) {
  const button = document.getElementById('live');
  if (button && button.lastChild.textContent !== words) button.lastChild.textContent = words;
}
async function refresh() {
  clearTimeout(timer);
  if (paused || document.hidden) return;
  const began = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: 'text/html' }, redirect: 'manual' });
    if (!answer.ok) throw new Error(String(answer.status));
    swap(new DOMParser().parseFromString(await answer.text(), 'text/html'));
    wait = Math.max(FIRST, (performance.now() - began) * 20);
  } catch {
    state('Reconnecting…');
    wait = Math.min(wait * 2, 60000);
  }
  if (!paused && !document.hidden) timer = setTimeout(refresh, wait);
}
function swap(page) {
  // Not live.id: in a form, that is its field of this name.
  const id = live.getAttribute('id');
  const [region, fresh] = [document.getElementById(id), page.getElementById(id)];
  const menu = document.querySelector('.side nav');
  if (!menu.contains(document.activeElement)) menu.replaceChildren(...page.querySelector('.side nav').childNodes);
  if (!region || !fresh) return;
  document.querySelector('h1').replaceChildren(...page.querySelector('h1').childNodes);
  if (isBusy(region)) {
    const known = new Set([...region.querySelectorAll('tr[id]')].map((row) => row.id));
    const count = [...fresh.querySelectorAll('tr[id]')].filter((row) => !known.has(row.id)).length;
    state(count ? `${count} new, show` : 'Live · waiting for you');
    told = count;
    return;
  }
  // Parsed scripts do not run.
  region.replaceChildren(...fresh.childNodes);
  ownTimes(region);
  copyButtons(region);
  sayChosen();
  told = 0;
  state('Live');
}
if (live) {
  const button = document.createElement('button');
  button.type = 'button';
  button.id = 'live';
  button.title = 'Pause or continue live updates';
  const dot = document.createElement('span');
  dot.className = 'dot';
  button.append(dot, 'Live');
  button.addEventListener('click', () => {
    if (told) { location.assign(location.pathname + location.search.replace(/[?&](cursor|trail)=[^&]*/g, '')); return; }
    paused = !paused;
    button.classList.toggle('paused', paused);
    state(paused ? 'Paused' : 'Live');
    if (!paused) refresh();
  });
  document.querySelector('.head > .do').append(button);
  document.addEventListener('visibilitychange', refresh);
  timer = setTimeout(refresh, wait);
}

// Shortcuts. Never while somebody types.
const KEYS = [['?', 'This list'], ['/', 'Search'], ['g o', 'Overview'], ['g n', 'Notifications'], ['g p', 'Parked'], ['j', 'Next row'], ['k', 'Row before'], ['x', 'Tick the row'], ['Esc', 'Leave the field']];
const PLACES = { o: '/', n: '/notifications', p: '/parked' };
let before = '';
function help() {
  const open = document.querySelector('dialog');
  if (open) { open.close(); return; }
  const [dialog, title, keys] = ['dialog', 'h2', 'dl'].map((name) => document.createElement(name));
  title.textContent = 'Shortcuts';
  for (const [key, what] of KEYS) {
    const [row, name, said] = ['div', 'dt', 'dd'].map((tag) => document.createElement(tag));
    name.textContent = key;
    said.textContent = what;
    row.append(name, said);
    keys.append(row);
  }
  keys.className = 'facts';
  dialog.append(title, keys);
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
function step(by) {
  const rows = [...document.querySelectorAll('.what a')];
  const at = rows.findIndex((row) => row.closest('tr, li').contains(document.activeElement));
  rows[Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
}
document.addEventListener('keydown', (event) => {
  const field = event.target.closest('input:not([type=checkbox]), select, textarea');
  if (field) { if (event.key === 'Escape') field.blur(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const [key, was] = [event.key, before];
  before = key;
  if (was === 'g' && PLACES[key]) document.querySelector(`.side nav a[href^="${PLACES[key]}"]`)?.click();
  else if (key === '?') help();
  else if (key === '/') document.getElementById('q')?.focus();
  else if (key === 'j' || key === 'k') step(key === 'j' ? 1 : -1);
  else if (key === 'x') document.activeElement.closest('tr')?.querySelector('input[name=id]')?.click();
  else return;
  event.preventDefault();
});

ownTimes(document);
copyButtons(document);
sayChosen();
setInterval(tick, 1000);
