// Draws the charts of the page into the room that they have, and again when that room changes.
// Copies commands, and marks in the contents where the reader is.
let charts = JSON.parse(document.getElementById("charts").textContent);
const views = new WeakMap();

const ink = "currentColor";
const config = {
  aria: false,
  background: null,
  font: "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif",
  view: { stroke: null },
  axis: {
    labelColor: ink, titleColor: ink, domainColor: ink, tickColor: ink,
    gridColor: ink, gridOpacity: 0.14,
    labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", titlePadding: 8,
    labelOverlap: true,
  },
  legend: {
    labelColor: ink, labelFontSize: 12, orient: "top", direction: "horizontal",
    symbolStrokeWidth: 2, symbolOpacity: 1,
  },
  header: { labelColor: ink, labelFontSize: 12, labelLimit: 300 },
};
const options = {
  config, mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false,
  logLevel: 1, // errors: that nothing in a chart is marked as chosen is none
  tooltip: { theme: "page", disableDefaultStyle: true },
};
const LEGEND_SYMBOL = 40; // and the room beside it
const LETTER = 7.5;
const MOST_FOR_WORDS = 0.4;
const LEAST_PANEL = 240;
const BESIDE_PANEL = 60; // its axis and the room between two

function longest(chart, field) {
  return Math.max(...chart.data.values.map((value) => String(value[field] ?? "").length));
}

/** Return the room of the axis on the left; words on it may take a part of the width. */
function roomForAxis(chart, width) {
  if (chart.layer?.[0].encoding.y?.type !== "nominal") return BESIDE_PANEL;
  const labelLimit = Math.floor(width * MOST_FOR_WORDS);
  for (const { encoding } of chart.layer) {
    if (encoding.y) encoding.y.axis = { ...encoding.y.axis, labelLimit };
  }
  return Math.min(longest(chart, "x") * LETTER, labelLimit) + BESIDE_PANEL / 2;
}

/** Fit a chart into a width: panels in as many columns as there is room for. */
function fitted(chart, width) {
  const room = width - roomForAxis(chart, width);
  const entry = LEGEND_SYMBOL + longest(chart, "series") * LETTER;
  const legend = { columns: Math.max(1, Math.floor(room / entry)), labelLimit: room - LEGEND_SYMBOL };
  if (!chart.facet) {
    const autosize = { type: "fit-x", contains: "padding" };
    return { ...chart, width, autosize, config: { legend } };
  }
  const columns = Math.max(1, Math.floor(width / (LEAST_PANEL + BESIDE_PANEL)));
  const shown = Math.min(columns, chart.facet.column.sort.length);
  const panel = { ...chart.spec, width: Math.floor(width / shown) - BESIDE_PANEL };
  return { ...chart, facet: chart.facet.column, columns, spec: panel, config: { legend } };
}

async function draw(place) {
  const width = place.clientWidth;
  const chart = charts[place.dataset.chart];
  const before = views.get(place);
  if (before?.width === width && before.chart === chart) return;
  views.set(place, { width, chart });
  try {
    // Beside the one that is seen, which stays until the new one is whole.
    const room = document.createElement("div");
    const result = await window.vegaEmbed(room, fitted(structuredClone(chart), width), options);
    room.querySelector("svg").setAttribute("aria-hidden", "true"); // `place` says it in words
    before?.result?.finalize();
    place.replaceChildren(room);
    views.set(place, { width, chart, result });
    place.dataset.drawn = "yes";
  } catch (error) {
    place.classList.add("failed");
    place.textContent = `This chart could not be drawn: ${error.message}. Its values are below.`;
  }
}

async function drawAll() {
  for (const place of document.querySelectorAll("[data-chart]")) await draw(place);
}

/** Draw what is new among these charts, in place: the page of an active run. */
export async function redraw(fresh) {
  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
  charts = fresh.map((chart, at) => (same(chart, charts[at]) ? charts[at] : chart));
  await drawAll();
}

document.documentElement.dataset.scripted = "yes"; // buttons that need this script are shown

/** Copy a text, also where the clipboard is closed to pages: the live page over plain HTTP. */
async function copy(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  await copy(button.parentElement.querySelector("code"));
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

/** Mark the section at the top of the window in the contents. */
function markPlace() {
  const links = [...document.querySelectorAll(".contents a")];
  const above = links.filter((link) => {
    const section = document.getElementById(link.hash.slice(1));
    return section && section.getBoundingClientRect().top < innerHeight / 3;
  });
  const here = above.at(-1) ?? links[0];
  for (const link of links) {
    if (link === here) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

document.addEventListener("scroll", markPlace, { passive: true });
markPlace();

let waiting;
window.addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(drawAll, 150);
});
await drawAll();
document.documentElement.dataset.drawn = "all";
