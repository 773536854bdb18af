// Shows what the page's JSON holds, and follows a ledger that is being written.

import { AXES } from "./charts.js";
import { drawFair, drawWho, fairTable, whoTable } from "./clients.js";
import { drawCurve, valuesTable } from "./curve.js";
import { $, el, fill, hideTip, lazily, remember } from "./dom.js";
import { downloadCsv } from "./download.js";
import { drawRuns, drawSettings, drawSmall } from "./runs.js";
import { markCut } from "./tables.js";
import { drawTimeline, timeTable } from "./timeline.js";
import { drawHead, drawLegend, drawVerdict } from "./top.js";
import { applyTheme, isHidden, view } from "./view.js";

const NEXT = { automatic: "light", light: "dark", dark: "automatic" };

function draw() {
  hideTip();
  const { figures, verdict } = view.data;
  if (view.figure >= figures.length) view.figure = 0;
  const option = (f, i) => el("option", { value: i, selected: i === view.figure }, f.words);
  fill($("#figure"), ...figures.map(option));
  if (view.target !== null && verdict) view.target = Math.min(view.target, verdict.targets.length - 1);
  drawHead();
  drawLegend(toggled);
  drawVerdict();
  drawWho();
  drawFair();
  drawTimeline();
  drawCurve();
  drawSmall();
  drawRuns();
  drawSettings();
  markCut();
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

// A method was hidden or shown.
function toggled() {
  drawLegend(toggled);
  drawVerdict();
  drawFair();
  for (const { chart, lines } of view.charts) {
    chart.batch(() => {
      for (const line of lines) {
        const show = !isHidden(line.group);
        for (let i = line.index; i <= line.index + (line.low ? 2 : 0); i++) {
          if (chart.series[i].show !== show) chart.setSeries(i, { show });
        }
      }
    });
  }
}

function choices(fieldset, name, options, chosen, change) {
  for (const [value, words] of options) {
    const input = { type: "radio", name, value, checked: value === chosen, on: { change: () => change(value) } };
    fieldset.append(el("label", {}, el("input", input), words));
  }
}

// Sets a choice of the reader and draws what depends on it.
function chooses(name, read, redraw) {
  return (event) => {
    view[name] = read(event.target);
    redraw();
  };
}

function listen() {
  const axes = Object.entries(AXES).map(([key, axis]) => [key, axis.name]);
  choices($("#axis"), "axis", axes, view.axis, (key) => {
    view.axis = key;
    drawCurve();
  });
  const styles = [
    ["bubbles", "bubbles"],
    ["bars", "stacked bars"],
  ];
  choices($("#style"), "style", styles, view.style, (key) => {
    view.style = key;
    drawWho();
  });
  const number = (input) => Number(input.value);
  $("#figure").onchange = chooses("figure", number, drawCurve);
  $("#smooth").oninput = chooses("smooth", number, drawCurve);
  $("#band").onchange = chooses("band", (input) => input.checked, drawCurve);
  $("#partition").onchange = chooses("partition", (input) => input.value, drawWho);
  $("#timed").onchange = chooses("timed", (input) => input.value, drawTimeline);
  $("#timed-round").oninput = chooses("timedRound", number, drawTimeline);
  $("#target").oninput = chooses("target", number, retarget);
  $("#csv").onclick = downloadCsv;
  $("#theme").onclick = () => {
    view.theme = NEXT[view.theme] || "automatic";
    remember("undrift-theme", view.theme);
    repaint();
  };
  lazily($("#curve-table"), valuesTable);
  lazily($("#who-table"), whoTable);
  lazily($("#fair-table"), fairTable);
  lazily($("#time-table"), timeTable);
  for (const details of document.querySelectorAll("details")) lazily(details, markCut);
}

function retarget() {
  drawVerdict();
  for (const { chart, holder } of view.charts) if (holder === $("#curve")) chart.redraw(false);
}

function repaint(theme) {
  applyTheme(theme);
  draw();
}

function adapt() {
  let width = 0;
  new ResizeObserver(() => {
    if (innerWidth === width) return;
    width = innerWidth;
    for (const { chart, holder, height } of view.charts) {
      chart.setSize({ width: Math.max(240, holder.clientWidth), height });
    }
    drawWho();
    markCut();
  }).observe(document.body);
  addEventListener("scroll", hideTip, { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint());
  addEventListener("beforeprint", () => repaint("light")); // paper is white
  addEventListener("afterprint", () => repaint());
}

async function follow() {
  let version = document.body.dataset.live;
  sayLive();
  for (;;) {
    await new Promise((done) => setTimeout(done, document.hidden ? 5000 : 800));
    try {
      const query = new URLSearchParams(location.search);
      query.set("version", version);
      const answer = await fetch(`data.json?${query}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      if (answer.status !== 204) {
        version = answer.headers.get("X-Version");
        view.data = await answer.json();
        draw();
      }
      sayLive();
    } catch {
      sayLive("no answer from undrift watch; trying again");
    }
  }
}

// The dot is green only while all that is shown is what the ledger holds.
function sayLive(lost = view.data.trouble ? "some of it could not be read; trying again" : "") {
  const live = $("#live");
  live.hidden = false;
  live.classList.toggle("lost", lost !== "");
  live.textContent = lost || "live";
}

listen();
adapt();
repaint();
if (document.body.dataset.live !== undefined) follow();
