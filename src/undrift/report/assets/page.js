"use strict";
(() => {
  // Shows what the page's JSON holds. All statistics over seeds except the drawn mean and band come ready-made; text
  // goes into the page as text nodes only, so no name can become markup.
  const $ = (selector) => document.querySelector(selector);
  const NS = "http://www.w3.org/2000/svg";
  const LIGHT = ["#0072b2", "#d55e00", "#00875f", "#c2478e", "#a87400", "#3f8fcb", "#7a5195", "#7d5f22", "#555b66", "#b40426", "#1d857a", "#557d3f"];
  const DARK = ["#56b4ff", "#ff8f4f", "#35d6a4", "#f59bcb", "#f0c04f", "#9ad6ff", "#c09cf0", "#d6b877", "#bcc4d2", "#ff8590", "#66e3d3", "#abd790"];
  const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
  const DASHES = [[], [8, 4], [2, 3]];
  const AXES = {
    rounds: { name: "rounds", title: "round", words: (v) => `round ${round(v)}` },
    bytes: { name: "bytes", title: "traffic, up and down", words: (v) => scaled(v, ["B", "kB", "MB", "GB", "TB", "PB"]) },
    macs: { name: "compute", title: "client compute (MACs)", words: (v) => scaled(v, ["MAC", "kMAC", "MMAC", "GMAC", "TMAC", "PMAC", "EMAC"]) },
    seconds: { name: "seconds", title: "time", words: (v) => duration(v) },
  };
  const DRIFT = {
    distance: ["Distance", "Root mean square distance of the clients' updates to their mean."],
    cosine: ["Angle", "Mean cosine between an update and the mean update; 1: all point the same way."],
    amp: ["Norm ratio (amp)", "Mean norm of the updates over the norm of their mean; 1: nothing cancels out."],
  };

  let D = JSON.parse($("#data").textContent);
  const state = { axis: "rounds", figure: null, smooth: 0, band: true, hidden: new Set(), target: null, partition: null, style: "bubbles", theme: stored("undrift-theme") || "automatic" };
  let charts = [];

  // --- small helpers ---------------------------------------------------------------------------------------------------

  function el(tag, attributes, ...children) {
    const node = tag.startsWith("svg:") ? document.createElementNS(NS, tag.slice(4)) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "on") for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
      else if (key === "style") for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.filter((c) => c !== null && c !== undefined));
    return node;
  }
  function stored(key, value) {
    try { if (value === undefined) return localStorage.getItem(key); localStorage.setItem(key, value); } catch { /* not from disk */ }
    return null;
  }
  function amount(v) {
    if (v === null || v === undefined || !isFinite(v)) return "n/a";
    if (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6)) return v.toExponential(2);
    return String(Number(v.toPrecision(3)));
  }
  function round(v) { return String(Math.round(v * 100) / 100); }
  function scaled(v, units) {
    let place = 0;
    while (Math.abs(v) >= 1000 && place < units.length - 1) { v /= 1000; place += 1; }
    return `${amount(v)} ${units[place]}`;
  }
  function duration(v) { return v < 120 ? `${amount(v)} s` : v < 7200 ? `${amount(v / 60)} min` : `${amount(v / 3600)} h`; }
  function percent(v) { return v === null || v === undefined ? "n/a" : `${(100 * v).toFixed(1)} %`; }
  function isShare(figure) { return figure.startsWith("accuracy"); }
  function value(figure, v) { return v === null || v === undefined ? "n/a" : isShare(figure) ? percent(v) : amount(v); }
  function dark() { return document.documentElement.dataset.theme === "dark"; }
  function colour(group) { const p = dark() ? DARK : LIGHT; return p[group % p.length]; }
  function dash(group) { return DASHES[Math.floor(group / LIGHT.length) % DASHES.length]; }
  function ink(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function faded(hex, alpha) { return hex + Math.round(alpha * 255).toString(16).padStart(2, "0"); }
  function hidden(group) { return state.hidden.has(D.groups[group].label); }
  function fill(node, ...children) { node.replaceChildren(...children.filter((c) => c !== null)); return node; }
  function head(titles, first) { return el("thead", {}, el("tr", {}, ...titles.map((t, i) => el("th", { scope: "col", class: i < first ? "text" : null }, t)))); }

  // --- numbers over seeds ----------------------------------------------------------------------------------------------

  // Points of several runs at the same rounds: mean, sample standard deviation and how many there are.
  function pooled(runs, rounds, values) {
    const at = new Map();
    runs.forEach((run) => {
      const r = rounds(run), v = values(run);
      if (!v) return;
      r.forEach((t, i) => {
        if (!at.has(t)) at.set(t, { sum: 0, n: 0, gap: false, all: [] });
        const cell = at.get(t);
        if (v[i] === null || v[i] === undefined) { cell.gap = true; return; }
        cell.sum += v[i]; cell.n += 1; cell.all.push(v[i]);
      });
    });
    const t = [...at.keys()].sort((a, b) => a - b);
    const mean = [], sd = [], n = [];
    for (const key of t) {
      const cell = at.get(key), ok = cell.n > 0 && !cell.gap, m = ok ? cell.sum / cell.n : null;
      mean.push(m); n.push(cell.n);
      sd.push(ok && cell.n > 1 ? Math.sqrt(cell.all.reduce((s, v) => s + (v - m) ** 2, 0) / (cell.n - 1)) : null);
    }
    return { t, mean, sd, n };
  }
  // Exponential moving average without bias at the beginning; gaps stay gaps.
  function smoothed(values, factor) {
    if (!factor) return values;
    let total = 0, weight = 0;
    return values.map((v) => {
      if (v === null) return null;
      total = factor * total + (1 - factor) * v; weight = factor * weight + (1 - factor);
      return total / weight;
    });
  }
  function spent(run, axis) {
    if (axis === "rounds") return run.rounds;
    return axis === "bytes" ? run.up.map((v, i) => v + run.down[i]) : run[axis];
  }

  // --- line charts -----------------------------------------------------------------------------------------------------

  // lines: [{name, group, x, y, low, high, thin}], each with its own x.
  function lineChart(holder, { lines, x, y, label, height, mark }) {
    const shown = lines.filter((line) => line.x.length);
    holder.replaceChildren();
    holder.setAttribute("tabindex", "0");
    holder.setAttribute("role", "group");
    holder.setAttribute("aria-roledescription", "chart");
    holder.setAttribute("aria-label", `${label}. Left and right arrow keys read the values.`);
    if (!shown.length) { holder.append(el("p", { class: "hint" }, "nothing to draw yet")); return; }
    const tables = shown.map((line) => [line.x, line.y, ...(line.low ? [line.low, line.high] : [])]);
    const same = tables.every((t) => t[0].length === tables[0][0].length && t[0].every((v, i) => v === tables[0][0][i]));
    const data = same ? [tables[0][0], ...tables.flatMap((t) => t.slice(1))] : uPlot.join(tables);
    const series = [{}], bands = [];
    for (const line of shown) {
      const c = colour(line.group), few = line.x.length < 12;
      line.index = series.length;
      series.push({ label: line.name, stroke: c, width: line.thin ? 1.25 : 2, dash: line.thin ? [4, 4] : dash(line.group), points: { show: few, size: 6, fill: c }, show: !hidden(line.group) });
      if (line.low) {
        series.push({ stroke: "transparent", points: { show: false }, show: !hidden(line.group) }, { stroke: "transparent", points: { show: false }, show: !hidden(line.group) });
        bands.push({ series: [line.index + 2, line.index + 1], fill: faded(c, Math.max(0.04, (dark() ? 0.22 : 0.16) - 0.02 * shown.length)) });
      }
    }
    const real = new Set(shown.map((line) => line.index));
    const axis = { stroke: ink("--soft"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line"), width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 20, labelGap: 2, gap: 5 };
    const chart = new uPlot({
      width: Math.max(240, holder.clientWidth), height,
      legend: { show: false }, focus: { alpha: 0.35 },
      cursor: {
        focus: { prox: 24 }, hover: { skip: [undefined, null], prox: null },
        points: { show: (u, i) => real.has(i), size: 9, width: 2 },
        dataIdx: undefined,
      },
      scales: { x: { time: false } },
      axes: [
        { ...axis, label: x.title, size: 26, space: 70, ...(x.whole ? { incrs: WHOLE } : {}), values: (u, ticks) => ticks.map((v) => x.tick(v)) },
        { ...axis, label: y.title || null, size: 50, values: (u, ticks) => ticks.map((v) => y.tick(v)) },
      ],
      series, bands,
      hooks: { setCursor: [(u) => readOut(u)], draw: [(u) => { if (mark) level(u, mark()); }] },
    }, data, holder);
    const entry = { chart, holder, lines: shown, x, y, height };
    charts.push(entry);

    function rows(u) {
      return shown.filter((line) => u.series[line.index].show).map((line) => {
        const i = u.cursor.idxs[line.index];
        return i === null || i === undefined || data[line.index][i] === undefined ? null : { line, x: data[0][i], v: data[line.index][i] };
      }).filter((row) => row && row.v !== null).sort((a, b) => b.v - a.v);
    }
    function readOut(u) {
      if (u.cursor.left < 0 || u.cursor.left === undefined) { hideTip(); return; }
      const found = rows(u);
      if (!found.length) { hideTip(); return; }
      const here = u.posToVal(u.cursor.left, "x");
      const same = found.every((row) => row.x === found[0].x);
      const title = same ? x.words(found[0].x) : x.words(here);
      const lines = found.slice(0, 14).map((row) => el("div", {}, el("span", { class: "swatch-dot", style: { "--c": colour(row.line.group) } }), el("span", {}, row.line.name, same ? "" : el("span", { class: "far" }, ` at ${x.words(row.x)}`)), el("span", {}, y.words(row.v))));
      if (found.length > 14) lines.push(el("div", { class: "far" }, `and ${found.length - 14} more`));
      const box = u.over.getBoundingClientRect();
      showTip(box.left + u.cursor.left, box.top + u.cursor.top, el("b", {}, title), ...lines);
      entry.reading = `${title}: ${found.map((row) => `${row.line.name} ${y.words(row.v)}`).join(", ")}`;
    }
    let place = -1;
    holder.onkeydown = (event) => {
      const last = data[0].length - 1, jump = event.shiftKey ? 10 : 1;
      const to = { ArrowRight: place + jump, ArrowLeft: place < 0 ? last : place - jump, Home: 0, End: last }[event.key];
      if (event.key === "Escape") { place = -1; chart.setCursor({ left: -10, top: -10 }); hideTip(); return; }
      if (to === undefined) return;
      event.preventDefault();
      place = Math.min(last, Math.max(0, to));
      const some = shown.find((line) => chart.series[line.index].show);
      const v = some ? data[some.index][place] : null;
      chart.setCursor({ left: chart.valToPos(data[0][place], "x"), top: v === null || v === undefined ? 20 : chart.valToPos(v, "y") });
      $("#say").textContent = entry.reading || "";
    };
    holder.onblur = () => { chart.setCursor({ left: -10, top: -10 }); hideTip(); };
    chart.over.addEventListener("mouseleave", hideTip);
  }
  // A dashed line across the chart, where there is a level to show.
  function level(u, at) {
    if (at === null || at < u.scales.y.min || at > u.scales.y.max) return;
    const y = Math.round(u.valToPos(at, "y", true)) + 0.5, { left, width } = u.bbox;
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
  function showTip(left, top, ...content) {
    const tip = fill($("#tip"), ...content);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, left + 18 + box.width > innerWidth ? left - box.width - 14 : left + 18)}px`;
    tip.style.top = `${Math.max(6, Math.min(top + 14, innerHeight - box.height - 8))}px`;
  }
  function hideTip() { $("#tip").hidden = true; }

  function smallChart(holder, title, text, pick, words) {
    const box = el("div", {}), place = el("div", { class: "chart" });
    box.append(el("h3", {}, title), place, el("p", { class: "hint" }, text));
    holder.append(box);
    const lines = D.groups.map((g, i) => {
      const p = pooled(g.runs.map((r) => D.runs[r]), (run) => run.rounds, pick);
      return { name: g.label, group: i, x: p.t, y: p.mean };
    }).filter((line) => line.y.some((v) => v !== null));
    lineChart(place, { lines, label: `${title}, ${text}`, height: 230, x: axisOf("rounds"), y: { title: "", tick: amount, words: words || amount } });
  }
  function axisOf(name) {
    const axis = AXES[name];
    return { title: axis.title, words: axis.words, tick: name === "rounds" ? round : axis.words, whole: name === "rounds" };
  }

  // --- sections --------------------------------------------------------------------------------------------------------

  function drawHead() {
    document.title = D.title;
    $("#h-curve").textContent = D.verdict && D.verdict.metric === "loss" ? "Loss and cost" : "Accuracy and cost";
    $("#title").textContent = D.title;
    const runs = D.runs.length, unfinished = D.runs.filter((r) => r.status !== "finished").length;
    $("#meta").textContent = `${runs} run${runs === 1 ? "" : "s"}, ${D.groups.length} method${D.groups.length === 1 ? "" : "s"}` + (unfinished ? `, ${unfinished} not finished` : "") + `; ${D.made}`;
    fill($("#warnings"), ...D.warnings.map((w) => el("p", { class: "warning" }, `${w}.`)));
    $("#made").textContent = D.made;
    $("#ledger").textContent = D.ledger;
  }
  function drawVerdict() {
    const v = D.verdict, card = $("#target-card");
    const at = v ? v.targets[state.target ?? v.chosen] : null;
    const headline = at ? at.headline : D.runs.length ? "No run has an evaluated round yet." : "There are no runs yet.";
    if ($("#headline").dataset.text !== headline) {
      $("#headline").dataset.text = headline;
      $("#headline").textContent = headline;
    }
    const evidence = at && at.evidence ? `${at.evidence}.` : "";
    $("#evidence").textContent = evidence.charAt(0).toUpperCase() + evidence.slice(1);
    const others = at ? at.verdicts : [];
    $("#verdicts").hidden = !others.length;
    fill($("#verdicts ul"), ...others.map((s) => el("li", {}, s)));
    card.hidden = !at || at.target === null;
    if (card.hidden) return;
    const slider = $("#target");
    slider.max = v.targets.length - 1;
    slider.value = state.target ?? v.chosen;
    slider.setAttribute("aria-valuetext", at.words);
    $("#target-words").textContent = at.words;
    const body = v.rows.map((row, i) => {
      const name = el("th", { scope: "row" }, el("span", { class: "swatch-dot", style: { "--c": colour(i) } }), D.groups[i].label, v.baseline[i] ? el("small", {}, "baseline") : null);
      return el("tr", { class: hidden(i) ? "off" : null }, name, ...at.costs[i].map(cost), ...row.map((text) => el("td", {}, text)));
    });
    fill($("#costs"), el("caption", { class: "hidden" }, `Cost to ${at.words}`), head(["method", ...v.columns], 1), el("tbody", {}, ...body));
    const how = state.target === null || state.target === v.chosen ? (v.from === "given" ? "" : ` (${v.from})`) : "";
    $("#target-hint").textContent = `Target ${at.words}${how}: the first evaluated round at which the mean over seeds, unsmoothed, is at least the target. × is the baseline's cost over the method's: above 1 is cheaper.`;
  }
  function cost(text) {
    const found = /^(.*) \((([\d.]+|∞)×)\)$/.exec(text);
    if (!found) return el("td", { class: /not reached|–/.test(text) ? "muted" : null }, text);
    const ratio = parseFloat(found[3]);
    return el("td", {}, `${found[1]} `, el("span", { class: `ratio ${ratio > 1.02 ? "better" : ratio < 0.98 ? "worse" : ""}` }, found[2]));
  }
  function drawLegend() {
    const buttons = D.groups.map((g, i) => el("button", {
      type: "button", "aria-pressed": String(!hidden(i)), title: "Hide or show in all charts",
      on: { click: () => { state.hidden.has(g.label) ? state.hidden.delete(g.label) : state.hidden.add(g.label); toggled(); } },
    }, el("span", { class: "swatch", style: { "--c": colour(i), "border-top-style": ["solid", "dashed", "dotted"][DASHES.indexOf(dash(i))] } }), g.label));
    if (D.groups.length > 2) {
      buttons.push(el("button", { type: "button", class: "plain", on: { click: () => {
        if (state.hidden.size) state.hidden.clear(); else D.groups.forEach((g) => state.hidden.add(g.label));
        toggled();
      } } }, state.hidden.size ? "Show all" : "Hide all"));
    }
    $("#legendbar").classList.toggle("many", D.groups.length > 12);
    const bar = $("#legendbar"), at = [...bar.children].indexOf(document.activeElement);
    fill(bar, ...buttons);
    if (at >= 0 && bar.children[at]) bar.children[at].focus();
  }
  function toggled() {
    drawLegend(); drawVerdict(); drawFair();
    for (const { chart, lines } of charts) {
      chart.batch(() => lines.forEach((line) => {
        const show = !hidden(line.group);
        for (let i = line.index; i <= line.index + (line.low ? 2 : 0); i++) if (chart.series[i].show !== show) chart.setSeries(i, { show });
      }));
    }
  }
  function curveLines() {
    const axis = state.axis, lines = [];
    D.groups.forEach((g, i) => {
      const add = (runs, name, thin) => {
        const p = pooled(runs, (r) => r.at, (r) => r.figures[state.figure]);
        const cost = axis === "rounds" ? null : pooled(runs, (r) => r.rounds, (r) => spent(r, axis));
        const where = cost && new Map(cost.t.map((t, k) => [t, cost.mean[k]]));
        const x = p.t.map((t) => (where ? where.get(t) : t));
        const y = smoothed(p.mean, state.smooth), sd = smoothed(p.sd, state.smooth);
        const band = state.band && !thin && sd.some((v) => v !== null);
        lines.push({ name, group: i, x, y, thin, low: band ? y.map((v, k) => (v === null || sd[k] === null ? v : v - sd[k])) : null, high: band ? y.map((v, k) => (v === null || sd[k] === null ? v : v + sd[k])) : null });
      };
      add(g.runs.map((r) => D.runs[r]), g.label, false);
      g.partial.forEach((r) => add([D.runs[r]], `${g.label}, seed ${D.runs[r].seed} (${D.runs[r].status})`, true));
    });
    return lines.filter((line) => line.y.some((v) => v !== null));
  }
  function drawCurve() {
    charts = charts.filter((c) => (c.holder === $("#curve") ? (c.chart.destroy(), false) : true));
    const share = isShare(state.figure || ""), factor = share ? 100 : 1;
    $("#smoothed").textContent = state.smooth ? `factor ${state.smooth.toFixed(2)}` : "none";
    const title = (state.figure || "").replace("accuracy of", "accuracy (%) of") + (state.smooth ? `, smoothed (moving average, factor ${state.smooth.toFixed(2)})` : "");
    lineChart($("#curve"), {
      lines: curveLines(), label: `${state.figure} against ${AXES[state.axis].name}`, height: innerWidth < 640 ? 300 : 400, x: axisOf(state.axis),
      y: { title, tick: (v) => amount(v * factor), words: (v) => value(state.figure, v) },
      mark: () => (state.figure === D.series[0] && D.verdict ? D.verdict.targets[state.target ?? D.verdict.chosen].target : null),
    });
    const table = $("#curve-table");
    if (table.open) valuesTable(table);
  }
  function lazily(details, build) {
    details.addEventListener("toggle", () => { if (details.open) build(details); });
  }
  function put(details, caption, thead, rows) {
    const region = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption, style: { "max-height": "420px", "overflow-y": "auto" } }, el("table", {}, el("caption", { class: "hidden" }, caption), thead, el("tbody", {}, ...rows)));
    fill(details, details.firstElementChild, region);
  }
  function valuesTable(details) {
    const columns = D.groups.map((g) => pooled(g.runs.map((r) => D.runs[r]), (r) => r.at, (r) => r.figures[state.figure]));
    const rounds = [...new Set(columns.flatMap((c) => c.t))].sort((a, b) => a - b);
    const maps = columns.map((c) => new Map(c.t.map((t, i) => [t, i])));
    const text = (c, i) => (i === undefined ? "" : value(state.figure, c.mean[i]) + (c.sd[i] === null ? "" : ` ± ${isShare(state.figure) ? (100 * c.sd[i]).toFixed(1) : amount(c.sd[i])}`));
    put(details, `${state.figure}, mean ± standard deviation`, head(["round", ...D.groups.map((g) => g.label)], 0),
      rounds.map((t) => el("tr", {}, el("th", { scope: "row" }, String(t)), ...columns.map((c, i) => el("td", {}, text(c, maps[i].get(t)))))));
  }

  function drawWho() {
    const marks = Object.keys(D.partitions);
    $("#who-card").hidden = !marks.length;
    if (!marks.length) return;
    if (!marks.includes(state.partition)) state.partition = marks[0];
    fill($("#partition"), ...marks.map((m) => el("option", { value: m, selected: m === state.partition }, D.partitions[m].title)));
    const p = D.partitions[state.partition], classes = p.counts[0].length, clients = p.counts.length;
    const top = Math.max(...p.counts.flat()), sizes = p.counts.map((row) => row.reduce((a, b) => a + b, 0)), largest = Math.max(...sizes);
    const left = 58, bottom = 44, width = Math.max($("#who").clientWidth, left + 6 + 13 * clients), step = (width - left - 6) / clients;
    const rowHeight = Math.max(9, Math.min(28, 420 / classes)), height = state.style === "bubbles" ? classes * rowHeight + bottom + 10 : 320;
    const svg = el("svg:svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Samples of each class held by each client: ${p.title}. The table below has the numbers.` });
    const text = (x, y, words, more) => el("svg:text", { x, y, fill: ink("--soft"), "font-size": 13, ...more }, String(words));
    const plot = height - bottom;
    const every = Math.max(1, Math.ceil(30 / step));
    p.shown.forEach((client, i) => { if (i % every === 0) svg.append(text(left + (i + 0.5) * step, plot + 18, client, { "text-anchor": "middle" })); });
    svg.append(text(left + (width - left) / 2, height - 6, p.clients > clients ? `client (${clients} of ${p.clients})` : "client", { "text-anchor": "middle" }));
    if (state.style === "bubbles") {
      const ratio = Math.min(step, rowHeight) * 0.62;
      const each = Math.max(1, Math.ceil(classes / 25));
      for (let k = 0; k < classes; k++) {
        const y = plot - (k + 0.5) * rowHeight;
        svg.append(el("svg:line", { x1: left, x2: width, y1: y, y2: y, stroke: ink("--line"), "stroke-width": 1 }));
        if (k % each === 0) svg.append(text(left - 10, y + 4, k, { "text-anchor": "end" }));
      }
      p.counts.forEach((row, i) => row.forEach((n, k) => {
        if (n) svg.append(el("svg:circle", { cx: left + (i + 0.5) * step, cy: plot - (k + 0.5) * rowHeight, r: Math.max(0.8, ratio * Math.sqrt(n / top)), fill: colour(0), "fill-opacity": 0.85, "data-tip": `client ${p.shown[i]}, class ${k}: ${n} samples` }));
      }));
      svg.append(text(14, plot / 2, "class", { transform: `rotate(-90 14 ${plot / 2})`, "text-anchor": "middle" }));
    } else {
      for (let q = 0; q <= 4; q++) {
        const y = plot - (q / 4) * (plot - 10);
        svg.append(el("svg:line", { x1: left, x2: width, y1: y, y2: y, stroke: ink("--line") }), text(left - 10, y + 4, amount((q / 4) * largest), { "text-anchor": "end" }));
      }
      p.counts.forEach((row, i) => {
        let y = plot;
        row.forEach((n, k) => {
          if (!n) return;
          const tall = (n / largest) * (plot - 10);
          y -= tall;
          svg.append(el("svg:rect", { x: left + i * step + step * 0.06, y, width: step * 0.88, height: tall, fill: `hsl(${(k * 360) / classes} ${dark() ? "62% 62%" : "58% 52%"})`, "data-tip": `client ${p.shown[i]}, class ${k}: ${n} of ${sizes[i]} samples` }));
        });
      });
      svg.append(text(14, plot / 2, "samples", { transform: `rotate(-90 14 ${plot / 2})`, "text-anchor": "middle" }));
    }
    svg.addEventListener("mousemove", (event) => {
      const words = event.target.getAttribute("data-tip");
      if (words) showTip(event.clientX, event.clientY, words); else hideTip();
    });
    svg.addEventListener("mouseleave", hideTip);
    fill($("#who"), svg);
    fill($("#who-figures"), ...p.figures.map(([name, words]) => el("div", {}, el("dt", {}, name), el("dd", {}, words))));
    if ($("#who-table").open) whoTable($("#who-table"));
  }
  function whoTable(details) {
    const p = D.partitions[state.partition];
    put(details, `Samples per client and class: ${p.title}`, head(["client", ...p.counts[0].map((_, k) => `class ${k}`), "all"], 0),
      p.counts.map((row, i) => el("tr", {}, el("th", { scope: "row" }, String(p.shown[i])), ...row.map((n) => el("td", { class: n ? null : "muted" }, String(n))), el("td", {}, String(row.reduce((a, b) => a + b, 0))))));
  }

  function drawFair() {
    $("#fair-card").hidden = !D.fairness.length;
    fill($("#fair"), ...D.fairness.map((f) => {
      const W = 600, X = (v) => 8 + v * (W - 16), c = colour(f.group), [, q1, q2, q3] = f.quantiles;
      const svg = el("svg:svg", { viewBox: `0 0 ${W} 40`, preserveAspectRatio: "none", role: "img", "aria-label": `${f.label}: median ${percent(q2)}, middle half ${percent(q1)} to ${percent(q3)}, worst tenth ${percent(f.worst)}` });
      for (let q = 0; q <= 4; q++) svg.append(el("svg:line", { x1: X(q / 4), x2: X(q / 4), y1: 2, y2: 38, stroke: ink("--line"), "vector-effect": "non-scaling-stroke" }));
      svg.append(el("svg:rect", { x: X(q1), y: 9, width: Math.max(1, X(q3) - X(q1)), height: 22, fill: c, "fill-opacity": 0.22, rx: 3 }));
      f.values.forEach((v, i) => svg.append(el("svg:line", { x1: X(v), x2: X(v), y1: 13 + ((i * 7) % 5) * 2.2, y2: 18 + ((i * 7) % 5) * 2.2, stroke: c, "stroke-width": 2, "stroke-opacity": 0.55, "vector-effect": "non-scaling-stroke" })));
      svg.append(el("svg:line", { x1: X(q2), x2: X(q2), y1: 6, y2: 34, stroke: c, "stroke-width": 3, "vector-effect": "non-scaling-stroke" }));
      return el("div", { class: `fair-row${hidden(f.group) ? " off" : ""}` }, el("span", { class: "name" }, f.label), svg, el("span", { class: "numbers" }, `mean ${percent(f.mean)}`, el("br"), `worst tenth ${percent(f.worst)}`));
    }), el("div", { class: "fair-row axis-row" }, el("span", {}), scaleRow(), el("span", {})));
    if ($("#fair-table").open) fairTable($("#fair-table"));
  }
  function scaleRow() {
    const row = el("div", { style: { display: "flex", "justify-content": "space-between", "font-size": "12px", color: "var(--soft)" }, "aria-hidden": "true" });
    ["0 %", "25 %", "50 %", "75 %", "100 %"].forEach((t) => row.append(el("span", {}, t)));
    return row;
  }
  function fairTable(details) {
    put(details, "Accuracy of clients on their own test parts", head(["method", "round", "clients", "mean", "s.d.", "worst tenth", "least", "median", "most"], 1),
      D.fairness.map((f) => el("tr", {}, el("th", { scope: "row" }, f.label), ...[f.round, f.clients, percent(f.mean), percent(f.sd), percent(f.worst), percent(f.quantiles[0]), percent(f.quantiles[2]), percent(f.quantiles[4])].map((t) => el("td", {}, String(t))))));
  }

  function drawSmall() {
    const drift = $("#drift"), notes = $("#notes");
    charts = charts.filter((c) => (drift.contains(c.holder) || notes.contains(c.holder) ? (c.chart.destroy(), false) : true));
    fill(drift); fill(notes);
    const keys = (field) => [...new Set(D.runs.flatMap((r) => Object.keys(r[field]).filter((k) => r[field][k].some((v) => v !== null))))];
    const kinds = keys("drift").sort((a, b) => Object.keys(DRIFT).indexOf(a) - Object.keys(DRIFT).indexOf(b));
    $("#drift-card").hidden = !kinds.length;
    kinds.forEach((key) => smallChart(drift, DRIFT[key] ? DRIFT[key][0] : key, DRIFT[key] ? DRIFT[key][1] : "", (run) => run.drift[key]));
    const own = keys("notes");
    $("#notes-card").hidden = !own.length;
    own.forEach((key) => {
      const who = [...new Set(D.runs.filter((r) => r.notes[key]).map((r) => r.label))].join(", ");
      smallChart(notes, key, who, (run) => run.notes[key]);
    });
  }

  function drawRuns() {
    const final = (run) => { const v = run.figures[run.main]; return v && v.length ? value(run.main, v[v.length - 1]) : "n/a"; };
    fill($("#runs"), el("caption", { class: "hidden" }, "Runs"), head(["run", "method", "seed", "status", "rounds", "last", "rejected uploads", "began"], 2), el("tbody", {}, ...D.runs.map((run) => el("tr", {},
      el("th", { scope: "row" }, run.name), el("td", { class: "text" }, run.label), el("td", {}, String(run.seed)),
      el("td", {}, el("span", { class: `badge ${run.status}`, title: run.message || null }, run.status)),
      el("td", {}, `${run.rounds.length} of ${run.planned}`), el("td", {}, final(run)), el("td", {}, run.rejected + (run.skipped ? `; ${run.skipped} rounds skipped` : "")), el("td", {}, run.created)))));
    fill($("#commands"), ...D.runs.map((run) => el("div", {}, el("h3", {}, run.name),
      el("div", { class: "command" }, el("code", {}, run.command || "Started from Python with its own model or data: its settings are below."), run.command ? copier(run.command) : null),
      run.typed && run.typed !== run.command ? el("p", { class: "hint" }, `It was started by: ${run.typed}`) : null)));
    fill($("#troubles"), ...D.runs.filter((run) => run.message).map((run) => el("p", { class: "warning" }, `${run.name}: ${run.message}`)));
    const rejected = D.runs.flatMap((run) => run.rejections.map(([t, client, why]) => el("li", {}, `${run.name}, round ${t}, client ${client}: ${why}`)));
    $("#rejections").hidden = !rejected.length;
    fill($("#rejections ul"), ...rejected);
  }
  function copier(text) {
    return el("button", { type: "button", on: { click: async (event) => {
      const button = event.target;
      try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Select it"; }
    } } }, "Copy");
  }
  function drawSettings() {
    const s = D.settings;
    fill($("#differ"), el("caption", { class: "hidden" }, "Settings that differ between runs"), head(["run", ...s.names], 1), el("tbody", {}, ...D.runs.map((run, i) => el("tr", {}, el("th", { scope: "row" }, run.name), ...s.rows[i].map((t) => el("td", {}, t))))));
    fill($("#shared"), el("caption", { class: "hidden" }, "Settings that all runs share"), head(["setting", "value"], 2), el("tbody", {}, ...s.shared.map(([name, v]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "text" }, v)))));
  }

  // --- download --------------------------------------------------------------------------------------------------------

  function csv() {
    const figures = D.series, drift = [...new Set(D.runs.flatMap((r) => Object.keys(r.drift)))], notes = [...new Set(D.runs.flatMap((r) => Object.keys(r.notes)))];
    const quote = (v) => {
      if (v === null || v === undefined) return "";
      if (typeof v === "number") return String(v);
      const text = /^[=+\-@\t\r]/.test(v) ? `'${v}` : v; // a name must not become a formula of a spreadsheet
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const rows = [["run", "method", "seed", "round", "bytes_up", "bytes_down", "macs", "seconds", "participants", ...figures, ...drift, ...notes]];
    for (const run of D.runs) {
      const at = new Map(run.at.map((t, i) => [t, i]));
      run.rounds.forEach((t, i) => rows.push([run.name, run.label, run.seed, t, run.up[i], run.down[i], run.macs[i], run.seconds[i], run.participants[i],
        ...figures.map((f) => (run.figures[f] && at.has(t) ? run.figures[f][at.get(t)] : null)), ...drift.map((k) => run.drift[k]?.[i]), ...notes.map((k) => run.notes[k]?.[i])]));
    }
    const url = URL.createObjectURL(new Blob([rows.map((row) => row.map(quote).join(",")).join("\n") + "\n"], { type: "text/csv" }));
    el("a", { href: url, download: "undrift.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  // --- everything ------------------------------------------------------------------------------------------------------

  function draw() {
    hideTip();
    if (!D.series.includes(state.figure)) state.figure = D.series[0] || null;
    fill($("#figure"), ...D.series.map((s) => el("option", { value: s, selected: s === state.figure }, s)));
    if (state.target !== null && D.verdict) state.target = Math.min(state.target, D.verdict.targets.length - 1);
    drawHead(); drawLegend(); drawVerdict(); drawWho(); drawFair(); drawCurve(); drawSmall(); drawRuns(); drawSettings();
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
  }
  function applyTheme() {
    const night = state.theme === "dark" || (state.theme === "automatic" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = night ? "dark" : "light";
    $("#theme").textContent = `Theme: ${state.theme}`;
  }
  function choices(fieldset, name, options, chosen, change) {
    for (const [key, words] of options) {
      fieldset.append(el("label", {}, el("input", { type: "radio", name, value: key, checked: key === chosen, on: { change: () => change(key) } }), words));
    }
  }
  function begin() {
    choices($("#axis"), "axis", Object.entries(AXES).map(([k, a]) => [k, a.name]), state.axis, (k) => { state.axis = k; drawCurve(); });
    choices($("#style"), "style", [["bubbles", "bubbles"], ["bars", "stacked bars"]], state.style, (k) => { state.style = k; drawWho(); });
    $("#figure").onchange = (e) => { state.figure = e.target.value; drawCurve(); };
    $("#smooth").oninput = (e) => { state.smooth = Number(e.target.value); drawCurve(); };
    $("#band").onchange = (e) => { state.band = e.target.checked; drawCurve(); };
    $("#target").oninput = (e) => { state.target = Number(e.target.value); drawVerdict(); charts.filter((c) => c.holder === $("#curve")).forEach((c) => c.chart.redraw(false)); };
    $("#partition").onchange = (e) => { state.partition = e.target.value; drawWho(); };
    $("#csv").onclick = csv;
    $("#theme").onclick = () => {
      state.theme = { automatic: "light", light: "dark", dark: "automatic" }[state.theme] || "automatic";
      stored("undrift-theme", state.theme); applyTheme(); draw();
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { applyTheme(); draw(); });
    lazily($("#curve-table"), valuesTable); lazily($("#who-table"), whoTable); lazily($("#fair-table"), fairTable);
    let width = 0;
    new ResizeObserver(() => {
      if (innerWidth === width) return;
      width = innerWidth;
      charts.forEach(({ chart, holder, height }) => chart.setSize({ width: Math.max(240, holder.clientWidth), height }));
      drawWho();
    }).observe(document.body);
    addEventListener("scroll", hideTip, { passive: true });
    applyTheme(); draw();
    if (document.body.dataset.live !== undefined) follow();
  }

  // --- following a ledger ----------------------------------------------------------------------------------------------

  async function follow() {
    const live = $("#live");
    live.hidden = false;
    live.textContent = "live";
    let version = document.body.dataset.live;
    for (;;) {
      await new Promise((done) => setTimeout(done, document.hidden ? 5000 : 800));
      try {
        const query = new URLSearchParams(location.search);
        query.set("version", version);
        const answer = await fetch(`data.json?${query}`, { cache: "no-store" });
        if (!answer.ok && answer.status !== 204) throw new Error(String(answer.status));
        live.classList.remove("lost");
        live.textContent = "live";
        if (answer.status === 204) continue;
        version = answer.headers.get("X-Version");
        D = await answer.json();
        draw();
      } catch {
        live.classList.add("lost");
        live.textContent = "no answer from undrift watch; trying again";
      }
    }
  }

  begin();
})();
