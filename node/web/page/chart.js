// A chart of series over rounds: uPlot in the page's colours, with a legend that reads the values, zoom by dragging, and
// its numbers as CSV and its picture as PNG.

import UPlot from "./vendor/uplot.js";
import { html, useEffect, useRef, useState } from "./lib.js";
import { save } from "./api.js";

const HEIGHT = 240;
const DASHES = [[], [6, 4], [2, 3]];
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];

function getColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function useScheme() {
  const [isDark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const listener = () => setDark(query.matches);
    query.addEventListener("change", listener);
    return () => query.removeEventListener("change", listener);
  }, []);
  return isDark;
}

// `series`: [{ label, values }], each as long as `x`. `range` fixes the scale, as [0, 1] of shares.
export function Chart({ label, x, series, range, format = (value) => value.toFixed(3), xLabel = "round", name }) {
  const place = useRef(null);
  const plot = useRef(null);
  const isDark = useScheme();
  const shape = series.map((one) => one.label).join("|");
  useEffect(() => {
    const within = place.current;
    const axis = { stroke: getColour("--soft"), grid: { stroke: getColour("--grid"), width: 1 }, ticks: { show: false } };
    const font = `12px ${getColour("--sans")}`;
    const lines = series.map((one, i) => ({
      label: one.label,
      stroke: getColour(`--series-${(i % 3) + 1}`),
      width: 2,
      dash: DASHES[i % 3],
      spanGaps: true,
      points: { show: false },
      value: (_, value) => (value === null || value === undefined ? "–" : format(value)),
    }));
    const made = new UPlot(
      {
        width: within.clientWidth || 600,
        height: HEIGHT,
        scales: { x: { time: false }, y: range ? { range: () => range } : {} },
        axes: [
          { ...axis, font, size: 32, incrs: WHOLE, values: (_, ticks) => ticks.map(String) },
          { ...axis, font, size: 48, values: (_, ticks) => ticks.map((tick) => String(Number(tick.toPrecision(4)))) },
        ],
        series: [{ label: xLabel, value: (_, value) => value ?? "–" }, ...lines],
        cursor: { drag: { x: true, y: false } },
      },
      [x, ...series.map((one) => one.values)],
      within,
    );
    const watching = new ResizeObserver(() => made.setSize({ width: within.clientWidth, height: HEIGHT }));
    watching.observe(within);
    made.over.addEventListener("mouseleave", () => requestAnimationFrame(() => readLast(made)));
    plot.current = made;
    requestAnimationFrame(() => readLast(made));
    return () => {
      watching.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, isDark]);
  useEffect(() => {
    plot.current?.setData([x, ...series.map((one) => one.values)]);
    requestAnimationFrame(() => plot.current && readLast(plot.current));
  }, [x, series]);
  return html`<figure>
    <div class="chart" ref=${place} role="img" aria-label=${`${label}. ${describe(x, series, format)}`} />
    ${name && html`<figcaption class="row small soft">
      <span>drag to zoom, twice to see all</span>
      <button onClick=${() => saveCsv(name, xLabel, x, series)}>CSV</button>
      <button onClick=${() => plot.current?.ctx.canvas.toBlob((blob) => save(blob, `${name}.png`))}>PNG</button>
    </figcaption>`}
  </figure>`;
}

// The legend says the newest values while nobody points at others.
function readLast(plot) {
  if (plot.data[0].length) plot.setLegend({ idx: plot.data[0].length - 1 });
}

// For who does not see it: where each series ends.
function describe(x, series, format) {
  const told = series.map((one) => {
    const last = one.values.findLast((value) => value !== null && value !== undefined);
    return last === undefined ? `${one.label} not measured` : `${one.label} ${format(last)}`;
  });
  return x.length ? `At ${x.at(-1)}: ${told.join(", ")}.` : "Nothing measured yet.";
}

function saveCsv(name, xLabel, x, series) {
  const rows = [[xLabel, ...series.map((one) => one.label)], ...x.map((at, i) => [at, ...series.map((one) => one.values[i])])];
  const text = rows.map((row) => row.map((cell) => quote(cell ?? "")).join(",")).join("\n");
  save(new Blob([`${text}\n`], { type: "text/csv" }), `${name}.csv`);
}

// A cell that a spreadsheet takes for a formula is one no longer.
function quote(cell) {
  const text = typeof cell === "string" && /^[=+\-@\t]/.test(cell) ? `'${cell}` : String(cell);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
