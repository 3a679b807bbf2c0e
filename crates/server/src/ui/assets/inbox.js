// <postcommit-inbox>: a bell with the number of unread messages, and the user's inbox behind it, live.
//
//   <script type="module" src="https://notify.example.com/inbox.js"></script>
//   <postcommit-inbox user="alice" token-url="/inbox-token"></postcommit-inbox>
//
// Attributes: `server` (default: where this script came from), `user`, `token` (a user token), `token-url` (asked for a fresh one, when there is none
// or it has expired; answers {"token": "pcu_…"}), `theme`, and `text-…` for each of the words below. Events: `postcommit-unread` (detail.unread), `postcommit-open` (detail.message; preventDefault
// keeps the link from being followed, for applications that route by themselves).
//
// What a message says is only ever set as text, so none of it can be markup; and a link is only followed to http(s), mailto and tel.

const HOME = new URL('.', import.meta.url).href;
const PAGE = 20;
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30000;
// A stream that says nothing for so long is dead, whatever the connection thinks: the server sends a comment every 15 seconds.
const SILENCE_MS = 45000;

// Every colour is a custom property, `--postcommit-…`, that the page may set. The bell is part of the page and has the colour of the text around it; the panel
// is light or dark as the page is, or as `theme` says.
const DARK = `color-scheme: dark;
  --accent: var(--postcommit-accent, #8ab0ff); --surface: var(--postcommit-surface, #1b1f27); --text: var(--postcommit-text, #e8ebf0);
  --muted: var(--postcommit-muted, #a3abb8); --line: var(--postcommit-line, #363c48); --hover: var(--postcommit-hover, #262b35);
`;

const STYLE = `
:host {
  --accent: var(--postcommit-accent, #2457d6);
  --surface: var(--postcommit-surface, #fff); --text: var(--postcommit-text, #1a1d23); --muted: var(--postcommit-muted, #5a6270);
  --line: var(--postcommit-line, #d9dde4); --hover: var(--postcommit-hover, #f1f4f9); --badge: var(--postcommit-badge, #c6262e);
  display: inline-block; position: relative; font: 400 0.9375rem/1.4 var(--postcommit-font, system-ui, sans-serif); text-align: start;
}
:host([hidden]) { display: none; }
* { box-sizing: border-box; }
button { font: inherit; color: inherit; background: none; border: 0; border-radius: 6px; cursor: pointer; }
button:hover { background: var(--hover); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.bell { position: relative; color: var(--postcommit-bell, inherit); display: grid; place-items: center; width: 44px; height: 44px; border-radius: 50%; }
.bell:hover { background: color-mix(in srgb, currentColor 12%, transparent); }
.bell:focus-visible { outline-color: currentColor; }
.bell svg { width: 24px; height: 24px; }
.badge { position: absolute; top: 2px; inset-inline-end: 0; min-width: 20px; padding: 0 5px; border-radius: 10px; background: var(--badge); color: #fff;
  font-size: 0.75rem; font-weight: 600; line-height: 20px; text-align: center; }
.panel { color-scheme: light; color: var(--text); position: absolute; z-index: 1000; top: calc(100% + 8px); inset-inline-end: 0; width: 26rem; max-width: calc(100vw - 24px); max-height: min(36rem, 80vh);
  display: flex; flex-direction: column; background: var(--surface); border: 1px solid var(--line); border-radius: 12px; box-shadow: 0 12px 32px rgb(0 0 0 / 0.18); overflow: hidden; }
.panel.dark { ${DARK} }
.panel.start { inset-inline: 0 auto; }
.panel:focus { outline: none; }
.panel[hidden], .badge[hidden], .more[hidden], .note[hidden] { display: none; }
header { display: flex; align-items: center; gap: 8px; padding: 10px 10px 10px 16px; border-bottom: 1px solid var(--line); }
h2 { flex: 1; margin: 0; font-size: 1rem; }
.tool { min-height: 36px; padding: 4px 8px; color: var(--accent); font-size: 0.875rem; }
.tool:disabled { color: var(--muted); cursor: default; background: none; }
.icon { width: 36px; height: 36px; font-size: 1.25rem; line-height: 1; }
ul { list-style: none; margin: 0; padding: 0; overflow-y: auto; overscroll-behavior: contain; }
li { position: relative; padding: 12px 16px 8px 28px; border-bottom: 1px solid var(--line); }
li:last-child { border-bottom: 0; }
li:hover { background: var(--hover); }
li.unread::before { content: ""; position: absolute; inset-inline-start: 12px; top: 19px; width: 8px; height: 8px; border-radius: 50%; background: var(--accent); }
li.unread .title { font-weight: 650; }
.title { overflow-wrap: anywhere; color: inherit; display: -webkit-box; -webkit-line-clamp: 3; -webkit-box-orient: vertical; overflow: hidden; }
a.title { text-decoration: none; }
a.title:hover { text-decoration: underline; }
.body { margin: 2px 0 0; color: var(--muted); white-space: pre-line; overflow-wrap: anywhere; display: -webkit-box; -webkit-line-clamp: 4; -webkit-box-orient: vertical; overflow: hidden; }
.foot { display: flex; flex-wrap: wrap; align-items: center; gap: 4px; margin-top: 2px; }
.foot time { flex: 1 1 auto; color: var(--muted); font-size: 0.8125rem; white-space: nowrap; }
.tools { display: flex; margin-inline-start: auto; }
.note { margin: 0; padding: 20px 16px; color: var(--muted); text-align: center; }
.note.problem { padding: 8px 16px; background: var(--hover); color: var(--text); text-align: start; font-size: 0.875rem; }
.more { width: 100%; min-height: 44px; border-top: 1px solid var(--line); border-radius: 0; color: var(--accent); }
.said { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
@media (max-width: 30rem) {
  .panel { position: fixed; inset: auto 0 0 0; top: auto; width: 100%; max-width: 100%; max-height: 85dvh; border-radius: 16px 16px 0 0; border-width: 1px 0 0; }
  .tool { min-height: 44px; } .icon { width: 44px; height: 44px; }
}
@media (prefers-reduced-motion: no-preference) { .panel { animation: appear 0.12s ease-out; } @keyframes appear { from { opacity: 0; translate: 0 -4px; } } }
`;

/**
 * What is shown and read out. Each is the attribute `text-…` of that name, e.g. `text-read-all="Alles gelesen"`, or assigned for all elements:
 * `PostcommitInbox.words = { 'read-all': 'Alles gelesen' }`. What is in braces is filled in; a function is called with it.
 */
const WORDS = {
  inbox: 'Notifications',
  bell: 'Notifications, {unread} unread',
  'bell-none': 'Notifications, none unread',
  came: 'New notification: {title}',
  'read-all': 'Mark all as read',
  read: 'Mark as read',
  unread: 'Mark as unread',
  archive: 'Archive',
  close: 'Close',
  more: 'Show more',
  empty: 'Nothing here yet.',
  loading: 'Loading…',
  offline: 'Not connected; trying again…',
  refused: 'You are signed out of notifications.',
  'secret-key': 'Notifications are switched off: this page was given a secret key.',
};

/** An element of our shadow tree. Children are elements or texts; a text is never markup. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, '');
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function bellIcon() {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  for (const [key, value] of [['viewBox', '0 0 24 24'], ['fill', 'none'], ['stroke', 'currentColor'], ['stroke-width', '1.8'], ['aria-hidden', 'true']]) svg.setAttribute(key, value);
  path.setAttribute('d', 'M18 9a6 6 0 0 0-12 0c0 6-2.5 7-2.5 8h17c0-1-2.5-2-2.5-8M10 20.5a2.2 2.2 0 0 0 4 0');
  path.setAttribute('stroke-linecap', 'round');
  path.setAttribute('stroke-linejoin', 'round');
  svg.append(path);
  return svg;
}

/** Where a message leads, if a person may be led there. */
function safeLink(url) {
  try {
    return ['http:', 'https:', 'mailto:', 'tel:'].includes(new URL(url).protocol) ? url : null;
  } catch {
    return null;
  }
}

/** Whether the page is dark: its text is light. Pages turn dark in many ways, and this holds for all of them. */
function isDarkPage() {
  const rgb = /^rgba?\((\d+), (\d+), (\d+)/.exec(getComputedStyle(document.body).color);
  if (!rgb) return matchMedia('(prefers-color-scheme: dark)').matches;
  const [, red, green, blue] = rgb.map(Number);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 140;
}

/** The language that an element is in, for dates; the reader's own where none is named or it is none. */
function languageOf(element) {
  try {
    return Intl.getCanonicalLocales(element.closest('[lang]')?.lang || []);
  } catch {
    return [];
  }
}

/** Reads server-sent events from a stream of bytes. Calls back with {event, data, id}, and with nothing for a comment. */
async function readEvents(bytes, onEvent, onRetry) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const blocks = buffer.split('\n\n');
    buffer = blocks.pop();
    for (const block of blocks) {
      const event = { event: 'message', data: '' };
      for (const line of block.split('\n')) {
        const [, field, text] = /^([^:]*):? ?(.*)$/.exec(line);
        if (field === 'data') event.data += text;
        else if (field === 'event' || field === 'id') event[field] = text;
        else if (field === 'retry') onRetry(Number(text));
      }
      onEvent(event.data ? event : null);
    }
  }
}

/** We are not let in, and asking again would not help. The message is for whoever builds the page; `word` says it to the reader. */
class Refused extends Error {
  constructor(message, word = 'refused') {
    super(message);
    this.word = word;
  }
}

/** What an answer says about itself, as problem+json. */
async function detailOf(answer) {
  const { detail } = await answer.json().catch(() => ({}));
  return `answered ${answer.status}${detail ? `: ${detail}` : ''}`;
}

/** Too much has changed to be told one by one. */
class Reload extends Error {}

export class PostcommitInbox extends HTMLElement {
  static observedAttributes = ['server', 'user', 'token', 'token-url', 'theme', 'lang', ...Object.keys(WORDS).map((name) => `text-${name}`)];
  static #words = {};
  static #connected = new Set();

  /** The words of all elements that do not say otherwise themselves. Assigned at any time; those left out stay. */
  static get words() {
    return { ...WORDS, ...PostcommitInbox.#words };
  }

  static set words(words) {
    PostcommitInbox.#words = { ...words };
    for (const inbox of PostcommitInbox.#connected) inbox.#label();
  }

  #messages = new Map();
  /** The list was read: what is not in it is not there. */
  #isRead = false;
  #unread = 0;
  #position = 0;
  #next = null;
  #token = null;
  #freshToken = null;
  #stop = null;
  #wait = FIRST_WAIT_MS;
  /** The word for why we are not let in. */
  #refusal = null;
  /** What the console was told last. */
  #reported = null;
  #parts = null;

  constructor() {
    super();
    const root = this.attachShadow({ mode: 'open' });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(STYLE);
    root.adoptedStyleSheets = [sheet];
    this.#build(root);
  }

  connectedCallback() {
    PostcommitInbox.#connected.add(this);
    document.addEventListener('pointerdown', this.#onOutside);
    this.#label();
    this.#restart();
  }

  disconnectedCallback() {
    PostcommitInbox.#connected.delete(this);
    document.removeEventListener('pointerdown', this.#onOutside);
    this.#stop?.abort();
    this.#stop = null;
  }

  attributeChangedCallback(name, before, after) {
    if (before === after) return;
    if (name === 'theme') return this.#dress();
    if (name === 'lang' || name.startsWith('text-')) return this.#label();
    if (name === 'token') this.#token = after;
    if (this.#stop) this.#restart();
  }

  /** How many messages are unread. */
  get unread() {
    return this.#unread;
  }

  #build(root) {
    const badge = element('span', { class: 'badge', hidden: true, 'aria-hidden': 'true' });
    const bell = element('button', { class: 'bell', part: 'bell', type: 'button', 'aria-haspopup': 'dialog', 'aria-expanded': 'false', onclick: () => this.#toggle() }, bellIcon(), badge);
    const readAll = element('button', { class: 'tool read-all', type: 'button', onclick: () => this.#readAll() });
    const close = element('button', { class: 'icon', type: 'button', onclick: () => this.#toggle(false) }, '×');
    const problem = element('p', { class: 'note problem', role: 'status', hidden: true });
    const heading = element('h2');
    const list = element('ul');
    const empty = element('p', { class: 'note' });
    const more = element('button', { class: 'more', type: 'button', hidden: true, onclick: () => this.#more() });
    const panel = element('section', { class: 'panel', part: 'panel', role: 'dialog', hidden: true, tabindex: '-1' },
      element('header', {}, heading, readAll, close), problem, empty, list, more);
    // Read out, not shown: what came, whether the panel is open or not.
    const said = element('div', { class: 'said', role: 'status', 'aria-live': 'polite' });
    root.append(bell, panel, said);
    root.addEventListener('keydown', (event) => this.#onKey(event));
    this.#parts = { bell, badge, panel, heading, close, readAll, problem, list, empty, more, said };
    this.#label();
  }

  /** One of the words: this element's own, all elements', or ours. */
  #word(name, values = {}) {
    const word = this.getAttribute(`text-${name}`) ?? PostcommitInbox.words[name];
    return typeof word === 'function' ? word(values) : word.replace(/\{(\w+)\}/g, (whole, key) => values[key] ?? whole);
  }

  #label() {
    const { panel, heading, close, readAll, list, more } = this.#parts;
    for (const [part, name] of [[heading, 'inbox'], [readAll, 'read-all'], [more, 'more']]) part.textContent = this.#word(name);
    for (const [part, name] of [[panel, 'inbox'], [list, 'inbox'], [close, 'close']]) part.setAttribute('aria-label', this.#word(name));
    this.#showUnread();
    this.#show();
  }

  #dress() {
    const theme = this.getAttribute('theme');
    this.#parts.panel.classList.toggle('dark', theme === 'dark' || (theme !== 'light' && isDarkPage()));
  }

  #onOutside = (event) => {
    if (!this.#parts.panel.hidden && !event.composedPath().includes(this)) this.#toggle(false, false);
  };

  #onKey(event) {
    if (event.key === 'Escape' && !this.#parts.panel.hidden) {
      event.stopPropagation();
      this.#toggle(false);
      return;
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const item = event.target.closest?.('li');
    if (step && item) {
      const next = step > 0 ? item.nextElementSibling : item.previousElementSibling;
      next?.querySelector('a, button')?.focus();
      event.preventDefault();
    }
  }

  #toggle(open = this.#parts.panel.hidden, focus = true) {
    const { panel, bell } = this.#parts;
    this.#dress();
    panel.hidden = !open;
    // It hangs below the bell towards the side where there is room.
    const { left, right } = bell.getBoundingClientRect();
    const room = getComputedStyle(this).direction === 'rtl' ? innerWidth - left : right;
    panel.classList.toggle('start', open && room < panel.offsetWidth);
    bell.setAttribute('aria-expanded', String(open));
    if (focus) (open ? panel : bell).focus();
  }

  // --- talking to the server ---

  #restart() {
    this.#stop?.abort();
    this.#stop = new AbortController();
    this.#messages.clear();
    this.#wait = FIRST_WAIT_MS;
    const { signal } = this.#stop;
    const user = this.getAttribute('user');
    const isAsked = user && (this.getAttribute('token') || this.getAttribute('token-url'));
    this.#isRead = !isAsked;
    if (isAsked) this.#live(signal);
    // A page may set its attributes one after the other: what is missing is missed afterwards.
    else setTimeout(() => signal.aborted || this.#miss(user, signal));
  }

  /** Without a token the server is asked all the same: it says so in its log. */
  #miss(user, signal) {
    if (user) this.#live(signal);
    else this.#report('the attribute user is missing, so nothing is shown; set it to the id of the user who is signed in');
  }

  get #server() {
    return new URL(this.getAttribute('server') || HOME, document.baseURI).href.replace(/\/+$/, '');
  }

  #url(path) {
    return `${this.#server}/v1/inbox/${encodeURIComponent(this.getAttribute('user'))}${path}`;
  }

  /** Asks with the token; with a fresh one when it has expired. */
  async #ask(path, options = {}, signal = this.#stop?.signal) {
    const mayRenew = Boolean(this.getAttribute('token-url'));
    if (mayRenew) this.#token ??= await this.#renew();
    let answer = await this.#fetch(path, options, signal);
    if (answer.status === 401 && mayRenew) {
      this.#token = await this.#renew();
      answer = await this.#fetch(path, options, signal);
    }
    if (answer.status === 401 || answer.status === 403) {
      const missing = this.#token ? '' : 'the attribute token or token-url is missing; ';
      throw new Refused(`${missing}${this.#server} ${await detailOf(answer)}`);
    }
    if (!answer.ok) throw new Error(`${this.#server} ${await detailOf(answer)}`);
    return answer;
  }

  #fetch(path, { headers, ...options }, signal) {
    if (this.#token?.startsWith('pc_')) {
      throw new Refused('the token is a secret key (pc_…), and everybody who opens the page can read it; nothing was sent. Revoke the key '
        + '(`postcommit keys revoke`), and give the page a user token (pcu_…), which POST /v1/inbox/{user}/token makes on your server', 'secret-key');
    }
    const shown = this.#token ? { Authorization: `Bearer ${this.#token}` } : {};
    return fetch(this.#url(path), { credentials: 'omit', cache: 'no-store', signal, ...options, headers: { ...headers, ...shown } });
  }

  /** One question at a time, however many want a token. */
  async #renew() {
    this.#freshToken ??= this.#fetchToken(this.getAttribute('token-url')).finally(() => { this.#freshToken = null; });
    return this.#freshToken;
  }

  async #fetchToken(url) {
    const answer = await fetch(url, { cache: 'no-store', headers: { Accept: 'application/json' } });
    if (answer.status === 401 || answer.status === 403) throw new Refused(`the token-url ${url} ${await detailOf(answer)}`);
    if (!answer.ok) throw new Error(`the token-url ${url} ${await detailOf(answer)}`);
    const { token } = await answer.json().catch(() => ({}));
    if (typeof token !== 'string') throw new Error(`the token-url ${url} did not answer {"token": "pcu_…"}`);
    return token;
  }

  async #post(path, body) {
    try {
      const options = body ? { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } } : { method: 'POST' };
      const { unread } = await (await this.#ask(path, options)).json();
      this.#setUnread(unread);
      return true;
    } catch (problem) {
      this.#complain(problem);
      return false;
    }
  }

  // --- what is there, and what is new ---

  /** Reads the list, then follows the stream from there; and again, after a while, whenever that ends. */
  async #live(signal) {
    while (!signal.aborted) {
      try {
        if (!this.#isRead) await this.#load(signal);
        await this.#follow(signal);
      } catch (problem) {
        if (signal.aborted) return;
        if (problem instanceof Reload) {
          this.#isRead = false;
          continue;
        }
        this.#complain(problem);
        if (problem instanceof Refused) return;
      }
      await this.#pause(signal);
    }
  }

  async #pause(signal) {
    const wait = this.#wait * (0.5 + Math.random());
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, wait);
      signal.addEventListener('abort', () => { clearTimeout(timer); resolve(); }, { once: true });
    });
  }

  async #load(signal) {
    const page = await (await this.#ask(`?limit=${PAGE}`, {}, signal)).json();
    this.#messages.clear();
    this.#position = page.position;
    this.#isRead = true;
    this.#take(page);
  }

  #take(page) {
    for (const message of page.items) this.#messages.set(message.id, message);
    this.#next = page.next ?? null;
    this.#setUnread(page.unread);
    this.#show();
  }

  async #more() {
    try {
      this.#take(await (await this.#ask(`?limit=${PAGE}&cursor=${encodeURIComponent(this.#next)}`)).json());
    } catch (problem) {
      this.#complain(problem);
    }
  }

  async #follow(signal) {
    const quiet = new AbortController();
    const either = AbortSignal.any([signal, quiet.signal]);
    const answer = await this.#ask('/stream', { headers: { Accept: 'text/event-stream', 'Last-Event-ID': String(this.#position) } }, either);
    this.#complain(null);
    let silence = setTimeout(() => quiet.abort(), SILENCE_MS);
    try {
      await readEvents(answer.body, (event) => {
        clearTimeout(silence);
        silence = setTimeout(() => quiet.abort(), SILENCE_MS);
        if (event) {
          this.#wait = FIRST_WAIT_MS;
          this.#hear(event);
        }
      }, (ms) => { this.#wait = ms; });
    } finally {
      clearTimeout(silence);
      quiet.abort();
    }
  }

  /** What comes twice changes nothing the second time. */
  #hear({ event, data, id }) {
    const said = JSON.parse(data);
    if (event === 'reload') throw new Reload();
    if (event === 'message') {
      const known = this.#messages.has(said.id);
      this.#keep(said);
      if (!known && !said.read_at) this.#parts.said.textContent = this.#word('came', { title: said.title || said.event_type });
    }
    if (event === 'mark') this.#keep(said);
    if (event === 'unread-count') this.#setUnread(said.unread);
    if (id) this.#position = Number(id);
  }

  #keep(message) {
    if (message.archived_at) this.#messages.delete(message.id);
    else if (this.#messages.has(message.id) || this.#isWithin(message)) this.#messages.set(message.id, message);
    this.#show();
  }

  /** Whether the list as it is shown would hold it: it reaches down so far. */
  #isWithin(message) {
    return this.#next === null || [...this.#messages.values()].some((shown) => shown.position < message.position);
  }

  // --- what people do ---

  async #mark(message, mark) {
    const before = { ...message };
    if (mark === 'archive') this.#messages.delete(message.id);
    else message.read_at = mark === 'read' ? new Date().toISOString() : null;
    this.#show();
    if (!(await this.#post(`/${encodeURIComponent(message.id)}/${mark}`))) {
      this.#messages.set(before.id, before);
      this.#show();
    }
  }

  async #readAll() {
    // Up to what this page knows of: what comes meanwhile stays unread.
    if (!(await this.#post('/read-all', { up_to: this.#position }))) return;
    const now = new Date().toISOString();
    for (const message of this.#messages.values()) if (message.position <= this.#position) message.read_at ??= now;
    this.#show();
  }

  #open(message, event) {
    const opened = new CustomEvent('postcommit-open', { detail: { message }, bubbles: true, composed: true, cancelable: true });
    if (!this.dispatchEvent(opened)) event.preventDefault();
    if (!message.read_at) this.#mark(message, 'read');
  }

  // --- showing it ---

  #setUnread(unread) {
    if (unread === this.#unread) return;
    this.#unread = unread;
    this.#showUnread();
    this.dispatchEvent(new CustomEvent('postcommit-unread', { detail: { unread }, bubbles: true, composed: true }));
  }

  #showUnread() {
    const { bell, badge, readAll } = this.#parts;
    // A bell that is silent because nobody lets it in must not look like one for which nothing came.
    badge.hidden = this.#unread === 0 && !this.#refusal;
    badge.textContent = this.#refusal ? '!' : this.#unread > 99 ? '99+' : String(this.#unread);
    const said = this.#word(this.#unread === 0 ? 'bell-none' : 'bell', { unread: this.#unread });
    bell.setAttribute('aria-label', this.#refusal ? this.#word(this.#refusal) : said);
    bell.title = this.#refusal ? this.#word(this.#refusal) : '';
    readAll.disabled = this.#unread === 0;
  }

  /** Why nothing answered. The script itself may be read by every site: when that can be had, the pages' origin is what is not allowed. */
  async #whyUnreachable() {
    const server = this.#server;
    if (new URL(server).origin !== location.origin) {
      const reached = await fetch(`${server}/inbox.js`, { method: 'HEAD', cache: 'no-store', credentials: 'omit' }).catch(() => null);
      if (reached?.ok) return `${server} does not allow pages of ${location.origin} (CORS); add that origin to its setting inbox.origins and restart it`;
    }
    return `${server} cannot be reached, or a content security policy of this page (connect-src) forbids it; trying again`;
  }

  /** Tells the console, once, why the bell is silent. */
  #report(why) {
    if (why && why !== this.#reported) console.error(`postcommit-inbox: ${why}`);
    this.#reported = why;
  }

  async #explain(problem) {
    if (problem === null) this.#report(null);
    else if (problem instanceof TypeError) this.#report(await this.#whyUnreachable());
    else if (!(problem instanceof DOMException)) this.#report(problem.message);
  }

  #complain(problem) {
    this.#explain(problem);
    const note = this.#parts.problem;
    note.hidden = problem === null;
    this.#refusal = problem instanceof Refused ? problem.word : null;
    if (problem) note.textContent = this.#word(this.#refusal ?? 'offline');
    this.#showUnread();
    if (!this.#isRead) this.#show();
  }

  #show() {
    const { list, empty, more, problem } = this.#parts;
    const focused = this.shadowRoot.activeElement;
    const held = focused?.closest('li')?.dataset.id;
    const which = held && [...focused.closest('li').querySelectorAll('a, button')].indexOf(focused);
    const newestFirst = [...this.#messages.values()].sort((a, b) => b.position - a.position);
    list.replaceChildren(...newestFirst.map((message) => this.#item(message)));
    empty.textContent = this.#word(this.#isRead ? 'empty' : 'loading');
    empty.hidden = newestFirst.length > 0 || (!this.#isRead && !problem.hidden);
    more.hidden = this.#next === null;
    if (held) this.#focusAgain(held, which);
  }

  /** The list was drawn anew: whoever was in it with the keyboard stays there. */
  #focusAgain(id, which) {
    const items = [...this.#parts.list.children];
    const same = items.find((item) => item.dataset.id === id) ?? items[0];
    const places = same ? [...same.querySelectorAll('a, button')] : [];
    (places[which] ?? places.at(-1) ?? this.#parts.panel).focus();
  }

  #item(message) {
    const language = languageOf(this);
    const text = message.title || message.event_type;
    const link = safeLink(message.action_url);
    const title = link
      ? element('a', { class: 'title', href: link, rel: 'noopener noreferrer', onclick: (event) => this.#open(message, event) }, text)
      : element('span', { class: 'title' }, text);
    const at = new Date(message.created_at);
    const unread = !message.read_at;
    // Which message a button is about is read out with it.
    const tool = (mark) => element('button', { class: `tool ${mark}`, type: 'button', 'aria-label': `${this.#word(mark)}: ${text}`, onclick: () => this.#mark(message, mark) }, this.#word(mark));
    return element('li', { class: unread ? 'unread' : '', 'data-id': message.id }, title,
      ...(message.body ? [element('p', { class: 'body' }, message.body)] : []),
      element('div', { class: 'foot' },
        element('time', { datetime: at.toISOString(), title: at.toLocaleString(language) }, at.toLocaleString(language, { dateStyle: 'medium', timeStyle: 'short' })),
        element('span', { class: 'tools' }, unread ? tool('read') : tool('unread'), tool('archive'))));
  }
}

if (!customElements.get('postcommit-inbox')) customElements.define('postcommit-inbox', PostcommitInbox);
