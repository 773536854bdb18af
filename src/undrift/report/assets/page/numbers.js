// Numbers as people read them: the same texts as report/words.py makes. Knows nothing of runs.

const NO_NUMBER = "n/a";
const BYTES = ["B", "kB", "MB", "GB", "TB", "PB"];
const OPERATIONS = ["MAC", "kMAC", "MMAC", "GMAC", "TMAC", "PMAC", "EMAC"];

function missing(v) {
  return v === null || v === undefined || !Number.isFinite(v);
}

// Fixed digits; a tie goes to the even digit, as in Python.
function fixed(v, digits) {
  const text = v.toFixed(digits);
  const long = v.toFixed(digits + 20);
  if (!long.endsWith(`5${"0".repeat(19)}`)) return text;
  const cut = long.slice(0, -20).replace(/\.$/, "");
  return Number(cut.at(-1)) % 2 === 0 ? cut : text;
}

// Three significant figures, without an exponent where a person would not write one.
export function amount(v) {
  if (missing(v)) return NO_NUMBER;
  if (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6)) {
    return v.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2");
  }
  const digits = v === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.abs(v))));
  const text = fixed(v, digits);
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

export function percent(v, digits = 1) {
  return missing(v) ? NO_NUMBER : `${fixed(100 * v, digits)} %`;
}

function scaled(v, units) {
  if (missing(v)) return NO_NUMBER;
  let place = 0;
  while (Math.abs(v) >= 1000 && place < units.length - 1) {
    v /= 1000;
    place += 1;
  }
  return `${amount(v)} ${units[place]}`;
}

export function dataSize(v) {
  return scaled(v, BYTES);
}

export function operations(v) {
  return scaled(v, OPERATIONS);
}

export function duration(v) {
  if (missing(v)) return NO_NUMBER;
  if (v < 120) return `${amount(v)} s`;
  return v < 7200 ? `${amount(v / 60)} min` : `${amount(v / 3600)} h`;
}

export function times(v) {
  if (v === null) return "∞×";
  return v < 10 ? `${fixed(v, 2)}×` : `${amount(v)}×`;
}

export function rounds(v) {
  return fixed(v, 1).replace(/\.0$/, "");
}

export function count(v, what) {
  return `${rounds(v)} ${what}${v === 1 ? "" : "s"}`;
}

// A target without needless zeros: 90 %, 92.5 %; of what is no share as it is.
export function goal(v, figure = { share: true }) {
  return figure.share ? `${Number((100 * v).toFixed(4))} %` : String(v);
}

// A value of a figure: a share in percent, anything else as it is.
export function figureText(figure, v) {
  return figure.share ? percent(v) : amount(v);
}

// A mean over seeds with its standard deviation.
export function spread(figure, { mean, sd, gaps }, seeds) {
  if (gaps) return `${NO_NUMBER} (${gaps} of ${count(seeds, "seed")} gave no number)`;
  const text = figureText(figure, mean);
  return sd === null ? text : `${text.replace(/ %$/, "")} ± ${figureText(figure, sd)}`;
}

// A cost in the unit of its column.
export function costText(column, v) {
  if (column.startsWith("bytes")) return dataSize(v);
  if (column === "macs") return operations(v);
  return column === "seconds" ? duration(v) : rounds(v);
}
