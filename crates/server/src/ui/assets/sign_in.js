// Tells who is signed in here, and signs out. Everything it shows is text.
const place = document.getElementById('who');

function line(name, value) {
  const row = document.createElement('p');
  const label = document.createElement('span');
  label.textContent = name;
  row.append(label, value);
  return row;
}

async function show() {
  let answer;
  try {
    answer = await fetch('/v1/session', { headers: { Accept: 'application/json' } });
  } catch {
    place.replaceChildren(line('', 'The server cannot be reached.'));
    return;
  }
  if (!answer.ok) {
    const command = document.createElement('code');
    command.textContent = 'postcommit keys login-link';
    const how = document.createElement('p');
    how.append('You are not signed in. Open the link that the server printed when it started, or a new one that ', command, ' prints.');
    place.replaceChildren(how);
    return;
  }
  const session = await answer.json();
  const demo = document.createElement('a');
  demo.href = '/inbox/demo';
  demo.textContent = 'The inbox, as users see it';
  const button = document.createElement('button');
  button.textContent = 'Sign out';
  button.addEventListener('click', async () => {
    await fetch('/v1/session', { method: 'DELETE', headers: { 'X-CSRF-Token': session.csrf_token } });
    await show();
  });
  place.replaceChildren(
    line('Signed in as ', session.actor),
    line('Tenant ', session.tenant),
    line('Scopes: ', session.scopes.join(', ')),
    line('', demo),
    button,
  );
}

if (place) show();
