// The preview of a template while somebody types: the form is posted as by its button, and the region is swapped.
'use strict';

const editor = document.querySelector('form[data-preview]');
const PAUSE = 400;
let [waits, asked] = [0, 0];

async function preview() {
  const body = new URLSearchParams(new FormData(editor));
  body.set('act', 'preview');
  const mine = ++asked;
  try {
    const answer = await fetch(editor.getAttribute('action'), { method: 'POST', body, headers: { Accept: 'text/html' } });
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
    const [region, fresh] = [document.getElementById('preview'), page.getElementById('preview')];
    // An answer that was overtaken by a newer one is out of date.
    if (fresh && mine === asked) region.replaceChildren(...fresh.childNodes);
  } catch {
    // The next key tries again, and so does the button.
  }
}
editor?.addEventListener('input', (event) => {
  if (['note', 'address', 'notification_id', 'provider'].includes(event.target.name)) return;
  clearTimeout(waits);
  waits = setTimeout(preview, PAUSE);
});
