// The demo page: shows the component for a user. Signed in, it asks for the token and sends messages by the session; otherwise somebody types a token, which
// is kept nowhere.
const part = (id) => document.getElementById(id);
for (const place of document.querySelectorAll('.here')) place.textContent = location.origin;

function show(user, token) {
  const inbox = document.createElement('postcommit-inbox');
  inbox.setAttribute('user', user);
  inbox.setAttribute('token', token);
  part('place').replaceChildren(inbox);
}

part('form').addEventListener('submit', (event) => {
  event.preventDefault();
  const given = new FormData(event.target);
  show(given.get('user'), given.get('token').trim());
});

/** Posts as the session does, and returns the answer; a refusal is told on the page. */
async function post(session, path, body) {
  const headers = { 'Content-Type': 'application/json', 'X-CSRF-Token': session.csrf_token };
  const answer = await fetch(path, { method: 'POST', headers, body: body && JSON.stringify(body) }).catch(() => null);
  const told = await answer?.json().catch(() => null);
  part('said').textContent = answer?.ok ? '' : told?.detail ?? 'The server cannot be reached.';
  return answer?.ok ? told : null;
}

function showOwn(session) {
  const user = () => new FormData(part('own')).get('user');
  const open = async () => {
    const made = await post(session, `/v1/inbox/${encodeURIComponent(user())}/token`);
    if (made) show(user(), made.token);
  };
  part('own').addEventListener('submit', (event) => {
    event.preventDefault();
    open();
  });
  part('send').addEventListener('click', async () => {
    const body = 'This came without a reload.';
    const note = { event_type: 'demo.hello', title: `Hello, ${user()}`, body, recipients: [{ user: user() }] };
    if (await post(session, '/v1/notifications', note)) part('said').textContent = 'Sent. It appears under the bell.';
  });
  part('actor').textContent = session.actor;
  open();
}

const answer = await fetch('/v1/session', { headers: { Accept: 'application/json' } }).catch(() => null);
const session = answer?.ok ? await answer.json() : null;
part(session ? 'signed-in' : 'signed-out').hidden = false;
if (session) showOwn(session);
