// What a model is worth at every site: a row for each model, a column for each site, and below the sites class by class.

import { html, useState } from "../lib.js";
import { useRecord } from "../live.js";
import { Awaited, Table } from "../parts.js";
import { list, plural, showCount } from "../words.js";

// What models are compared by: the first figure that any site has told.
const MAIN = [["auc", "AUC"], ["r2", "R2"], ["balanced_accuracy", "balanced accuracy"], ["exact_match", "exact match"], ["accuracy", "accuracy"], ["loss", "loss"]];
const OF_CLASS = [["sensitivity", "sensitivity"], ["specificity", "specificity"], ["auc", "AUC"], ["r2", "R2"], ["mae", "MAE"], ["rmse", "RMSE"]];

// Of all runs that were made for it; nothing where there is none.
export function Evaluations({ runs }) {
  const has = runs.some((run) => run.method === "evaluation");
  const found = useRecord(has ? "/evaluations" : null, [runs.length, runs.at(-1).made]);
  if (!has) return null;
  return html`<section aria-label="evaluations">
    <h3>What the model is worth at every site</h3>
    <p class="small soft">Each site measured it on its own test samples and signed the figures: its word, which stands on the chain. In brackets the interval with 95 % confidence.</p>
    <${Awaited} found=${found}>${(told) => html`<${Matrix} evaluations=${told.evaluations} />`}<//>
  </section>`;
}

function Matrix({ evaluations }) {
  const [chosen, setChosen] = useState(null);
  const made = evaluations.filter((one) => one.height !== null);
  const names = [...new Set(made.flatMap((one) => one.sites.map((site) => site.name)))];
  const told = new Set(made.flatMap((one) => one.sites.flatMap((site) => Object.keys(site.measures?.summary ?? {}))));
  const [figure, title] = MAIN.find(([name]) => told.has(name)) ?? MAIN[0];
  const find = (one, name) => one.sites.find((site) => site.name === name)?.measures ?? null;
  const one = made.find((each) => getKey(each) === chosen) ?? made.at(-1);
  if (!one) return html`<p class="small">Not measured yet.</p>`;
  const few = one.sites.filter((site) => site.held && site.measures === null).map((site) => site.name);
  const classes = one.sites.flatMap((site) => (site.measures?.classes ?? []).filter((each) => Object.keys(each.values).length).map((each) => ({ site: site.name, ...each })));
  const columns = OF_CLASS.filter(([name]) => classes.some((each) => name in each.values));
  return html`
    <${Table} label="evaluations by site" rows=${made} getKey=${getKey} columns=${[
      [`${title} of`, (each) => html`<a href=${`#/chain/${each.height}`}>${describe(each)}</a>`],
      ...names.map((name) => [name, (each) => show(find(each, name)?.summary, find(each, name)?.intervals, figure), "number"]),
    ]} />
    ${made.length > 1 && html`<label>class by class <select value=${getKey(one)} onChange=${(event) => setChosen(event.target.value)}>
      ${made.map((each) => html`<option value=${getKey(each)}>${describe(each)} (measured in run ${each.run})</option>`)}
    </select></label>`}
    ${columns.length > 0 && html`<${Table} label="classes by site" rows=${classes} getKey=${(each) => `${each.site} ${each.class}`} columns=${[
      ["site", (each) => each.site],
      ["class", (each) => each.class],
      ["samples, at least", (each) => showCount(each.num_samples), "number"],
      ...columns.map(([name, heading]) => [heading, (each) => show(each.values, each.intervals, name), "number"]),
    ]} />`}
    ${!one.model && html`<p class="small">No site has lent its own model, and there is none in common.</p>`}
    ${few.length > 0 && html`<p class="small">Fewer than ${plural(one.min_samples, "test sample")} at ${list(few)}${one.lender === null ? "" : ", or it gives no numbers"}: nothing is told.</p>`}`;
}

function getKey(one) {
  return `${one.run} ${one.lender ?? ""}`;
}

function describe(one) {
  return `run ${one.of_run}, round ${one.of_round}${one.lender === null ? "" : `, ${one.lender_name}'s own`}`;
}

function show(values, intervals, name) {
  if (!values || !(name in values)) return "–";
  const interval = intervals[name];
  return `${round(values[name])}${interval ? ` (${round(interval.low)} to ${round(interval.high)})` : ""}`;
}

function round(value) {
  return Math.abs(value) < 1000 ? value.toFixed(3) : String(Number(value.toPrecision(4)));
}
