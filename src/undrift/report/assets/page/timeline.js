// What a round took at each site of a federation: on the network, waiting, at work, without an answer.

import { $, el, fill } from "./dom.js";
import { cell, put } from "./tables.js";
import { view } from "./view.js";

const PARTS = { network: "network", waited: "waiting", worked: "training", unanswered: "no answer" };
const seconds = (value) => `${value.toPrecision(2)} s`;

export function drawTimeline() {
  const runs = view.data.runs.filter((run) => run.timeline.length);
  $("#time-card").hidden = !runs.length;
  if (!runs.length) return;
  if (!runs.some((run) => run.name === view.timed)) view.timed = runs[0].name;
  const run = runs.find((one) => one.name === view.timed);
  fill($("#timed"), ...runs.map((r) => el("option", { value: r.name, selected: r === run }, r.name)));
  $("#slowest").textContent = `${run.slowest}.`;
  const last = run.rounds.length - 1;
  const at = Math.min(view.timedRound ?? last, last);
  const slider = $("#timed-round");
  slider.max = last;
  slider.value = at;
  $("#timed-round-words").textContent = String(run.rounds[at]);
  const rows = run.timeline.map((line) => ({ site: line.site, spent: atSite(run, line, at) }));
  const longest = Math.max(...rows.map((row) => row.spent.total));
  fill($("#timeline"), ...rows.map((row) => bar(row, longest)));
  if ($("#time-table").open) timeTable($("#time-table"));
}

function atSite(run, line, at) {
  const found = { total: 0 };
  for (const part of Object.keys(PARTS)) {
    found[part] = run.notes[line[part]]?.[at] ?? 0;
    found.total += found[part];
  }
  return found;
}

function bar({ site, spent }, longest) {
  const parts = Object.keys(PARTS).filter((part) => spent[part]);
  const words = parts.map((part) => `${PARTS[part]} ${seconds(spent[part])}`).join(", ") || "was not asked";
  const width = (part) => ({ width: `${(100 * spent[part]) / longest}%` });
  const pieces = parts.map((part) => el("span", { class: `span ${part}`, style: width(part) }));
  const drawn = el("div", { class: "spans", role: "img", "aria-label": `${site}: ${words}` }, ...pieces);
  return el("div", { class: "time-row" }, el("span", {}, site), drawn, el("span", { class: "numbers" }, words));
}

// Every round of the run that is shown.
export function timeTable(details) {
  const run = view.data.runs.find((one) => one.name === view.timed);
  const titles = ["round", "site", ...Object.values(PARTS).map((words) => `${words}, s`)];
  const rows = run.rounds.flatMap((round, at) =>
    run.timeline.map((line) => {
      const found = atSite(run, line, at);
      const cells = Object.keys(PARTS).map((part) => cell(found[part].toPrecision(2), found[part]));
      return { cells: [cell(round), cell(line.site), ...cells] };
    }),
  );
  put(details, { key: "timeline", caption: "Seconds at each site", titles, rows, text: 2 });
}
