// Curves of a classifier's answers to the own test samples: ROC by class, and how often it is right by how sure it is.

import { html } from "./lib.js";
import { useRecord } from "./live.js";
import { Awaited, Card, Empty } from "./parts.js";
import { showCount } from "./words.js";

const SIZE = 260;
const LEFT = 40;
const TOP = 10;
const TICKS = [0, 0.25, 0.5, 0.75, 1];
const MAX_NAMED = 9; // curves with a name of their own: three colours by three dashes
const DASHES = ["", "6 4", "2 3"];

export function Curves({ head }) {
  const found = useRecord("/curves", [head]);
  if (found.error?.code === 404) {
    return html`<${Card} title="ROC and calibration" wide="w6"><${Empty} title="No curves yet">They are drawn once this node has measured a round since it was started.<//><//>`;
  }
  return html`
    <${Card} title="ROC: each class against all others" wide="w6"><${Awaited} found=${found}>${(record) => html`<${Roc} record=${record} />`}<//><//>
    <${Card} title="Calibration: is it as often right as it is sure?" wide="w6"><${Awaited} found=${found}>${(record) => html`<${Reliability} bins=${record.reliability} />`}<//><//>`;
}

function Frame({ label, x, y, children }) {
  const at = (value) => LEFT + SIZE * value;
  const up = (value) => TOP + SIZE * (1 - value);
  return html`<svg class="plot" viewBox="0 0 ${LEFT + SIZE + 12} ${TOP + SIZE + 40}" role="img" aria-label=${label}>
    ${TICKS.map((tick) => html`
      <path class="grid" d=${`M${at(tick)} ${up(0)}V${up(1)}M${at(0)} ${up(tick)}H${at(1)}`} />
      <text x=${at(tick)} y=${up(0) + 16} text-anchor="middle">${tick}</text>
      <text x=${LEFT - 6} y=${up(tick) + 4} text-anchor="end">${tick}</text>`)}
    <path class="even" d=${`M${at(0)} ${up(0)}L${at(1)} ${up(1)}`} />
    ${children(at, up)}
    <text x=${at(0.5)} y=${up(0) + 34} text-anchor="middle">${x}</text>
    <text transform=${`translate(10 ${up(0.5)}) rotate(-90)`} text-anchor="middle">${y}</text>
  </svg>`;
}

function Roc({ record }) {
  const curves = record.roc.map((points, i) => ({ points, name: record.classes[i] })).filter((one) => one.points);
  if (!curves.length) return html`<${Empty} title="No curve">It takes test samples of two classes at least.<//>`;
  const look = (i) => ({ stroke: `var(--series-${(i % 3) + 1})`, strokeDasharray: DASHES[Math.floor(i / 3) % 3] });
  return html`
    <${Frame} label=${`ROC curves of ${curves.map((one) => one.name).join(", ")}`} x="false positive rate" y="true positive rate">
      ${(at, up) => curves.map((one, i) => html`<path class="curve" style=${look(i)} d=${`M${one.points.map(([x, y]) => `${at(x)} ${up(y)}`).join("L")}`}><title>${one.name}</title></path>`)}
    <//>
    ${curves.length <= MAX_NAMED && html`<ul class="legend">${curves.map((one, i) => html`<li><svg width="22" height="8" aria-hidden="true"><path class="curve" style=${look(i)} d="M0 4H22" /></svg> ${one.name}</li>`)}</ul>`}`;
}

function Reliability({ bins }) {
  if (!bins?.length) return html`<${Empty} title="Not told of labels">It is told of classes, of which one is right.<//>`;
  const most = Math.max(...bins.map((bin) => bin.counts));
  const told = bins.map((bin) => `sure by ${bin.confidence.toFixed(2)}, right in ${bin.accuracy.toFixed(2)} of ${showCount(bin.counts)}`).join("; ");
  return html`
    <${Frame} label=${`Calibration: ${told}`} x="how sure it is" y="how often it is right">
      ${(at, up) => html`
        <path class="curve" style=${{ stroke: "var(--series-1)" }} d=${`M${bins.map((bin) => `${at(bin.confidence)} ${up(bin.accuracy)}`).join("L")}`} />
        ${bins.map((bin) => html`<circle class="dot" cx=${at(bin.confidence)} cy=${up(bin.accuracy)} r=${2 + 5 * Math.sqrt(bin.counts / most)}><title>${`${showCount(bin.counts)} samples`}</title></circle>`)}`}
    <//>
    <p class="small soft">Below the line it is surer than it is right. The larger a dot, the more samples.</p>`;
}
