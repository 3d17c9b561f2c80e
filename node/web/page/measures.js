// Measures of a model's answers: tables of figures with their 95 % intervals, of all samples, by class and by group.

import { html } from "./lib.js";
import { Matrix, Table } from "./parts.js";
import { MEASURES, showNumber } from "./words.js";

const MAX_CONFUSED = 40;
const OF_GROUPS = ["auc", "balanced_accuracy", "accuracy", "exact_match", "micro_f1", "brier", "r2", "mae", "rmse"];
const OF_CLASSES = ["sensitivity", "specificity", "precision", "f1", "auc"];

export function showInterval(interval) {
  return interval ? `${interval.low.toFixed(3)} to ${interval.high.toFixed(3)}` : "–";
}

// The columns of a figure and, where any row has one, of its interval. `get` gives what has `values` and `intervals`.
export function makeColumns(name, rows, get) {
  const hasInterval = rows.some((row) => get(row)?.intervals[name]);
  return [
    [MEASURES[name] ?? name, (row) => showNumber(get(row)?.values[name], 3), "number"],
    ...(hasInterval ? [["95 %", (row) => html`<span class="soft">${showInterval(get(row)?.intervals[name])}</span>`, "place"]] : []),
  ];
}

// `alone` are the measures of the model trained without the others, and `mixed` those of both models' answers mixed, if
// there are any.
export function MeasureTable({ measures, alone, mixed }) {
  const beside = Object.entries({ alone, mixed }).filter(([, told]) => told);
  return html`<${Table} label="measures" rows=${Object.entries(measures.summary)} columns=${[
    ["measure", ([name]) => MEASURES[name] ?? name],
    ["value", ([, value]) => showNumber(value), "number"],
    ["95 % interval", ([name]) => showInterval(measures.intervals[name]), "place"],
    ...beside.flatMap(([whose, told]) => [
      [whose, ([name]) => showNumber(told.summary[name]), "number"],
      ["95 % interval", ([name]) => showInterval(told.intervals[name]), "place"],
    ]),
  ]} />`;
}

// The classes that are here or were given.
export function listHeld(classes) {
  return classes.filter((one) => one.num_samples > 0 || one.num_given > 0);
}

function chooseFigures(classes) {
  const names = OF_CLASSES.filter((name) => classes.some((one) => name in one.values));
  return names.length ? names : Object.keys(classes[0].values);
}

export function ClassTable({ classes }) {
  const held = listHeld(classes);
  if (!held.length) return null;
  return html`<${Table} label="classes" rows=${held} getKey=${(one) => one.class} columns=${[
    ["class", (one) => one.class, "wide"],
    ["samples", (one) => one.num_samples, "number"],
    ["given", (one) => one.num_given, "number"],
    ...chooseFigures(held).flatMap((name) => makeColumns(name, held, (one) => one)),
  ]} />`;
}

export function isConfused(classes) {
  return classes.length > 0 && classes.length <= MAX_CONFUSED && classes.every((one) => one.given.length === classes.length);
}

export function ConfusionTable({ classes }) {
  const held = listHeld(classes);
  const at = held.map((one) => classes.indexOf(one));
  return html`<${Matrix} label="confusion matrix" corner="true \\ given" diagonal rows=${held.map((one) => one.class)} columns=${held.map((one) => one.class)}
    values=${held.map((one) => at.map((i) => one.given[i]))} />`;
}

// The rows of a file by the values of a column: those of each, and each class among them.
export function GroupTables({ column, groups }) {
  const read = (group) => group.measures && { values: group.measures.summary, intervals: group.measures.intervals };
  const names = OF_GROUPS.filter((name) => groups.some((group) => group.measures && name in group.measures.summary));
  const rows = groups.flatMap((group) => (group.measures?.classes ?? []).filter((one) => one.num_samples > 0).map((one) => ({ group, one })));
  const classes = [...new Set(rows.map((row) => row.one.class))];
  rows.sort((row, other) => classes.indexOf(row.one.class) - classes.indexOf(other.one.class));
  return html`
    <${Table} label="groups" rows=${groups} columns=${[
      [column, (group) => group.value, "wide"],
      ["samples", (group) => group.num_samples, "number"],
      ...names.flatMap((name) => makeColumns(name, groups, read)),
    ]} />
    ${classes.length > 1 && html`<${Table} label="classes by group" rows=${rows} columns=${[
      ["class", ({ one }) => one.class, "wide"],
      [column, ({ group }) => group.value, "wide"],
      ["samples", ({ one }) => one.num_samples, "number"],
      ...chooseFigures(rows.map(({ one }) => one)).flatMap((name) => makeColumns(name, rows, ({ one }) => one)),
    ]} />`}`;
}
