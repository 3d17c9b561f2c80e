// What members told of their samples: feature by feature, the sites side by side, and a small histogram of each.

import { html, useState } from "../lib.js";
import { useRecord } from "../live.js";
import { Awaited, Note, Notes, Table } from "../parts.js";
import { list, plural, showCount } from "../words.js";

const WIDTH = 132;
const HEIGHT = 36;

// Of the newest run whose members have agreed on statistics, or of another one; nothing where none has.
export function Statistics({ runs }) {
  const [chosen, setChosen] = useState(null);
  const having = runs.filter((run) => JSON.parse(run.terms).input.normalize === "agreed" && run.made > 0).map((run) => run.number);
  const number = chosen ?? having.at(-1) ?? null;
  const found = useRecord(number === null ? null : `/runs/${number}/statistics`, []);
  if (number === null) return null;
  return html`<section aria-label="what members have">
    <div class="row">
      <h3>What members have</h3>
      ${having.length > 1 && html`<label>run <select value=${number} onChange=${(event) => setChosen(Number(event.target.value))}>
        ${having.map((one) => html`<option value=${one}>${one}</option>`)}
      </select></label>`}
    </div>
    <${Awaited} found=${found}>${(told) => html`<${Told} told=${told} />`}<//>
  </section>`;
}

function Told({ told }) {
  const sites = told.sites.filter((site) => site.held);
  const gone = told.sites.filter((site) => !site.held).map((site) => site.name);
  const shownClasses = told.classes.length === 2 ? [1] : told.classes.map((_, k) => k); // of two one says it all
  const shown = told.all ? [{ ...told.all, name: "all" }, ...sites] : sites;
  const rows = told.features.map((feature, i) => ({ feature, own: shown.map((site) => site.features[i]) }));
  const hasBins = told.features.some((feature) => feature.edges.length > 0);
  const columns = shown.map((site, s) => [site.name, (row) => describe(row.feature, row.own[s], site.samples), "number"]);
  return html`
    <p class="small soft">${plural(told.sites.length, "site")}, ${showCount(told.all ? told.all.samples : null)} training samples, at <a href=${`#/chain/${told.height}`}>height ${told.height}</a>. Counts of bins and categories are rounded down to a multiple of ${told.min_count}.</p>
    ${told.differences.length > 0 && html`<${Notes} label="differences between sites">${told.differences.map((text) => html`<${Note} state="warn" what=${text} />`)}<//>`}
    <${Table} label="statistics" rows=${rows} getKey=${(row) => row.feature.name} columns=${[
      ["feature", (row) => row.feature.name],
      ...(hasBins ? [["where values lie", (row) => html`<${Histogram} feature=${row.feature} sites=${shown} own=${row.own} />`]] : []),
      ...columns,
    ]} />
    ${rows.some((row) => row.own[0]?.classes.length > 0) && html`<${Table} label="correlations with classes" rows=${rows} getKey=${(row) => row.feature.name} columns=${[
      ["feature", (row) => row.feature.name],
      ...shownClasses.flatMap((k) => shown.map((site, s) => [`${told.classes[k]}, ${site.name}`, (row) => describeCorrelation(row.own[s].classes[k].correlation), "number"])),
    ]} />`}
    ${shown.some((site) => site.classes.length > 0) && html`<${Table} label="samples of each class" rows=${told.classes.map((name, k) => ({ name, k }))} getKey=${(row) => row.name} columns=${[
      ["class", (row) => row.name],
      ...shown.map((site) => [site.name, (row) => showCount(site.classes[row.k]), "number"]),
    ]} />`}
    ${gone.length > 0 && html`<p class="small">${told.masked ? `The sums of ${list(gone)}: nobody sees those of one of them.` : `What ${list(gone)} told is not here any more.`}</p>`}`;
}

function describe(feature, one, samples) {
  if (one.mean === null) return "–";
  if (feature.category) return `${(100 * one.mean).toFixed(1)} %`;
  const share = 100 * (1 - one.values / samples);
  const empty = share > 0 && share < 100 ? `, ${share < 1 ? "<1" : Math.round(share)} % empty` : "";
  return `${round(one.mean)} ± ${round(one.std)}${empty}`;
}

function describeCorrelation(value) {
  return value === null ? "–" : value.toFixed(2);
}

function round(value) {
  return String(Number(value.toPrecision(3)));
}

// The shares of all as bars, and of each site as a line over them.
function Histogram({ feature, sites, own }) {
  if (!feature.edges.length) return null;
  const shares = own.map((one) => one.bins.map((count) => count / (one.bins.reduce((sum, each) => sum + each, 0) || 1)));
  const most = Math.max(...shares.flat(), 1e-9);
  const step = WIDTH / (feature.edges.length + 1);
  const y = (share) => HEIGHT - (HEIGHT * share) / most;
  const label = `${feature.name}: ${sites.map((site, s) => `${site.name} ${name(feature, own[s])}`).join("; ")}`;
  return html`<svg class="histogram" width=${WIDTH} height=${HEIGHT} viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${label}>
    <title>${label}</title>
    ${sites.map((site, s) => site.name === "all" && s === 0
      ? shares[s].map((share, b) => html`<rect x=${b * step + 1} y=${y(share)} width=${step - 2} height=${HEIGHT - y(share)} fill="var(--grid)" />`)
      : html`<polyline fill="none" stroke="var(--series-${(s % 3) + 1})" stroke-width="1.5" points=${shares[s].map((share, b) => `${b * step + step / 2},${y(share)}`).join(" ")} />`)}
  </svg>`;
}

function name(feature, one) {
  const places = [`below ${feature.edges[0]}`, ...feature.edges.map((edge) => `from ${edge}`)];
  const median = one.median === null ? "" : `, median ${round(one.median)}`;
  return one.bins.map((count, b) => `${places[b]} ${count}`).join(", ") + median;
}
