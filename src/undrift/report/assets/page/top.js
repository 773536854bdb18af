// The top of the page: what it is about, the verdict at the chosen target, the table of costs, the legend.

import { swatch } from "./charts.js";
import { $, el, fill } from "./dom.js";
import { costText, count, goal, rounds, spread, times } from "./numbers.js";
import { cell, sheet } from "./tables.js";
import { atTarget, colour, isHidden, view } from "./view.js";

const RANKED = 5; // more methods than this are listed by rank
const COSTS = { rounds: "rounds", bytes_up: "upload", bytes_down: "download", macs: "client compute", seconds: "time" };

export function drawHead() {
  const { title, runs, groups, made, ledger, warnings, trouble, verdict, figures } = view.data;
  document.title = title;
  $("#title").textContent = title;
  const metric = verdict ? figures[verdict.figure].metric : "accuracy";
  $("#h-curve").textContent = `${metric[0].toUpperCase()}${metric.slice(1)} and cost`;
  const open = runs.filter((r) => r.status !== "finished").length;
  const what = `${count(runs.length, "run")}, ${count(groups.length, "method")}`;
  $("#meta").textContent = `${what}${open ? `, ${open} not finished` : ""}; ${made}`;
  fill($("#warnings"), ...warnings.map((w) => el("p", { class: "warning" }, `${w}.`)));
  $("#trouble").hidden = !trouble;
  $("#trouble").textContent = trouble;
  $("#made").textContent = made;
  $("#ledger").textContent = ledger;
}

export function drawVerdict() {
  const at = atTarget();
  const nothing = view.data.runs.length ? "No run has an evaluated round yet." : "There are no runs yet.";
  const headline = at ? at.headline : nothing;
  if ($("#headline").textContent !== headline) $("#headline").textContent = headline;
  const evidence = at?.evidence ? `${at.evidence}.` : "";
  $("#evidence").textContent = evidence.charAt(0).toUpperCase() + evidence.slice(1);
  const others = at ? at.verdicts : [];
  $("#verdicts").hidden = !others.length;
  fill($("#verdicts ul"), ...others.map((s) => el("li", {}, s)));
  $("#target-card").hidden = !at;
  if (at) drawCosts(at);
}

function drawCosts(at) {
  const { verdict, groups } = view.data;
  const aimed = at.target !== null;
  $("#h-target").textContent = aimed ? "Cost to a target" : "At the end";
  $("#target-controls").hidden = !aimed;
  $("#target-hint").hidden = !aimed;
  const figure = view.data.figures[verdict.figure];
  const metric = figure.metric;
  const titles = [
    "method",
    ...(aimed ? costTitles(goal(at.target, figure)) : []),
    `final ${metric}`,
    "best",
    "seeds",
    "rejected",
  ];
  const order = groups.map((_, i) => i);
  if (groups.length > RANKED) order.sort((a, b) => at.ranks[a] - at.ranks[b]);
  const rows = order.map((i) => ({ cells: methodCells(i, at), off: isHidden(i) }));
  const caption = aimed ? `Cost to ${goal(at.target, figure)}` : "Figures at the end";
  sheet($("#costs"), { key: "costs", caption, titles, rows });
  if (aimed) sayTarget(at);
}

function costTitles(words) {
  const [first, ...rest] = Object.values(COSTS).map((title) => `${title} to ${words}`);
  return [first, "seeds' own mean", ...rest];
}

function methodCells(i, at) {
  const row = view.data.verdict.rows[i];
  const { label, state } = view.data.groups[i];
  const figure = view.data.figures[row.figure];
  const dot = el("span", { class: "swatch-dot", style: { "--c": colour(i) } });
  const asides = [row.baseline ? "baseline" : "", row.other ? figure.words : "", illness(row), state].filter(Boolean);
  const rejected = row.rejected + (row.skipped ? `, ${count(row.skipped, "round")} skipped` : "");
  return [
    cell([dot, label, ...asides.map((text) => el("small", {}, text))], label),
    ...(at.target === null ? [] : costCells(row, at.costs[i])),
    cell(spread(figure, row.final, row.seeds), row.final.mean),
    cell(spread(figure, row.best, row.seeds), row.best.mean),
    cell(row.seeds),
    cell(rejected, row.rejected),
  ];
}

function illness({ diverged, seeds }) {
  return diverged ? `diverged${seeds > 1 ? ` in ${diverged} of ${count(seeds, "seed")}` : ""}` : "";
}

function costCells(row, costs) {
  const [first, ...rest] = Object.keys(COSTS).map((column) => costCell(column, row, costs[column]));
  return [first, ownCell(row, costs.rounds), ...rest];
}

function costCell(column, row, cost) {
  const muted = { class: "muted" };
  if (!cost) return cell("–", null, muted);
  if (cost.value === null) {
    return cell(column === "rounds" ? `not reached in ${count(row.rounds, "round")}` : "–", null, muted);
  }
  const text = costText(column, cost.value);
  if (!cost.compared) return cell(text, cost.value);
  const ratio = el("span", { class: `ratio ${cost.standing}` }, times(cost.ratio));
  return cell([`${text} `, ratio], cost.value);
}

// The mean of the rounds at which each seed by itself reached the target.
function ownCell(row, cost) {
  if (!cost) return cell("–", null, { class: "muted" });
  return cost.own === null
    ? cell(`${cost.reached} of ${count(row.seeds, "seed")}`, null)
    : cell(rounds(cost.own), cost.own);
}

function sayTarget(at) {
  const { verdict } = view.data;
  const figure = view.data.figures[verdict.figure];
  const aim = goal(at.target, figure);
  const slider = $("#target");
  slider.max = verdict.targets.length - 1;
  slider.value = view.target ?? verdict.chosen;
  slider.setAttribute("aria-valuetext", aim);
  $("#target-words").textContent = aim;
  const chosen = view.target === null || view.target === verdict.chosen;
  const how = chosen && verdict.from ? ` (${verdict.from})` : "";
  const limit = figure.better === "lower" ? "most" : "least";
  const rule = `the first evaluated round at which the mean over seeds, unsmoothed, is at ${limit} the target`;
  const ratio = "× is the baseline's cost over the method's: above 1 is cheaper; coloured where it is more than chance";
  $("#target-hint").textContent = `Target ${aim}${how}: ${rule}. ${ratio}.`;
}

export function drawLegend(toggled) {
  const { groups } = view.data;
  const turn = (label) => () => {
    if (!view.hidden.delete(label)) view.hidden.add(label);
    toggled();
  };
  const all = () => {
    if (view.hidden.size) view.hidden.clear();
    else for (const g of groups) view.hidden.add(g.label);
    toggled();
  };
  const buttons = groups.map((g, i) => {
    const pressed = { type: "button", "aria-pressed": String(!isHidden(i)), title: "Hide or show in all charts" };
    return el("button", { ...pressed, on: { click: turn(g.label) } }, swatch(i), g.label);
  });
  if (groups.length > 2) {
    const words = view.hidden.size ? "Show all" : "Hide all";
    buttons.push(el("button", { type: "button", class: "plain", on: { click: all } }, words));
  }
  const bar = $("#legendbar");
  const at = [...bar.children].indexOf(document.activeElement);
  bar.classList.toggle("many", groups.length > 12);
  fill(bar, ...buttons);
  if (at >= 0 && bar.children[at]) bar.children[at].focus();
}
