// The big chart: a figure against rounds or costs, and its values as a table.

import { AXES, axisOf, forget, lineChart } from "./charts.js";
import { $ } from "./dom.js";
import { amount, figureText } from "./numbers.js";
import { pooled, smoothed, spent } from "./series.js";
import { cell, put } from "./tables.js";
import { atTarget, figure, view } from "./view.js";

const ofFigure = (run) => run.values[view.figure];

function curveLines() {
  const { groups, runs } = view.data;
  const lines = groups.flatMap((g, group) => [
    curveLine(
      g.runs.map((r) => runs[r]),
      g.label,
      group,
      false,
    ),
    ...g.partial.map((r) => curveLine([runs[r]], `${g.label}, seed ${runs[r].seed} (${runs[r].status})`, group, true)),
  ]);
  return lines.filter((line) => line.y.some((v) => v !== null));
}

function curveLine(runs, name, group, thin) {
  const { t, mean, sd: spread } = pooled(runs, (run) => run.at, ofFigure);
  const y = smoothed(mean, view.smooth);
  const sd = smoothed(spread, view.smooth);
  const band = view.band && !thin && sd.some((v) => v !== null);
  const edge = (sign) => y.map((v, k) => (v === null || sd[k] === null ? v : v + sign * sd[k]));
  return { name, group, thin, x: places(runs, t), y, low: band ? edge(-1) : null, high: band ? edge(1) : null };
}

// Where the rounds are on the chosen axis: the mean of what the runs had spent by then.
function places(runs, at) {
  if (view.axis === "rounds") return at;
  const cost = pooled(
    runs,
    (run) => run.rounds,
    (run) => spent(run, view.axis),
  );
  const where = new Map(cost.t.map((t, k) => [t, cost.mean[k]]));
  return at.map((t) => where.get(t));
}

export function drawCurve() {
  forget((holder) => holder === $("#curve"));
  const shown = figure() || { words: "", share: false };
  const smooth = view.smooth ? `factor ${view.smooth.toFixed(2)}` : "none";
  $("#smoothed").textContent = smooth;
  const title = shown.share ? shown.words.replace(shown.metric, `${shown.metric} (%)`) : shown.words;
  const goalShown = () => (view.figure === view.data.verdict?.figure ? (atTarget()?.target ?? null) : null);
  lineChart($("#curve"), {
    lines: shown.words ? curveLines() : [],
    label: `${shown.words} against ${AXES[view.axis].name}`,
    height: innerWidth < 640 ? 300 : 400,
    x: axisOf(view.axis),
    y: {
      title: title + (view.smooth ? `, smoothed (moving average, ${smooth})` : ""),
      tick: (v) => amount(v * (shown.share ? 100 : 1)),
      words: (v) => figureText(shown, v),
    },
    mark: goalShown,
  });
  if ($("#curve-table").open) valuesTable($("#curve-table"));
}

export function valuesTable(details) {
  const { groups, runs } = view.data;
  const columns = groups.map((g) =>
    pooled(
      g.runs.map((r) => runs[r]),
      (run) => run.at,
      ofFigure,
    ),
  );
  const at = [...new Set(columns.flatMap((c) => c.t))].sort((a, b) => a - b);
  const maps = columns.map((c) => new Map(c.t.map((t, i) => [t, i])));
  const rows = at.map((t) => ({ cells: [cell(t), ...columns.map((c, i) => valueCell(c, maps[i].get(t)))] }));
  const caption = `${figure().words}, mean ± standard deviation`;
  put(details, { key: "values", caption, titles: ["round", ...groups.map((g) => g.label)], rows, text: 0 });
}

function valueCell({ mean, sd }, i) {
  if (i === undefined) return cell("", null);
  const text = figureText(figure(), mean[i]);
  return cell(sd[i] === null ? text : `${text.replace(/ %$/, "")} ± ${figureText(figure(), sd[i])}`, mean[i]);
}
