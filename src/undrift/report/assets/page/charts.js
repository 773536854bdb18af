// Line charts: drawing, reading values by mouse and keyboard.

import { $, el, hideTip, showTip } from "./dom.js";
import { amount, dataSize, duration, operations } from "./numbers.js";
import { pooled } from "./series.js";
import { colour, DASHES, dash, faded, ink, isDark, isHidden, view } from "./view.js";

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
const FEW = 12; // points below which each of them is drawn
const READ = 14; // methods that a tip lists
const FONT = "12px system-ui, sans-serif";
const STYLES = ["solid", "dashed", "dotted"];

const hundredth = (v) => String(Math.round(v * 100) / 100);
export const AXES = {
  rounds: { name: "rounds", title: "round", words: (v) => `round ${hundredth(v)}` },
  bytes: { name: "bytes", title: "traffic, up and down", words: dataSize },
  macs: { name: "compute", title: "client compute (MACs)", words: operations },
  seconds: { name: "seconds", title: "time", words: duration },
};

export function axisOf(name) {
  const { title, words } = AXES[name];
  return { title, words, tick: name === "rounds" ? hundredth : words, whole: name === "rounds" };
}

export function swatch(group) {
  const style = STYLES[DASHES.indexOf(dash(group))];
  return el("span", { class: "swatch", style: { "--c": colour(group), "border-top-style": style } });
}

export function forget(belongs) {
  view.charts = view.charts.filter((entry) => {
    if (belongs(entry.holder)) entry.chart.destroy();
    return !belongs(entry.holder);
  });
}

// lines: [{name, group, x, y, low, high, thin}], each with its own x.
export function lineChart(holder, { lines, x, y, label, height, mark }) {
  const shown = lines.filter((line) => line.x.length);
  holder.replaceChildren();
  holder.setAttribute("tabindex", "0");
  holder.setAttribute("role", "group");
  holder.setAttribute("aria-roledescription", "chart");
  holder.setAttribute("aria-label", `${label}. Left and right arrow keys read the values.`);
  if (!shown.length) {
    holder.append(el("p", { class: "hint" }, "nothing to draw yet"));
    return;
  }
  const data = joined(shown);
  const { series, bands } = styled(shown);
  const entry = { holder, lines: shown, height, data, x, y, reading: "" };
  const options = {
    width: Math.max(240, holder.clientWidth),
    height,
    legend: { show: false },
    focus: { alpha: 0.35 },
    cursor: cursor(new Set(shown.map((line) => line.index))),
    scales: { x: { time: false } },
    axes: axes(x, y),
    series,
    bands,
    hooks: { setCursor: [() => readOut(entry)], draw: [(u) => mark && level(u, mark())] },
  };
  entry.chart = new uPlot(options, data, holder);
  view.charts.push(entry);
  readByKeys(entry);
  entry.chart.over.addEventListener("mouseleave", hideTip);
}

function joined(lines) {
  const tables = lines.map((line) => [line.x, line.y, ...(line.low ? [line.low, line.high] : [])]);
  const [first] = tables;
  const same = tables.every((t) => t[0].length === first[0].length && t[0].every((v, i) => v === first[0][i]));
  return same ? [first[0], ...tables.flatMap((t) => t.slice(1))] : uPlot.join(tables);
}

function styled(lines) {
  const series = [{}];
  const bands = [];
  const alpha = Math.max(0.04, (isDark() ? 0.22 : 0.16) - 0.02 * lines.length);
  for (const line of lines) {
    const stroke = colour(line.group);
    const show = !isHidden(line.group);
    line.index = series.length;
    series.push({
      label: line.name,
      stroke,
      width: line.thin ? 1.25 : 2,
      dash: line.thin ? [4, 4] : dash(line.group),
      points: { show: line.x.length < FEW, size: 6, fill: stroke },
      show,
    });
    if (!line.low) continue;
    const edge = { stroke: "transparent", points: { show: false }, show };
    series.push({ ...edge }, { ...edge });
    bands.push({ series: [line.index + 2, line.index + 1], fill: faded(stroke, alpha) });
  }
  return { series, bands };
}

function cursor(real) {
  return {
    focus: { prox: 24 },
    hover: { skip: [undefined, null], prox: null },
    points: { show: (_, i) => real.has(i), size: 9, width: 2 },
    dataIdx: undefined,
  };
}

function axes(x, y) {
  const thin = { stroke: ink("--line"), width: 1 };
  const axis = { stroke: ink("--soft"), grid: thin, ticks: thin, font: FONT, labelFont: FONT };
  const room = { labelSize: 20, labelGap: 2, gap: 5 };
  const steps = x.whole ? { incrs: WHOLE } : {};
  return [
    { ...axis, ...room, ...steps, label: x.title, size: 26, space: 70, values: (_, ticks) => ticks.map(x.tick) },
    { ...axis, ...room, label: y.title || null, size: 50, values: (_, ticks) => ticks.map(y.tick) },
  ];
}

// The values under the cursor, highest first.
function found({ chart, lines, data }) {
  const rows = [];
  for (const line of lines) {
    const i = chart.series[line.index].show ? chart.cursor.idxs[line.index] : null;
    const v = i === null || i === undefined ? null : data[line.index][i];
    if (v !== null && v !== undefined) rows.push({ line, x: data[0][i], v });
  }
  return rows.sort((a, b) => b.v - a.v);
}

function readOut(entry) {
  const { chart, x, y } = entry;
  const rows = chart && chart.cursor.left >= 0 ? found(entry) : [];
  if (!rows.length) {
    hideTip();
    return;
  }
  const same = rows.every((row) => row.x === rows[0].x);
  const title = x.words(same ? rows[0].x : chart.posToVal(chart.cursor.left, "x"));
  const lines = rows.slice(0, READ).map((row) => {
    const where = same ? null : el("span", { class: "far" }, ` at ${x.words(row.x)}`);
    const dot = el("span", { class: "swatch-dot", style: { "--c": colour(row.line.group) } });
    return el("div", {}, dot, el("span", {}, row.line.name, where), el("span", {}, y.words(row.v)));
  });
  if (rows.length > READ) lines.push(el("div", { class: "far" }, `and ${rows.length - READ} more`));
  const box = chart.over.getBoundingClientRect();
  showTip(box.left + chart.cursor.left, box.top + chart.cursor.top, el("b", {}, title), ...lines);
  entry.reading = `${title}: ${rows.map((row) => `${row.line.name} ${y.words(row.v)}`).join(", ")}`;
}

function readByKeys(entry) {
  const { chart, holder, lines, data } = entry;
  const last = data[0].length - 1;
  let place = -1;
  const leave = () => {
    chart.setCursor({ left: -10, top: -10 });
    hideTip();
  };
  holder.onkeydown = (event) => {
    const jump = event.shiftKey ? 10 : 1;
    const keys = { ArrowRight: place + jump, ArrowLeft: place < 0 ? last : place - jump, Home: 0, End: last };
    if (event.key === "Escape") {
      place = -1;
      leave();
    }
    if (!(event.key in keys)) return;
    event.preventDefault();
    place = Math.min(last, Math.max(0, keys[event.key]));
    const some = lines.find((line) => chart.series[line.index].show);
    const v = some ? data[some.index][place] : null;
    const top = v === null || v === undefined ? 20 : chart.valToPos(v, "y");
    chart.setCursor({ left: chart.valToPos(data[0][place], "x"), top });
    $("#say").textContent = entry.reading;
  };
  holder.onblur = leave;
}

// A dashed line across the chart, where there is a level to show.
function level(u, at) {
  if (at === null || at < u.scales.y.min || at > u.scales.y.max) return;
  const y = Math.round(u.valToPos(at, "y", true)) + 0.5;
  const { left, width } = u.bbox;
  u.ctx.save();
  u.ctx.strokeStyle = ink("--soft");
  u.ctx.lineWidth = devicePixelRatio;
  u.ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
  u.ctx.beginPath();
  u.ctx.moveTo(left, y);
  u.ctx.lineTo(left + width, y);
  u.ctx.stroke();
  u.ctx.restore();
}

// A small chart over rounds with a legend of its own.
export function smallChart(holder, title, text, pick) {
  const { groups, runs } = view.data;
  const lines = groups.map((g, group) => {
    const { t, mean } = pooled(
      g.runs.map((r) => runs[r]),
      (run) => run.rounds,
      pick,
    );
    return { name: g.label, group, x: t, y: mean };
  });
  const drawn = lines.filter((line) => line.y.some((v) => v !== null));
  const place = el("div", { class: "chart" });
  const key = drawn.map((line) => el("span", { "data-group": line.group }, swatch(line.group), line.name));
  holder.append(
    el("div", {}, el("h3", {}, title), place, el("p", { class: "key" }, ...key), el("p", { class: "hint" }, text)),
  );
  const y = { title: "", tick: amount, words: amount };
  lineChart(place, { lines: drawn, label: text ? `${title}, ${text}` : title, height: 230, x: axisOf("rounds"), y });
}
