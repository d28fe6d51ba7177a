// Asks now and then for what is new, and changes only that: what somebody opened, chose or reads
// stays where it is.
import { redraw } from "./page.js";

const EVERY_MS = 2000;
const AT_REST_MS = 10000;
const KEPT = new Set(["open", "data-drawn"]); // what the page itself, or its reader, has set

const view = document.getElementById("view");
const status = document.getElementById("status");
let version = document.body.dataset.version;
let goesOn = status.textContent !== "";

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
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function say(words, kind) {
  if (status.textContent !== words) status.textContent = words;
  status.className = kind;
}

async function look() {
  const address = document.body.dataset.new;
  const joint = address.includes("?") ? "&" : "?";
  const answer = await fetch(`${address}${joint}seen=${version}`);
  if (answer.status !== 204) {
    const state = await answer.json();
    ({ version, goes_on: goesOn } = state);
    document.title = `${state.title} - stepscope`;
    const fresh = new DOMParser().parseFromString(state.body, "text/html").body;
    becomeWithin(view, fresh);
    await redraw(state.charts);
    document.body.dataset.version = version;
  }
  say(goesOn ? "live" : "", goesOn ? "live" : "");
}

async function lookOn() {
  try {
    if (!document.hidden) await look();
  } catch {
    say("No answer: is `stepscope serve` still running? This is what was seen last.", "lost");
  }
  setTimeout(lookOn, goesOn ? EVERY_MS : AT_REST_MS);
}

say(goesOn ? "live" : "", goesOn ? "live" : "");
setTimeout(lookOn, EVERY_MS);
