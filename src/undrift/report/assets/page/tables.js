// Tables whose columns can be sorted by their headers, and that show when they go on to the right.

import { el, fill } from "./dom.js";
import { view } from "./view.js";

// A cell: what is shown, and what it is sorted by.
export function cell(shown, sort = shown, attributes = {}) {
  return { shown, sort, attributes };
}

// titles: texts; rows: [{cells, off}]; text: how many columns at the left hold text.
export function sheet(table, { key, caption, titles, rows, text = 1 }) {
  const [column, direction] = view.sorted[key] || [null, 1];
  const again = () => sheet(table, { key, caption, titles, rows, text });
  const heads = titles.map((title, i) => header(title, i, { key, text, column, direction, again }));
  const ordered = column === null ? rows : [...rows].sort((a, b) => compare(a, b, column, direction));
  fill(
    table,
    el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, ...heads)),
    el("tbody", {}, ...ordered.map((row) => line(row, text))),
  );
  markCut();
}

function header(title, i, { key, text, column, direction, again }) {
  const sorted = column === i ? (direction > 0 ? "ascending" : "descending") : null;
  const turn = () => {
    view.sorted[key] = column === i && direction < 0 ? null : [i, column === i ? -1 : 1];
    if (!view.sorted[key]) delete view.sorted[key];
    const table = button.closest("table");
    again();
    table.querySelectorAll("thead button")[i].focus();
  };
  const button = el(
    "button",
    { type: "button", class: "sort", title: "Sort by this column", on: { click: turn } },
    title,
  );
  return el("th", { scope: "col", class: i < text ? "text" : null, "aria-sort": sorted }, button);
}

function line({ cells, off }, text) {
  const made = cells.map(({ shown, attributes }, i) => {
    const given = i ? { class: i < text ? "text" : null, ...attributes } : { scope: "row", ...attributes };
    return el(
      i ? "td" : "th",
      given,
      ...[shown].flat().map((part) => (part instanceof Node ? part : String(part ?? ""))),
    );
  });
  return el("tr", { class: off ? "off" : null }, ...made);
}

// Numbers before texts, and what is missing last, whichever way the column is sorted.
function compare(a, b, column, direction) {
  const [x, y] = [a.cells[column].sort, b.cells[column].sort];
  const [nothing, neither] = [x, y].map((v) => v === null || v === undefined || v === "");
  if (nothing || neither) return Number(nothing) - Number(neither);
  if (typeof x === "number" && typeof y === "number") return direction * (x - y);
  return direction * String(x).localeCompare(String(y), "en", { numeric: true });
}

// A table inside <details>.
export function put(details, given) {
  const table = el("table", {});
  const region = { class: "scroll tall", tabindex: "0", role: "region", "aria-label": given.caption };
  fill(details, details.firstElementChild, el("div", region, table), swipe());
  sheet(table, given);
  markCut();
}

function swipe() {
  return el("p", { class: "swipe", "aria-hidden": "true" }, "The table goes on to the right →");
}

// Tables that are wider than their place say so.
export function markCut() {
  for (const region of document.querySelectorAll(".scroll")) {
    if (!region.dataset.followed) {
      region.dataset.followed = "yes";
      region.addEventListener("scroll", () => mark(region), { passive: true });
      if (!region.nextElementSibling?.classList.contains("swipe")) region.after(swipe());
    }
    mark(region);
  }
}

function mark(region) {
  region.classList.toggle("cut", region.scrollWidth - region.clientWidth - region.scrollLeft > 2);
}
