// Drift, the methods' own series, the runs and their settings.

import { forget, smallChart } from "./charts.js";
import { $, el, fill } from "./dom.js";
import { count, figureText } from "./numbers.js";
import { cell, sheet } from "./tables.js";
import { view } from "./view.js";

const DRIFT = {
  distance: ["Distance", "Root mean square distance of the clients' updates to their mean."],
  cosine: ["Angle", "Mean cosine between an update and the mean update; 1: all point the same way."],
  amp: ["Norm ratio", "Mean norm of the updates over the norm of their mean; 1: nothing cancels out."],
};

export function drawSmall() {
  const drift = $("#drift");
  const notes = $("#notes");
  forget((holder) => drift.contains(holder) || notes.contains(holder));
  fill(drift);
  fill(notes);
  const known = Object.keys(DRIFT);
  const kinds = recorded("drift").sort((a, b) => known.indexOf(a) - known.indexOf(b));
  $("#drift-card").hidden = !kinds.length;
  for (const key of kinds) smallChart(drift, ...(DRIFT[key] || [key, ""]), (run) => run.drift[key]);
  const own = recorded("notes").filter((key) => key in view.data.notes); // the sites' seconds have a card of their own
  $("#notes-card").hidden = !own.length;
  for (const key of own) smallChart(notes, view.data.notes[key], "", (run) => run.notes[key]);
}

// The names of the series that have a value anywhere.
function recorded(field) {
  const some = (run) => Object.keys(run[field]).filter((key) => run[field][key].some((v) => v !== null));
  return [...new Set(view.data.runs.flatMap(some))];
}

export function drawRuns() {
  const { runs } = view.data;
  const titles = ["run", "method", "seed", "status", "rounds", "last", "rejected uploads", "began"];
  const rows = runs.map((run) => ({ cells: runCells(run) }));
  sheet($("#runs"), { key: "runs", caption: "Runs", titles, rows, text: 2 });
  fill($("#commands"), ...runs.map(repeated));
  const failed = runs.filter((run) => run.message);
  fill($("#troubles"), ...failed.map((run) => el("p", { class: "warning" }, `${run.name}: ${run.message}`)));
  const rejected = runs.flatMap((run) =>
    run.rejections.map(([t, who, why]) => el("li", {}, `${run.name}, round ${t}, client ${who}: ${why}`)),
  );
  $("#rejections").hidden = !rejected.length;
  fill($("#rejections ul"), ...rejected);
}

function runCells(run) {
  const values = run.main === null ? null : run.values[run.main];
  const last = values?.length ? values.at(-1) : null;
  const rejected = run.rejected + (run.skipped ? `; ${count(run.skipped, "round")} skipped` : "");
  const badge = el("span", { class: `badge ${run.status}`, title: run.message || null }, run.status);
  return [
    cell(run.name),
    cell(run.label),
    cell(run.seed),
    cell(badge, run.status),
    cell(`${run.rounds.length} of ${run.planned}`, run.rounds.length),
    cell(run.main === null ? "n/a" : figureText(view.data.figures[run.main], last), last),
    cell(rejected, run.rejected),
    cell(run.created),
  ];
}

function repeated(run) {
  const own = "Started from Python with its own model or data: its settings are below.";
  const typed = run.typed && run.typed !== run.command;
  return el(
    "div",
    {},
    el("h3", {}, run.name),
    el("div", { class: "command" }, el("code", {}, run.command || own), run.command ? copier(run.command) : null),
    typed ? el("p", { class: "hint" }, `It was started by: ${run.typed}`) : null,
  );
}

function copier(text) {
  const copy = async (event) => {
    const button = event.target;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it";
    }
  };
  return el("button", { type: "button", on: { click: copy } }, "Copy");
}

export function drawSettings() {
  const { runs, settings } = view.data;
  const differ = runs.map((run, i) => ({ cells: [run.name, ...settings.rows[i]].map((text) => cell(text)) }));
  const caption = "Settings that differ between runs";
  sheet($("#differ"), { key: "differ", caption, titles: ["run", ...settings.names], rows: differ });
  const shared = settings.shared.map((pair) => ({ cells: pair.map((text) => cell(text)) }));
  const all = "Settings that all runs share";
  sheet($("#shared"), { key: "shared", caption: all, titles: ["setting", "value"], rows: shared, text: 2 });
}
