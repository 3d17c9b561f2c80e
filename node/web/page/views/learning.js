// Learning: before and after the exchange, beside training alone; class by class, with intervals; and run beside run.

import { html, useMemo, useState } from "../lib.js";
import { useLive, useRecord, useSeries } from "../live.js";
import { Chart, findRuns } from "../chart.js";
import { Curves } from "../curves.js";
import { ClassTable, ConfusionTable, MeasureTable, isConfused, listHeld } from "../measures.js";
import { Card, Empty, Facts, Figures, Note, Notes, Title } from "../parts.js";
import { MEASURES, getMain, plural, sayShares, showNumber, showSeconds } from "../words.js";

const SHARES = ["accuracy", "balanced_accuracy", "macro_f1", "weighted_f1", "auc", "average_precision"];
const TRAINING = "training_loss"; // of the local phase; the other is that of the test samples
const ON_VAL = ["loss", "auc"]; // of the measures, those that are also taken of val samples

export function LearningView() {
  const live = useLive();
  const { status } = live.overview;
  const measures = status.measures;
  const told = useRecord(measures ? "/intervals" : null, [live.head]).record;
  if (!measures) {
    return html`<${Title}>Learning<//>
      <${Card} label="learning"><${Empty} title="No round was measured here yet">This node measures each round that it trains in, on its own test samples.<//><//>`;
  }
  return html`
    <${Title}>${describe(status, measures)}<//>
    ${status.not_learning.length + status.model_signs.length > 0 && html`<${Notes} label="signs">
      ${status.not_learning.map((sign) => html`<${Note} state="warn" what=${sign} remedy="Look at the classes below: one that is never given shows as a column of zeros." />`)}
      ${status.model_signs.map((sign) => html`<${Note} state="warn" what=${`The model learns, but ${sign}.`} />`)}
    <//>`}
    <${History} points=${live.history.points} measures=${measures} hasAlone=${Boolean(status.alone?.measures)} hasVal=${status.num_val > 0} />
    <div class="grid">
      <${Summary} status=${status} measures=${told?.measures ?? measures} round=${told?.round} alone=${status.alone} />
      <${Alone} alone=${status.alone} />
      <${Classes} classes=${told?.measures.classes ?? measures.classes} />
      ${measures.classes.length > 0 && html`<${Curves} head=${live.head} />`}
      <${Confusion} classes=${measures.classes} />
      <${RunsBeside} points=${live.history.points} />
    </div>`;
}

function describe(status, measures) {
  const name = getMain(measures.summary);
  const told = `${MEASURES[name] ?? name} ${showNumber(measures.summary[name], 3)} on ${plural(measures.num_samples, "own test sample")}`;
  return `${told[0].toUpperCase()}${told.slice(1)}, after round ${status.measured_round}`;
}

function History({ points, measures, hasAlone, hasVal }) {
  const options = ["accuracy", TRAINING, ...Object.keys(measures.summary).filter((name) => name !== "accuracy")];
  const [chosen, setChosen] = useState("accuracy");
  const val = hasVal && ON_VAL.includes(chosen) ? [`apply.val_${chosen}`] : [];
  const isKept = chosen === TRAINING || (chosen === "accuracy" && !hasAlone);
  const asked = [...(chosen === "accuracy" ? ["accuracy", "local_accuracy"] : [`measures.${chosen}`]), ...val, ...(hasAlone ? [`alone.${chosen}`] : [])];
  const found = useSeries(isKept ? [] : asked);
  const used = isKept ? points : found.points;
  const x = useMemo(() => used.map((point) => point.height), [used]);
  const series = useMemo(() => makeSeries(used, chosen, hasAlone, val), [used, chosen, hasAlone, hasVal]);
  const runs = useMemo(() => findRuns(used), [used]);
  return html`<${Card} title="Round by round" end=${html`<label>measure <select value=${chosen} onChange=${(event) => setChosen(event.target.value)}>
      ${options.map((name) => html`<option value=${name}>${MEASURES[name] ?? name}</option>`)}
    </select></label>`}>
    ${found.error && !isKept ? html`<${Notes}><${Note} state="off" what=${found.error.message} /><//>` : html`
    <${Chart} key=${chosen} label=${`${MEASURES[chosen] ?? chosen} by height`} x=${x} series=${series} isShare=${SHARES.includes(chosen)} marks=${runs} xLabel="height" name=${chosen} />`}
  <//>`;
}

function makeSeries(points, chosen, hasAlone, val) {
  const read = (label, name) => ({ label, values: points.map((point) => point.values[name] ?? null) });
  if (chosen === TRAINING) return [read("training loss", "loss")];
  const onVal = val.map((name) => read("on val samples", name));
  const alone = hasAlone ? [read("trained alone", `alone.${chosen}`)] : [];
  if (chosen === "accuracy") return [read("after the exchange", "accuracy"), read("before it", "local_accuracy"), ...alone];
  return [read(MEASURES[chosen] ?? chosen, `measures.${chosen}`), ...onVal, ...alone];
}

// Of a round that may be an earlier one, as its intervals take a while.
function Summary({ status, measures, round, alone }) {
  return html`<${Card} title="What the answers are worth" wide=${alone?.measures ? "" : "w6"} end=${html`<span>${plural(measures.num_samples, "sample")}${round ? `, after round ${round}` : ""}</span>`}>
    <${MeasureTable} measures=${measures} alone=${alone?.measures} mixed=${alone?.mixed} />
    ${alone?.mixed && html`<p class="small soft">Mixed are the answers of both models, the federation's and the one trained alone, ${sayShares(alone.weight)}.</p>`}
    ${status.statistics && html`<p class="small soft">Samples are normalised by agreed statistics: ${status.statistics}.</p>`}
  <//>`;
}

function Alone({ alone }) {
  if (!alone) {
    return html`<${Card} title="Beside training alone" wide="w6">
      <${Empty} title="Nothing to compare with"><code>training.compare_local: true</code> in this node's configuration also trains the same model on its own samples only, and shows what the federation adds.<//>
    <//>`;
  }
  const { verdict } = alone;
  return html`<${Card} title="Beside training alone" wide="w6">
    ${verdict
      ? html`<p>${verdict.sentence}</p>
        <${Figures} figures=${[
          [`${MEASURES[verdict.measure] ?? verdict.measure} together`, showNumber(verdict.together, 3)],
          ["alone", showNumber(verdict.alone, 3)],
          ["difference", showDifference(verdict.difference)],
        ]} />`
      : html`<${Empty} title="Not compared yet">It takes a round that both have done.<//>`}
    <${Facts} facts=${[
      ["95 % interval of it", verdict?.interval ? `${showDifference(verdict.interval.low)} to ${showDifference(verdict.interval.high)}` : null],
      ["rounds alone", alone.rounds],
      ["lags by", alone.owed_steps ? plural(alone.owed_steps, "step") : null],
      ["CPU taken", showSeconds(alone.seconds)],
      ["ended", alone.failure],
    ]} />
  <//>`;
}

function showDifference(value) {
  return `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(3)}`;
}

function Classes({ classes }) {
  if (!classes.length) return null;
  const others = classes.length - listHeld(classes).length;
  return html`<${Card} title="Class by class" end=${others > 0 && html`<span>${plural(others, "other class is", "other classes are")} neither here nor given</span>`}>
    <${ClassTable} classes=${classes} />
  <//>`;
}

function Confusion({ classes }) {
  if (!isConfused(classes)) return null;
  return html`<${Card} title="Confusion: true class by given class" wide="w6">
    <${ConfusionTable} classes=${classes} />
    <p class="small soft">Only classes that this site has, or that were given.</p>
  <//>`;
}

function RunsBeside({ points }) {
  const runs = useMemo(() => [...new Set(points.map((point) => point.run))].slice(-3), [points]);
  const x = useMemo(() => [...new Set(points.map((point) => point.round))].sort((a, b) => a - b), [points]);
  const series = useMemo(
    () =>
      runs.map((run) => {
        const values = new Map(points.filter((point) => point.run === run).map((point) => [point.round, point.values.accuracy ?? null]));
        return { label: `run ${run}`, values: x.map((round) => values.get(round) ?? null) };
      }),
    [points, runs, x],
  );
  return html`<${Card} title="Run beside run" wide="w6">
    ${runs.length < 2
      ? html`<${Empty} title=${`Run ${runs[0] ?? 1} is the only one so far`}>The next run shows here beside it, round by round.<//>`
      : html`<${Chart} label="Accuracy of the newest runs by round" x=${x} series=${series} isShare name="runs" />`}
  <//>`;
}
