// What is shown, and how: the data, the reader's choices, the colours.

import { $, recalled } from "./dom.js";

const LIGHT = "#0072b2 #d55e00 #00875f #c2478e #a87400 #3f8fcb #7a5195 #7d5f22 #555b66 #b40426 #1d857a #557d3f".split(
  " ",
);
const DARK = "#56b4ff #ff8f4f #35d6a4 #f59bcb #f0c04f #9ad6ff #c09cf0 #d6b877 #bcc4d2 #ff8590 #66e3d3 #abd790".split(
  " ",
);
export const DASHES = [[], [8, 4], [2, 3]];

export const view = {
  data: JSON.parse($("#data").textContent),
  axis: "rounds",
  figure: 0,
  smooth: 0,
  band: true,
  hidden: new Set(), // labels of methods
  target: null, // a place among the targets; null: the chosen one
  partition: null,
  style: "bubbles",
  timed: null, // the run whose time line is shown
  timedRound: null, // a place among its rounds; null: the last one
  sorted: {}, // table -> [column, direction]
  theme: recalled("undrift-theme") || "automatic",
  charts: [],
};

export function figure() {
  return view.data.figures[view.figure];
}

export function isHidden(group) {
  return view.hidden.has(view.data.groups[group].label);
}

// The verdict at the target that the reader chose.
export function atTarget() {
  const verdict = view.data.verdict;
  return verdict ? verdict.targets[view.target ?? verdict.chosen] : null;
}

export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

export function colour(group) {
  const palette = isDark() ? DARK : LIGHT;
  return palette[group % palette.length];
}

export function dash(group) {
  return DASHES[Math.floor(group / LIGHT.length) % DASHES.length];
}

export function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function faded(hex, alpha) {
  return (
    hex +
    Math.round(alpha * 255)
      .toString(16)
      .padStart(2, "0")
  );
}

export function applyTheme(theme = view.theme) {
  const night = theme === "dark" || (theme === "automatic" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = night ? "dark" : "light";
  $("#theme").textContent = `Theme: ${view.theme}`;
}
