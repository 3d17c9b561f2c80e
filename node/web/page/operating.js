// Operating points: what a class is found and excluded with when it is called from a probability on. The arithmetic of
// ml/measures/operating.py, here so that a slider needs no node.

const Z = 1.959963984540054; // of the normal distribution, two-sided 95 %

// Of each sample: whether it is of the class, and how probable that is said to be. `prevalence` is null for that of the
// samples. The result has the names of `fednode evaluate --json`.
export function findPoint(isOf, scores, threshold, prevalence = null) {
  const counts = { of: 0, others: 0, found: 0, rejected: 0 };
  scores.forEach((score, i) => {
    counts[isOf[i] ? "of" : "others"] += 1;
    if (isOf[i] && score >= threshold) counts.found += 1;
    if (!isOf[i] && score < threshold) counts.rejected += 1;
  });
  const own = prevalence ?? counts.of / scores.length;
  const used = own > 0 && own < 1 ? own : null;
  return {
    threshold,
    prevalence: used,
    num_samples: counts.of,
    num_called: counts.found + counts.others - counts.rejected,
    ...describe(counts, used),
  };
}

function describe({ of, others, found, rejected }, prevalence) {
  const values = {};
  const intervals = {};
  if (of) [values.sensitivity, intervals.sensitivity] = [found / of, computeWilson(found, of)];
  if (others) [values.specificity, intervals.specificity] = [rejected / others, computeWilson(rejected, others)];
  if (prevalence === null || !of || !others) return { values, intervals };
  const odds = prevalence / (1 - prevalence);
  const told = { ppv: [[found, of], [rejected, others], odds], npv: [[rejected, others], [found, of], 1 / odds] };
  for (const [name, [right, other, weight]] of Object.entries(told)) {
    const isRight = (right[0] / right[1]) * weight;
    const isWrong = 1 - other[0] / other[1];
    if (isRight + isWrong <= 0) continue;
    values[name] = isRight / (isRight + isWrong);
    intervals[name] = bound(right, other, weight);
  }
  return { values, intervals };
}

function bound(right, other, weight) {
  const ratio = boundRatio(right, [other[1] - other[0], other[1]]);
  const [low, high] = [ratio.low * weight, ratio.high * weight];
  return { low: low / (1 + low), high: Number.isFinite(high) ? high / (1 + high) : 1 };
}

// Wilson 1927.
function computeWilson(count, of) {
  const fraction = count / of;
  const z2 = Z * Z;
  const centre = (fraction + z2 / (2 * of)) / (1 + z2 / of);
  const half = (Z / (1 + z2 / of)) * Math.sqrt((fraction * (1 - fraction)) / of + z2 / (4 * of * of));
  return { low: count === 0 ? 0 : Math.max(0, centre - half), high: count === of ? 1 : Math.min(1, centre + half) };
}

// Of the ratio of two fractions, by the intervals of both (Donner and Zou 2012, MOVER-R).
function boundRatio(first, second) {
  const [a, b] = [first[0] / first[1], second[0] / second[1]];
  const [ofA, ofB] = [computeWilson(...first), computeWilson(...second)];
  const root = (c, d) => Math.sqrt(Math.max(0, (a * b) ** 2 - c * d));
  const [c, d] = [ofA.low * (2 * a - ofA.low), ofB.high * (2 * b - ofB.high)];
  const [e, f] = [ofA.high * (2 * a - ofA.high), ofB.low * (2 * b - ofB.low)];
  return { low: c > 0 ? c / (a * b + root(c, d)) : 0, high: f > 0 ? (a * b + root(e, f)) / f : Infinity };
}
