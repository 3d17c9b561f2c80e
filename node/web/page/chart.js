// A chart of series over rounds: uPlot in the page's colours, with a legend that reads the values, zoom by dragging, and
// its numbers as CSV and its picture as PNG.

import UPlot from "./vendor/uplot.js";
import { html, useEffect, useRef, useState } from "./lib.js";
import { save } from "./api.js";
import { saveTable } from "./csv.js";

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

// `series`: [{ label, values }], each as long as `x`. `isShare`: the scale stays within 0 and 1. `marks` are lines across,
// [{ at, label }] by x, such as where a run begins.
export function Chart({ label, x, series, isShare = false, marks = [], format = (value) => value.toFixed(3), xLabel = "round", name }) {
  const place = useRef(null);
  const plot = useRef(null);
  const marked = useRef(marks);
  marked.current = marks;
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
        scales: { x: { time: false }, y: { range: (_, low, high) => spread(low, high, isShare) } },
        axes: [
          { ...axis, font, size: 32, incrs: WHOLE, values: (_, ticks) => ticks.map(String) },
          { ...axis, font, size: 48, values: (_, ticks) => ticks.map((tick) => String(Number(tick.toPrecision(4)))) },
        ],
        series: [{ label: xLabel, value: (_, value) => value ?? "–" }, ...lines],
        cursor: { drag: { x: true, y: false } },
        hooks: { drawClear: [(drawn) => drawMarks(drawn, marked.current)] },
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

// An axis that shows what there is: the values and a little more, and of shares no more than all of them.
export function spread(low, high, isShare) {
  if (low === null || high === null) return [0, 1];
  const room = Math.max(0.08 * (high - low), isShare ? 0.01 : 0.05 * Math.abs(high), 1e-6);
  const least = low >= 0 ? Math.max(0, low - room) : low - room;
  return [least, isShare ? Math.min(1.005, high + room) : high + room];
}

// Where each run begins, of points in order: those after the first.
export function findRuns(points) {
  return points.flatMap((point, i) => (i > 0 && point.run !== points[i - 1].run ? [{ at: point.height, label: `run ${point.run}` }] : []));
}

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = getColour("--soft");
  ctx.fillStyle = getColour("--soft");
  ctx.font = `${12 * ratio}px ${getColour("--sans")}`;
  ctx.textBaseline = "top";
  ctx.lineWidth = ratio;
  ctx.setLineDash([2 * ratio, 4 * ratio]);
  for (const { at, label } of marks) {
    const left = Math.round(plot.valToPos(at, "x", true));
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
    const isLast = left + 50 * ratio > bbox.left + bbox.width;
    ctx.textAlign = isLast ? "right" : "left";
    ctx.fillText(label, left + (isLast ? -4 : 4) * ratio, bbox.top);
  }
  ctx.restore();
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
  saveTable(name, [[xLabel, ...series.map((one) => one.label)], ...x.map((at, i) => [at, ...series.map((one) => one.values[i])])]);
}
