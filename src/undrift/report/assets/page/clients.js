// The clients: who holds what, and how each of them fares.

import { $, el, fill, hideTip, showTip } from "./dom.js";
import { amount, percent } from "./numbers.js";
import { cell, put } from "./tables.js";
import { colour, ink, isDark, isHidden, view } from "./view.js";

const LEFT = 58; // room for the names of the classes
const BOTTOM = 44;
const NAMED = 12; // characters of a name that an axis shows

const total = (row) => row.reduce((a, b) => a + b, 0);
export const cut = (name) => (name.length > NAMED ? `${name.slice(0, NAMED - 1)}…` : name);
const isNumber = (name) => /^\d+$/.test(name);
const client = (name) => (isNumber(name) ? `client ${name}` : name);
export const classWords = (name) => (isNumber(name) ? `class ${name}` : name);

export function drawWho() {
  const marks = Object.keys(view.data.partitions);
  $("#who-card").hidden = !marks.length;
  if (!marks.length) return;
  if (!marks.includes(view.partition)) view.partition = marks[0];
  const title = (m) => view.data.partitions[m].title;
  fill($("#partition"), ...marks.map((m) => el("option", { value: m, selected: m === view.partition }, title(m))));
  const held = view.data.partitions[view.partition];
  const longest = Math.max(...held.classes.map((name) => cut(name).length));
  const left = Math.max(LEFT, 28 + 8 * longest);
  const width = Math.max($("#who").clientWidth, left + 6 + 13 * held.counts.length);
  const step = (width - left - 6) / held.counts.length;
  const draw = view.style === "bubbles" ? bubbles : bars;
  fill($("#who"), followed(draw(held, { left, width, step })));
  fill(
    $("#who-figures"),
    ...held.figures.map(([name, words]) => el("div", {}, el("dt", {}, name), el("dd", {}, words))),
  );
  if ($("#who-table").open) whoTable($("#who-table"));
}

function bubbles(held, { left, width, step }) {
  const classes = held.classes.length;
  const rowHeight = Math.max(9, Math.min(28, 420 / classes));
  const plot = classes * rowHeight + 10;
  const svg = frame(held, "class", { left, width, step, plot });
  const radius = Math.min(step, rowHeight) * 0.62;
  const top = Math.max(...held.counts.flat());
  const every = Math.max(1, Math.ceil(classes / 25));
  held.classes.forEach((name, k) => {
    const y = plot - (k + 0.5) * rowHeight;
    svg.append(el("svg:line", { x1: left, x2: width, y1: y, y2: y, stroke: ink("--line"), "stroke-width": 1 }));
    if (k % every === 0) svg.append(label(left - 10, y + 4, cut(name), { "text-anchor": "end" }));
  });
  each(held, (n, i, k) => {
    const place = { cx: left + (i + 0.5) * step, cy: plot - (k + 0.5) * rowHeight };
    const r = Math.max(0.8, radius * Math.sqrt(n / top));
    const tip = `${client(held.shown[i])}, ${classWords(held.classes[k])}: ${n} samples`;
    svg.append(el("svg:circle", { ...place, r, fill: colour(0), "fill-opacity": 0.85, "data-tip": tip }));
  });
  return svg;
}

function bars(held, { left, width, step }) {
  const plot = 276;
  const svg = frame(held, "samples", { left, width, step, plot });
  const sizes = held.counts.map(total);
  const largest = Math.max(...sizes);
  for (let q = 0; q <= 4; q++) {
    const y = plot - (q / 4) * (plot - 10);
    svg.append(el("svg:line", { x1: left, x2: width, y1: y, y2: y, stroke: ink("--line") }));
    svg.append(label(left - 10, y + 4, amount((q / 4) * largest), { "text-anchor": "end" }));
  }
  const tone = isDark() ? "62% 62%" : "58% 52%";
  const tops = sizes.map(() => plot);
  each(held, (n, i, k) => {
    const height = (n / largest) * (plot - 10);
    tops[i] -= height;
    const place = { x: left + i * step + step * 0.06, y: tops[i], width: step * 0.88, height };
    const tip = `${client(held.shown[i])}, ${classWords(held.classes[k])}: ${n} of ${sizes[i]} samples`;
    const fillWith = `hsl(${(k * 360) / held.classes.length} ${tone})`;
    svg.append(el("svg:rect", { ...place, fill: fillWith, "data-tip": tip }));
  });
  return svg;
}

function each(held, draw) {
  held.counts.forEach((row, i) => {
    row.forEach((n, k) => {
      if (n) draw(n, i, k);
    });
  });
}

// The drawing with the clients along the bottom and what the height means at the left.
function frame(held, upright, { left, width, step, plot }) {
  const numbered = held.shown.every(isNumber);
  const bottom = numbered ? BOTTOM : BOTTOM + 44;
  const height = plot + bottom;
  const told = `Samples of each class held by each client: ${held.title}. The table below has the numbers.`;
  const box = { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": told };
  const svg = el("svg:svg", box);
  const every = Math.max(1, Math.ceil((numbered ? 30 : 16) / step));
  held.shown.forEach((name, i) => {
    if (i % every) return;
    const [x, y] = [left + (i + 0.5) * step, plot + 18];
    const turned = { "text-anchor": "end", transform: `rotate(-35 ${x} ${y - 6})` };
    svg.append(label(x, y, cut(name), numbered ? { "text-anchor": "middle" } : turned));
  });
  const shown = held.shown.length;
  const who = held.clients > shown ? `client (${shown} of ${held.clients})` : "client";
  svg.append(label(left + (width - left) / 2, height - 6, who, { "text-anchor": "middle" }));
  svg.append(label(14, plot / 2, upright, { transform: `rotate(-90 14 ${plot / 2})`, "text-anchor": "middle" }));
  return svg;
}

export function label(x, y, words, more) {
  return el("svg:text", { x, y, fill: ink("--soft"), "font-size": 13, ...more }, String(words));
}

export function followed(svg) {
  svg.addEventListener("mousemove", (event) => {
    const words = event.target.getAttribute("data-tip");
    if (words) showTip(event.clientX, event.clientY, words);
    else hideTip();
  });
  svg.addEventListener("mouseleave", hideTip);
  return svg;
}

export function whoTable(details) {
  const held = view.data.partitions[view.partition];
  const rows = held.counts.map((row, i) => ({
    cells: [cell(held.shown[i]), ...row.map((n) => cell(n, n, { class: n ? null : "muted" })), cell(total(row))],
  }));
  const titles = ["client", ...held.classes.map(classWords), "all"];
  put(details, { key: "who", caption: `Samples per client and class: ${held.title}`, titles, rows });
}

export function drawFair() {
  $("#fair-card").hidden = !view.data.fairness.length;
  const scale = el("div", { class: "fair-row axis-row" }, el("span", {}), scaleRow(), el("span", {}));
  fill($("#fair"), ...view.data.fairness.map(strip), scale);
  if ($("#fair-table").open) fairTable($("#fair-table"));
}

function strip(fared) {
  const width = 600;
  const x = (v) => 8 + v * (width - 16);
  const stroke = colour(fared.group);
  const [, q1, q2, q3] = fared.quantiles;
  const middle = `median ${percent(q2)}, middle half ${percent(q1)} to ${percent(q3)}`;
  const told = `${fared.label}: ${middle}, worst tenth ${percent(fared.worst)}`;
  const box = { viewBox: `0 0 ${width} 40`, preserveAspectRatio: "none", role: "img", "aria-label": told };
  const line = (v, y1, y2, more) =>
    el("svg:line", { x1: x(v), x2: x(v), y1, y2, "vector-effect": "non-scaling-stroke", ...more });
  const point = (v, i) => {
    const y = 13 + ((i * 7) % 5) * 2.2;
    return line(v, y, y + 5, { stroke, "stroke-width": 2, "stroke-opacity": 0.55 });
  };
  const half = { x: x(q1), y: 9, width: Math.max(1, x(q3) - x(q1)), height: 22, rx: 3 };
  const svg = el(
    "svg:svg",
    box,
    ...[0, 0.25, 0.5, 0.75, 1].map((v) => line(v, 2, 38, { stroke: ink("--line") })),
    el("svg:rect", { ...half, fill: stroke, "fill-opacity": 0.22 }),
    ...fared.values.map(point),
    line(q2, 6, 34, { stroke, "stroke-width": 3 }),
  );
  const numbers = [`mean ${percent(fared.mean)}`, el("br"), `worst tenth ${percent(fared.worst)}`];
  const worst = fared.lowest.map(([name, v]) => `${client(name)} ${percent(v)}`).join(", ");
  return el(
    "div",
    { class: `fair-row${isHidden(fared.group) ? " off" : ""}` },
    el("span", { class: "name" }, fared.label),
    svg,
    el("span", { class: "numbers" }, ...numbers),
    el("span", { class: "lowest" }, `lowest: ${worst}`),
  );
}

function scaleRow() {
  const ticks = ["0 %", "25 %", "50 %", "75 %", "100 %"];
  return el("div", { class: "ticks", "aria-hidden": "true" }, ...ticks.map((t) => el("span", {}, t)));
}

export function fairTable(details) {
  const titles = ["method", "round", "clients", "mean", "s.d.", "worst tenth", "least", "median", "most", "lowest"];
  const rows = view.data.fairness.map((f) => ({
    cells: [
      cell(f.label),
      cell(f.round),
      cell(f.clients),
      ...[f.mean, f.sd, f.worst, f.quantiles[0], f.quantiles[2], f.quantiles[4]].map((v) => cell(percent(v), v)),
      cell(client(f.lowest[0]?.[0] ?? "")),
    ],
  }));
  put(details, { key: "fair", caption: "Accuracy of clients on their own test parts", titles, rows });
}
