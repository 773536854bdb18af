// Series over rounds: pooled over seeds, smoothed, added up. Draws nothing.

// Points of several runs at the same rounds: mean, sample standard deviation and how many there are.
export function pooled(runs, at, values) {
  const cells = new Map();
  for (const run of runs) {
    const known = values(run);
    if (!known) continue;
    at(run).forEach((t, i) => {
      if (!cells.has(t)) cells.set(t, { all: [], gap: false });
      const cell = cells.get(t);
      if (known[i] === null || known[i] === undefined) cell.gap = true;
      else cell.all.push(known[i]);
    });
  }
  const t = [...cells.keys()].sort((a, b) => a - b);
  const spreads = t.map((key) => spreadOf(cells.get(key)));
  return { t, mean: spreads.map((s) => s.mean), sd: spreads.map((s) => s.sd) };
}

function spreadOf({ all, gap }) {
  if (gap || !all.length) return { mean: null, sd: null };
  const mean = all.reduce((a, b) => a + b, 0) / all.length;
  const squares = all.reduce((sum, v) => sum + (v - mean) ** 2, 0);
  return { mean, sd: all.length > 1 ? Math.sqrt(squares / (all.length - 1)) : null };
}

// Exponential moving average without bias at the beginning; gaps stay gaps.
export function smoothed(values, factor) {
  if (!factor) return values;
  let total = 0;
  let weight = 0;
  return values.map((v) => {
    if (v === null) return null;
    total = factor * total + (1 - factor) * v;
    weight = factor * weight + (1 - factor);
    return total / weight;
  });
}

// What a run has spent after each of its rounds.
export function spent(run, axis) {
  if (axis === "rounds") return run.rounds;
  const costs = axis === "bytes" ? run.costs.bytes_up.map((v, i) => v + run.costs.bytes_down[i]) : run.costs[axis];
  let total = 0;
  return costs.map((v) => {
    total += v;
    return total;
  });
}
