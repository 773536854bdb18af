// The table for other programs: the columns of `undrift export`, with the same meaning.

import { el } from "./dom.js";
import { view } from "./view.js";

function names(field) {
  return [...new Set(view.data.runs.flatMap((run) => Object.keys(run[field])))];
}

function tableRows() {
  const { runs, figures } = view.data;
  const costs = [...new Set(runs.flatMap((run) => Object.keys(run.costs)))];
  const [drift, notes] = [names("drift"), names("notes")];
  const own = [...drift.map((k) => `drift ${k}`), ...notes.map((k) => `note ${k}`), ...figures.map((f) => f.column)];
  const rows = [["run", "method", "seed", "status", "round", ...costs, ...own]];
  for (const run of runs) {
    const at = new Map(run.at.map((t, i) => [t, i]));
    run.rounds.forEach((t, i) => {
      rows.push([
        ...[run.name, run.label, run.seed, run.status, t],
        ...costs.map((name) => run.costs[name][i]),
        ...drift.map((k) => run.drift[k]?.[i]),
        ...notes.map((k) => run.notes[k]?.[i]),
        ...figures.map((_, f) => (at.has(t) ? run.values[f]?.[at.get(t)] : null)),
      ]);
    });
  }
  return rows;
}

function quoted(v) {
  if (v === null || v === undefined) return "";
  if (typeof v === "number") return String(v);
  const text = /^[=+\-@\t\r]/.test(v) ? `'${v}` : v; // a name must not become a formula of a spreadsheet
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function downloadCsv() {
  const text = tableRows().map((row) => row.map(quoted).join(","));
  const url = URL.createObjectURL(new Blob([`${text.join("\n")}\n`], { type: "text/csv" }));
  el("a", { href: url, download: "undrift.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
