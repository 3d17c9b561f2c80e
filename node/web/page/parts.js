// The small parts of every view: states, cards, tables, facts, and what stands where there is nothing yet.

import { html, useEffect, useRef, useState } from "./lib.js";

// A colour and a shape for each state, so that neither has to be seen to tell them apart.
export function Mark({ state, size = 12 }) {
  const shapes = {
    ok: html`<circle cx="6" cy="6" r="5.6" fill="currentColor" /><path d="M3.2 6.2 5.2 8.2 8.8 4.2" fill="none" stroke="var(--card)" stroke-width="1.5" />`,
    warn: html`<path d="M6 0.8 11.6 11H0.4Z" fill="currentColor" />`,
    bad: html`<path d="M1.5 1.5h9v9h-9z" fill="currentColor" />`,
    off: html`<circle cx="6" cy="6" r="4.4" fill="none" stroke="currentColor" stroke-width="1.6" />`,
  };
  return html`<svg width=${size} height=${size} viewBox="0 0 12 12" aria-hidden="true">${shapes[state]}</svg>`;
}

export function State({ state, children }) {
  return html`<span class="state ${state}"><${Mark} state=${state} /><span>${children}</span></span>`;
}

export function Pill({ state, children }) {
  return html`<span class="state pill ${state}"><${Mark} state=${state} size=${10} /><span>${children}</span></span>`;
}

export function Card({ title, end, wide, label, children }) {
  return html`<section class="card ${wide ?? ""}" aria-label=${label ?? title}>
    ${(title || end) && html`<header><h2>${title}</h2><div class="end">${end}</div></header>`}
    ${children}
  </section>`;
}

export function Title({ children }) {
  const heading = useRef(null);
  useEffect(() => {
    if (document.activeElement?.closest?.("nav")) heading.current?.focus(); // so that a screen reader reads the new view
  }, []);
  return html`<h1 tabindex="-1" ref=${heading}>${children}</h1>`;
}

export function Note({ state, what, remedy, children }) {
  return html`<li class="note ${state}">
    <${Mark} state=${state} size=${14} />
    <span class="what">${what}</span>
    ${(remedy || children) && html`<span class="remedy">${remedy}${children}</span>`}
  </li>`;
}

export function Notes({ label, children }) {
  return html`<ul class="notes" aria-label=${label}>${children}</ul>`;
}

export function Warnings({ texts }) {
  if (!texts.length) return null;
  return html`<${Notes}>${texts.map((text) => html`<${Note} state="warn" what=${text} />`)}<//>`;
}

export function Loading() {
  return html`<div role="status"><span class="unseen">loading</span><span class="loading" /><span class="loading" /></div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><strong>${title}</strong>${children}</div>`;
}

export function Trouble({ error }) {
  return html`<${Notes}><${Note} state=${error.code === 404 ? "off" : "bad"} what=${error.message} /><//>`;
}

// What a record becomes: itself once it is there, what is wrong where it cannot be had, else a wait.
export function Awaited({ found, children }) {
  if (found.record) return children(found.record);
  return found.error ? html`<${Trouble} error=${found.error} />` : html`<${Loading} />`;
}

// `columns`: [heading, what a row shows, options]. A heading that is a number's stands to the right.
export function Table({ label, columns, rows, getKey, empty }) {
  if (!rows.length) return html`<${Empty} title=${empty ?? "nothing yet"} />`;
  return html`<${Scroll} label=${label}>
    <table>
      <thead><tr>${columns.map(([heading, , kind]) => html`<th scope="col" class=${kind ?? ""}>${heading}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row, i) => html`<tr key=${getKey ? getKey(row) : i} class="goes">
          ${columns.map(([, show, kind]) => html`<td class=${kind ?? ""}>${show(row)}</td>`)}
        </tr>`)}
      </tbody>
    </table>
  <//>`;
}

// What is wider than its place scrolls, and says so.
function Scroll({ label, children }) {
  const place = useRef(null);
  const [isWider, setWider] = useState(false);
  useEffect(() => {
    const look = () => setWider(place.current !== null && place.current.scrollWidth > place.current.clientWidth + 1);
    const watching = new ResizeObserver(look);
    watching.observe(place.current);
    watching.observe(place.current.firstElementChild);
    look();
    return () => watching.disconnect();
  }, []);
  return html`
    <div class="scroll" ref=${place} tabindex="0" role="region" aria-label=${label}>${children}</div>
    ${isWider && html`<p class="hint small soft">More to the right: scroll the table.</p>`}`;
}

// What a change would do, value by value.
export function Diff({ differences }) {
  if (!differences.length) return null;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="what changes"><table class="diff">
    <thead><tr><th scope="col">what</th><th scope="col">now</th><th scope="col">then</th></tr></thead>
    <tbody>${differences.map((one) => html`<tr>
      <td class="wide">${one.path}</td>
      <td class="wide old">${one.old ?? ""}</td>
      <td class="wide new">${one.new ?? ""}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

export function Facts({ facts }) {
  const told = facts.filter((fact) => fact && fact[1] !== null && fact[1] !== undefined && fact[1] !== "");
  return html`<dl class="facts">${told.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

export function Figures({ figures }) {
  return html`<dl class="figures">
    ${figures.map(([name, value]) => html`<div><dt class="name">${name}</dt><dd class="value">${value}</dd></div>`)}
  </dl>`;
}

// Named bars side by side, `parts` of the largest.
export function Bars({ rows, show = String }) {
  const most = Math.max(...rows.map(([, value]) => value), 1e-9);
  return html`<div class="bars" role="list">
    ${rows.map(([name, value]) => html`
      <span role="listitem">${name}</span>
      <span class="meter" aria-hidden="true"><i style=${{ width: `${(100 * value) / most}%` }} /></span>
      <span class="number">${show(value)}</span>`)}
  </div>`;
}

// Rows and columns with a number each, the darker the more. `values` has a row for each of `rows`.
export function Matrix({ label, corner, rows, columns, values, show = (value) => value, diagonal = false }) {
  const all = values.flat().filter((value) => value !== null);
  const most = Math.max(...all, 1e-9);
  return html`<${Scroll} label=${label}>
    <table class="matrix">
      <caption class="unseen">${label}</caption>
      <thead><tr><th scope="col">${corner}</th>${columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>
        ${values.map((row, i) => html`<tr>
          <th scope="row">${rows[i]}</th>
          ${row.map((value, j) => html`<td style=${shade(value, most, diagonal && i !== j)}>${value === null ? "–" : show(value)}</td>`)}
        </tr>`)}
      </tbody>
    </table>
  <//>`;
}

function shade(value, most, isWrong) {
  if (!value) return {};
  const part = Math.round(12 + (38 * value) / most);
  return { background: `color-mix(in srgb, var(${isWrong ? "--bad" : "--accent"}) ${part}%, var(--card))` };
}
