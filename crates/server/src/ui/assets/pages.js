// Conveniences on top of pages that work without this script. Nothing here makes HTML out of data: live regions are
// parsed from the same page that the server draws.
'use strict';

// What changes without a reload is also said to screen readers, at most once a second.
const spoken = document.createElement('p');
spoken.className = 'hidden';
spoken.setAttribute('role', 'status');
document.getElementById('main')?.append(spoken);
let saying = 0;
function say(words) {
  clearTimeout(saying);
  saying = setTimeout(() => { if (spoken.textContent !== words) spoken.textContent = words; }, 1000);
}

// A form is sent once, also if its button is pressed twice. The page may come back from the browser's cache.
document.addEventListener('submit', (event) => {
  if (event.target.method !== 'post') return;
  if (event.target.sent) event.preventDefault();
  event.target.sent = true;
});
addEventListener('pageshow', () => { for (const form of document.forms) form.sent = false; });

// The result of an act is told once, and not again by a reload.
if (/[?&]done=/.test(location.search)) {
  const here = new URL(location.href);
  here.searchParams.delete('done');
  history.replaceState(history.state, '', here);
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
  for (const time of document.querySelectorAll('time[data-ago]')) {
    const words = ago(Date.parse(time.dateTime) - Date.now());
    // A text that is written anew loses the reader's selection.
    if (time.textContent !== words) time.textContent = words;
  }
}
function ownTimes(within) {
  for (const time of within.querySelectorAll('time[datetime]')) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.getTime())) time.title = `${time.title}, ${at.toLocaleString()} here`;
  }
}

// Ticks: how many, and a range with shift.
let last = null;
const boxes = () => [...document.querySelectorAll('#list input[name=id]')];
const chosen = () => boxes().filter((box) => box.checked).length;
function sayChosen() {
  const said = document.querySelector('[data-chosen]');
  if (!said) return;
  said.dataset.said ??= said.textContent;
  const words = chosen() ? `${chosen()} ticked` : said.dataset.said;
  if (said.textContent !== words && (chosen() || last)) say(words);
  said.textContent = words;
}
document.addEventListener('click', (event) => {
  if (!event.target.matches('#list input[name=id]')) return;
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
      say('Copied');
      setTimeout(() => { button.textContent = 'Copy'; }, 1500);
    });
    code.after(' ', button);
  }
}

// Live regions: the page is fetched again and its regions are swapped together. What the reader works with is left
// alone. A slow server is asked less often, and a hidden page does not ask at all. The header tells the server that no
// person asked, so that an open page does not keep a session alive.
const FIRST = 3000;
let [paused, ended, wait, timer, told, request] = [false, false, FIRST, 0, 0, null];
const regions = () => [...document.querySelectorAll('[data-live]:not([data-live=off])')];
const isBusy = (region) => region.contains(document.activeElement) || region.querySelector('details[open]');
// New rows would push what is read, or what is about to be clicked, out of its place.
let pointed = -Infinity;
document.addEventListener('pointermove', ({ target }) => { if (target.closest('#list')) pointed = performance.now(); });
const isReading = () => performance.now() - pointed < 10000 || document.getElementById('list')?.getBoundingClientRect().top < 0;
const isWorking = () => chosen() > 0 || String(getSelection()).length > 0 || regions().some(isBusy);
function state(words) {
  const button = document.getElementById('live');
  if (!button || button.lastChild.textContent === words) return;
  // Each answer would be too much to hear.
  if (words !== 'Live') say(words);
  button.lastChild.textContent = words;
}
function stop() {
  [ended, request] = [true, null];
  clearTimeout(timer);
}
function signedOut() {
  stop();
  const link = document.createElement('a');
  link.href = location.href;
  link.textContent = 'Signed out. Sign in again';
  document.getElementById('live').replaceWith(link);
  say('Signed out');
}
async function refresh() {
  clearTimeout(timer);
  request?.abort();
  if (paused || ended || document.hidden) return;
  const mine = new AbortController();
  request = mine;
  const began = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: 'text/html', 'Postcommit-Poll': '1' }, redirect: 'manual', signal: mine.signal });
    if (answer.type === 'opaqueredirect') { if (mine === request) signedOut(); return; }
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
    if (mine !== request || document.hidden) return;
    swap(page);
    wait = Math.max(FIRST, (performance.now() - began) * 20);
  } catch {
    if (mine !== request) return;
    state('Reconnecting…');
    wait = Math.min(wait * 2, 60000);
  }
  if (!ended) timer = setTimeout(refresh, wait);
}
function swap(page) {
  const menu = document.querySelector('.side nav');
  if (!menu.contains(document.activeElement)) menu.replaceChildren(...page.querySelector('.side nav').childNodes);
  // Not region.id: in a form, that is its field of this name.
  const pairs = regions().map((region) => [region, page.getElementById(region.getAttribute('id'))]).filter(([, fresh]) => fresh);
  const rows = (of) => of.flatMap((region) => [...region.querySelectorAll('tr[id]')].map((row) => row.id));
  const known = new Set(rows(pairs.map(([region]) => region)));
  const added = rows(pairs.map(([, fresh]) => fresh)).filter((id) => !known.has(id)).length;
  if (isWorking() || (known.size && added && isReading())) {
    told = added;
    state(told ? `${told} new, show` : 'Live · waiting for you');
    return;
  }
  document.querySelector('h1').replaceChildren(...page.querySelector('h1').childNodes);
  for (const [region, fresh] of pairs) {
    // What did not change stays, so that nothing is replaced under the reader's hand.
    const served = fresh.innerHTML;
    region.dataset.live = fresh.dataset.live;
    if (region.served === served) continue;
    region.served = served;
    // Parsed scripts do not run.
    region.replaceChildren(...fresh.childNodes);
    ownTimes(region);
    copyButtons(region);
  }
  sayChosen();
  told = 0;
  state('Live');
  // What has ended does not change any more.
  if (!regions().length) { document.getElementById('live').remove(); stop(); }
}
for (const region of regions()) region.served = region.innerHTML;
if (regions().length) {
  const button = document.createElement('button');
  button.type = 'button';
  button.id = 'live';
  button.title = 'Pause or continue live updates';
  const dot = document.createElement('span');
  dot.className = 'dot';
  button.append(dot, 'Live');
  button.addEventListener('click', () => {
    if (told) { location.assign(location.href); return; }
    paused = !paused;
    button.classList.toggle('paused', paused);
    state(paused ? 'Paused' : 'Live');
    if (paused) { request?.abort(); request = null; }
    refresh();
  });
  document.querySelector('.head > .do').append(button);
  document.addEventListener('visibilitychange', refresh);
  timer = setTimeout(refresh, wait);
}

// Shortcuts. Never while somebody types, and not if the person turned them off.
const KEYS = [['?', 'This list'], ['/', 'Search'], ['g o', 'Overview'], ['g n', 'Notifications'], ['g p', 'Parked'], ['j', 'Next row'], ['k', 'Row before'], ['x', 'Tick the row'], ['Esc', 'Leave the field']];
const PLACES = { o: '/', n: '/notifications', p: '/parked' };
const make = (tag, set) => Object.assign(document.createElement(tag), set);
const areOn = () => localStorage.getItem('shortcuts') !== 'off';
let before = '';
function help() {
  const open = document.querySelector('dialog');
  if (open) { open.close(); return; }
  const [dialog, title, keys] = [make('dialog'), make('h2', { id: 'h-shortcuts', textContent: 'Shortcuts' }), make('dl', { className: 'facts' })];
  for (const [key, what] of KEYS) {
    const row = make('div');
    row.append(make('dt', { textContent: key }), make('dd', { textContent: what }));
    keys.append(row);
  }
  const [on, label, close] = [make('input', { type: 'checkbox', id: 'shortcuts', checked: areOn() }), make('label', { htmlFor: 'shortcuts', textContent: 'Use these shortcuts' }), make('button', { textContent: 'Close' })];
  on.addEventListener('change', () => localStorage.setItem('shortcuts', on.checked ? 'on' : 'off'));
  close.addEventListener('click', () => dialog.close());
  const end = make('p', { className: 'pad do' });
  end.append(on, label, close);
  dialog.setAttribute('aria-labelledby', 'h-shortcuts');
  dialog.append(title, keys, end);
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
const foot = document.querySelector('footer p');
if (foot) {
  const opens = make('button', { type: 'button', className: 'plain', textContent: 'Shortcuts' });
  opens.addEventListener('click', help);
  foot.append(' · ', opens);
}
function step(by) {
  const rows = [...document.querySelectorAll('.what a')];
  const at = rows.findIndex((row) => row.closest('tr, li').contains(document.activeElement));
  rows[Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
}
document.addEventListener('keydown', (event) => {
  const field = event.target.closest('input:not([type=checkbox]), select, textarea');
  if (field) { if (event.key === 'Escape') field.blur(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || !areOn()) return;
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
