// Polls for updates and changes only what is new: what the reader opened or chose stays.
import { redraw } from "./page.js";

const EVERY_MS = 2000;
const AT_REST_MS = 10000;
const KEPT = new Set(["open", "data-drawn", "aria-current"]); // what the page itself, or its reader, has set

const view = document.getElementById("view");
const status = document.getElementById("status");
let version = document.body.dataset.version;
let active = status.textContent !== "";

/** Make an element like another one, in place. */
function become(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.dataset.chart === undefined) becomeWithin(old, fresh);
}

/** Match children by their ids, the others by their places. */
function becomeWithin(old, fresh) {
  const named = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const known = named.get(next.id);
    if (known && known !== at) old.insertBefore(known, at);
    const here = known ?? at;
    const alike = here && here.nodeName === next.nodeName && (known || !here.id);
    if (alike) {
      at = here.nextSibling;
      become(here, next);
    } else {
      old.insertBefore(next, at);
    }
  }
  while (at) {
    const last = at;
    at = at.nextSibling;
    last.remove();
  }
}

function show(words, kind) {
  if (status.textContent !== words) status.textContent = words;
  status.className = kind;
}

async function update() {
  const address = document.body.dataset.updates;
  const joint = address.includes("?") ? "&" : "?";
  const answer = await fetch(`${address}${joint}seen=${version}`);
  if (answer.status !== 204) {
    const state = await answer.json();
    ({ version, active } = state);
    document.title = `${state.title} - stepscope`;
    const fresh = new DOMParser().parseFromString(state.body, "text/html").body;
    becomeWithin(view, fresh);
    await redraw(state.charts);
    document.body.dataset.version = version;
  }
  show(active ? "live" : "", active ? "live" : "");
}

async function poll() {
  try {
    if (!document.hidden) await update();
  } catch {
    show("No answer: is stepscope serve still running? Showing the last state.", "lost");
  }
  setTimeout(poll, active ? EVERY_MS : AT_REST_MS);
}

show(active ? "live" : "", active ? "live" : "");
setTimeout(poll, EVERY_MS);
