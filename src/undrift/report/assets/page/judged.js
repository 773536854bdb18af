// What the global model takes for what, and how sure it is against how often it is right.

import { classWords, cut, followed, label } from "./clients.js";
import { $, el, fill } from "./dom.js";
import { percent } from "./numbers.js";
import { cell, put } from "./tables.js";
import { colour, ink, isHidden, view } from "./view.js";

const SIDE = 34; // of a cell of the matrix, at most
const LEGEND = 46; // room under the matrix for the scale of its colours

export function drawTaken() {
  const all = view.data.confusions;
  $("#taken-card").hidden = !all.length;
  if (!all.length) return;
  if (view.taken >= all.length) view.taken = 0;
  const option = (one, i) => el("option", { value: i, selected: i === view.taken }, one.label);
  fill($("#taken-method"), ...all.map(option));
  fill($("#taken"), followed(matrix(all[view.taken])));
  if ($("#taken-table").open) takenTable($("#taken-table"));
}

function matrix(one) {
  const names = one.classes;
  const room = 12 + 8 * Math.max(...names.map((name) => cut(name).length));
  const left = room + 22;
  const side = Math.max(10, Math.min(SIDE, ($("#taken").clientWidth - left - 8) / names.length));
  const top = room + 22;
  const [width, plot] = [left + side * names.length + 8, top + side * names.length];
  const height = plot + LEGEND;
  const told = `${one.label}: what each class of the test set is taken for, round ${one.round}. The table below has the numbers.`;
  const svg = el("svg:svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": told });
  const hue = colour(one.group);
  const every = Math.max(1, Math.ceil(14 / side));
  one.counts.forEach((row, i) => {
    const all = row.reduce((a, b) => a + b, 0);
    const y = top + i * side;
    if (i % every === 0) {
      svg.append(label(left - 8, y + side / 2 + 4, cut(names[i]), { "text-anchor": "end" }));
      const x = left + (i + 0.5) * side + 4;
      svg.append(label(x, top - 8, cut(names[i]), { transform: `rotate(-90 ${x} ${top - 8})` }));
    }
    row.forEach((n, j) => {
      const share = all ? n / all : 0;
      const x = left + j * side;
      const tip = `${classWords(names[i])} taken for ${classWords(names[j])}: ${n} of ${all} (${percent(share)})`;
      const place = { x, y, width: side - 1, height: side - 1, "data-tip": tip };
      svg.append(el("svg:rect", { ...place, fill: ink("--line"), "fill-opacity": 0.35 }));
      svg.append(el("svg:rect", { ...place, fill: hue, "fill-opacity": share }));
    });
  });
  svg.append(label(left, 14, "taken for", {}));
  svg.append(label(14, top, "class", { transform: `rotate(-90 14 ${top})`, "text-anchor": "end" }));
  const steps = [0, 0.25, 0.5, 0.75, 1];
  steps.forEach((share, i) => {
    const place = { x: left + i * 44, y: plot + 12, width: 43, height: 12 };
    svg.append(el("svg:rect", { ...place, fill: ink("--line"), "fill-opacity": 0.35 }));
    svg.append(el("svg:rect", { ...place, fill: hue, "fill-opacity": share }));
    svg.append(label(place.x + 21, plot + 40, `${100 * share} %`, { "text-anchor": "middle" }));
  });
  svg.setAttribute("width", Math.max(width, left + 44 * steps.length + 8));
  svg.setAttribute("viewBox", `0 0 ${Math.max(width, left + 44 * steps.length + 8)} ${height}`);
  return svg;
}

export function takenTable(details) {
  const one = view.data.confusions[view.taken];
  const rows = one.counts.map((row, i) => ({
    cells: [cell(one.classes[i]), ...row.map((n) => cell(n, n, { class: n ? null : "muted" }))],
  }));
  const caption = `Samples of each class by what ${one.label} takes them for`;
  put(details, { key: "taken", caption, titles: ["class", ...one.classes.map(classWords)], rows });
}

export function drawSure() {
  const all = view.data.reliabilities;
  $("#sure-card").hidden = !all.length;
  if (!all.length) return;
  const size = Math.max(200, Math.min(440, $("#sure").clientWidth - 8));
  const left = 62;
  const plot = size - 56;
  const at = (sure, right) => [left + sure * (size - left - 26), plot - right * (plot - 12)];
  const told = all.map((one) => `${one.label}: calibration error ${percent(one.error)}`).join("; ");
  const svg = el("svg:svg", {
    viewBox: `0 0 ${size} ${size}`,
    width: size,
    height: size,
    role: "img",
    "aria-label": told,
  });
  for (const v of [0, 0.25, 0.5, 0.75, 1]) {
    const [[x0, y], [x1]] = [at(0, v), at(1, v)];
    const [[x, y0], [, y1]] = [at(v, 0), at(v, 1)];
    svg.append(el("svg:line", { x1: x0, x2: x1, y1: y, y2: y, stroke: ink("--line") }));
    svg.append(el("svg:line", { x1: x, x2: x, y1: y0, y2: y1, stroke: ink("--line") }));
    svg.append(label(x0 - 8, y + 4, `${100 * v} %`, { "text-anchor": "end" }));
    svg.append(label(x, plot + 18, `${100 * v} %`, { "text-anchor": "middle" }));
  }
  const [[x0, y0], [x1, y1]] = [at(0, 0), at(1, 1)];
  svg.append(el("svg:line", { x1: x0, x2: x1, y1: y0, y2: y1, stroke: ink("--soft"), "stroke-dasharray": "5 4" }));
  svg.append(label(left + (size - left) / 2, plot + 42, "how sure", { "text-anchor": "middle" }));
  svg.append(
    label(14, plot / 2, "how often right", { transform: `rotate(-90 14 ${plot / 2})`, "text-anchor": "middle" }),
  );
  for (const one of all) {
    if (!isHidden(one.group)) svg.append(...dots(one, at));
  }
  const legend = all.map((one) =>
    el(
      "li",
      { class: isHidden(one.group) ? "off" : null },
      el("span", { class: "dot", style: { background: colour(one.group) } }),
      `${one.label}: calibration error ${percent(one.error)}`,
    ),
  );
  fill($("#sure"), followed(svg), el("ul", { class: "key" }, ...legend));
  if ($("#sure-table").open) sureTable($("#sure-table"));
}

function dots(one, at) {
  const most = Math.max(...one.bins.map(([n]) => n));
  const hue = colour(one.group);
  const points = one.bins.map(([, sure, right]) => at(sure, right).join(",")).join(" ");
  const line = el("svg:polyline", { points, fill: "none", stroke: hue, "stroke-opacity": 0.6, "stroke-width": 1.5 });
  const circles = one.bins.map(([n, sure, right]) => {
    const [cx, cy] = at(sure, right);
    const tip = `${one.label}: ${n} samples, sure to ${percent(sure)}, right in ${percent(right)}`;
    return el("svg:circle", {
      cx,
      cy,
      r: 2.5 + 5 * Math.sqrt(n / most),
      fill: hue,
      "fill-opacity": 0.8,
      "data-tip": tip,
    });
  });
  return [line, ...circles];
}

export function sureTable(details) {
  const rows = view.data.reliabilities.flatMap((one) =>
    one.bins.map(([n, sure, right]) => ({
      cells: [cell(one.label), cell(n), cell(percent(sure), sure), cell(percent(right), right)],
    })),
  );
  const titles = ["method", "samples", "how sure", "how often right"];
  put(details, { key: "sure", caption: "Test samples by how sure the model is of its answer", titles, rows });
}
