// The demo page: shows the component for the user and token that somebody typed. Neither is kept anywhere.
for (const place of document.querySelectorAll('.here')) place.textContent = location.origin;

document.getElementById('form').addEventListener('submit', (event) => {
  event.preventDefault();
  const given = new FormData(event.target);
  const inbox = document.createElement('postcommit-inbox');
  inbox.setAttribute('user', given.get('user'));
  inbox.setAttribute('token', given.get('token').trim());
  document.getElementById('place').replaceChildren(inbox);
});
