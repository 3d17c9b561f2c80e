// A question to the model about the samples of a file: its answers as a table to save, what they are worth where the file
// has labels, what a class is found with from a probability on, and the same by the values of a column.

import { LONG_PATIENCE_MS, getRole, postFile } from "./api.js";
import { saveTable } from "./csv.js";
import { html, useMemo, useState } from "./lib.js";
import { useNewest } from "./live.js";
import { ClassTable, ConfusionTable, GroupTables, MeasureTable, isConfused, makeColumns } from "./measures.js";
import { findPoint } from "./operating.js";
import { Card, Empty, Note, Notes, Table } from "./parts.js";
import { plural, sayShares, showNumber } from "./words.js";

const PAGE = 20; // answers that are shown at a time
const NO_GROUP = { by: "", cuts: "" };
const AT_POINT = ["sensitivity", "specificity", "ppv", "npv"];

function sayPrior(prior) {
  return prior ? `leans ${showNumber(prior, 2)} to the classes that this site has` : "as the model answers";
}

// `more` is what only the one path takes.
function makePath(path, file, { round, prior, isCalibrated }, more) {
  const said = { name: file.name, round, calibrated: isCalibrated ? "true" : "", prior: prior || "", ...more };
  return `${path}?${Object.entries(said).filter(([, value]) => value).map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}`;
}

// Whose model: `round` is empty for the usual one, newest, best, or a number.
export function RoundChoice({ round, onChoose }) {
  const [isNumber, setNumber] = useState(/^\d+$/.test(round));
  const choose = (value) => {
    setNumber(value === "number");
    if (value !== "number") onChoose(value);
  };
  return html`<span class="row">
    <label>round <select value=${isNumber ? "number" : round} onChange=${(event) => choose(event.target.value)}>
      <option value="">as usual</option>
      <option value="newest">newest</option>
      <option value="best">best</option>
      <option value="number">a kept one</option>
    </select></label>
    ${isNumber && html`<input type="number" min="1" step="1" aria-label="number of the round" value=${round} onChange=${(event) => event.target.checkValidity() && event.target.value && onChoose(event.target.value)} />`}
  </span>`;
}

export function Ask({ hasClasses, canCalibrate, canMix }) {
  const [isOver, setOver] = useState(false);
  const [found, setFound] = useState(null);
  const [judged, setJudged] = useState(null);
  const [chosen, setChosen] = useState({ prior: 0, round: "", isCalibrated: false, answerBy: "" });
  const [at, setAt] = useState({ name: null, threshold: 0.5, prevalence: "" }); // of what is called, and from when on
  const ask = useNewest();
  const askWorth = useNewest();
  const judge = (file, how, group) => {
    setJudged({ group });
    askWorth(postFile(makePath("/evaluate", file, how, group), file, LONG_PATIENCE_MS), (said) => setJudged({ group, ...said }));
  };
  const take = (file, how = chosen) => {
    if (!file) return;
    setFound({ file });
    ask(postFile(makePath("/predict", file, how, how.answerBy ? { answer_by: how.answerBy } : {}), file), (said) => {
      setFound({ file, ...how, ...said });
      if (isLabelled(said.record)) judge(file, how, (file === found?.file && judged?.group) || NO_GROUP);
    });
  };
  const choose = (how) => {
    setChosen(how);
    take(found?.file, how);
  };
  if (!getRole()) {
    return html`<${Card} title="Ask the model"><${Empty} title="A key is needed to ask">Run <code>fednode open</code> where the node runs, or <code>fednode predict FILE</code> there.<//><//>`;
  }
  return html`<${Card} title="Ask the model" end=${html`<${RoundChoice} round=${chosen.round} onChoose=${(round) => choose({ ...chosen, round })} />`}>
    <div class="drop ${isOver ? "over" : ""}"
      onDragOver=${(event) => { event.preventDefault(); setOver(true); }}
      onDragLeave=${() => setOver(false)}
      onDrop=${(event) => { event.preventDefault(); setOver(false); take(event.dataTransfer.files[0]); }}>
      <span>Drop an npz, a csv or an image here, or</span>
      <label>choose a file <input type="file" accept=".npz,.csv,image/*" onChange=${(event) => take(event.target.files[0])} /></label>
      <span class="small">It goes to this node and no further.</span>
    </div>
    ${hasClasses && html`<label class="dial">Whose answer?
      <span class="small">everyone's</span>
      <input type="range" min="0" max="1" step="0.05" value=${chosen.prior} aria-valuetext=${sayPrior(chosen.prior)} onChange=${(event) => choose({ ...chosen, prior: Number(event.target.value) })} />
      <span class="small">this site's</span>
      <span class="small soft">${sayPrior(chosen.prior)}</span>
    </label>`}
    ${(canMix || canCalibrate) && html`<div class="row">
      ${canMix && html`<label>answered by <select value=${chosen.answerBy} onChange=${(event) => choose({ ...chosen, answerBy: event.target.value })}>
        <option value="">as usual</option>
        <option value="federation">the federation's model</option>
        <option value="alone">the one trained alone</option>
        <option value="mixed">both mixed</option>
      </select></label>`}
      ${canCalibrate && html`<label><input type="checkbox" checked=${chosen.isCalibrated} onChange=${(event) => choose({ ...chosen, isCalibrated: event.target.checked })} /> calibrated by this site's val samples</label>`}
    </div>`}
    <div aria-live="polite">
      ${found && !found.record && !found.error && html`<p class="soft">Asking about ${found.file.name} …</p>`}
      ${found?.error && html`<${Notes}><${Note} state="bad" what=${found.error.message} /><//>`}
      ${found?.record && html`<${Answers} key=${found.file} file=${found.file} record=${found.record} prior=${found.prior} />`}
    </div>
    ${isLabelled(found?.record) && html`
      <${Worth} judged=${judged} columns=${found.record.columns} onGroup=${(group) => judge(found.file, chosen, group)} />
      <${Operating} record=${found.record} at=${at} onMove=${(moved) => setAt({ ...at, ...moved })} />`}
  <//>`;
}

function isLabelled(record) {
  return Boolean(record?.expected) && record.expected.every((one) => one !== null);
}

function sayExpected(one) {
  return Array.isArray(one) ? one.map((value) => (typeof value === "number" ? showNumber(value, 3) : value)).join(", ") || "none" : one ?? "–";
}

// Whose answers they are, where they are not the federation's alone, and how sure.
function sayMix({ answer_by: by, weight, temperature }) {
  const how = typeof temperature === "number" ? `, calibrated at temperature ${showNumber(temperature, 2)}` : "";
  if (by === "alone") return `, as the model trained alone has them${how}`;
  return by === "mixed" ? `, mixed with the one trained alone ${sayShares(weight)}${how}` : how;
}

function sayAnswer(one) {
  return one.class || one.labels.map((label) => label.class).join(", ") || "–";
}

// ---- its answers

function Answers({ file, record, prior }) {
  const [first, setFirst] = useState(0);
  const count = record.predictions.length;
  const all = useMemo(() => record.predictions.map((one, i) => ({ one, at: record.rows?.[i] ?? i, alone: record.alone[i], expected: record.expected?.[i] })), [record]);
  const isValues = all.some(({ one }) => one.values.length > 0);
  const begin = first < count ? first : 0;
  return html`
    <p class="small">${plural(count, "answer")} of the model after round ${record.applied_round}${record.is_best ? ", the best," : ""} of run ${record.run}${sayMix(record)}.${prior ? ` Each ${sayPrior(prior)}.` : ""} It is no diagnosis.</p>
    ${record.passed_over.length > 0 && html`<p class="small soft">Passed over, as the federation does not name them: ${record.passed_over.join(", ")}.</p>`}
    <${Table} label="answers" rows=${all.slice(begin, begin + PAGE)} columns=${[
      [record.columns.length ? "line" : "sample", ({ at }) => at, "number"],
      ...(isValues
        ? [["values", ({ one }) => one.values.map((value) => `${value.target} ${showNumber(value.value, 3)}`).join(", "), "wide"]]
        : [
            ["class", ({ one }) => sayAnswer(one)],
            ["probability", ({ one }) => showNumber(one.probability, 3), "number"],
            ["next", ({ one }) => one.top.slice(1, 3).map((next) => `${next.class} ${showNumber(next.probability, 3)}`).join(", ")],
          ]),
      ...(record.expected ? [["in the file", ({ expected }) => sayExpected(expected)]] : []),
      ...(all.some(({ one }) => one.notes.length > 0) ? [["note", ({ one }) => one.notes.join("; ") || "–", "wide"]] : []),
      ...(record.alone.length ? [["alone", ({ alone }) => alone?.class || "–"]] : []),
    ]} />
    <div class="row small">
      ${count > PAGE && html`
        <button disabled=${begin === 0} onClick=${() => setFirst(begin - PAGE)}>Previous</button>
        <span>${begin + 1} to ${Math.min(begin + PAGE, count)} of ${count}</span>
        <button disabled=${begin + PAGE >= count} onClick=${() => setFirst(begin + PAGE)}>Next</button>`}
      <button onClick=${() => saveTable(`${file.name.replace(/\.[^.]*$/, "")}-answers`, listCells(record, all))}>CSV</button>
    </div>`;
}

// Every answer with all that is told of it, the headings first.
function listCells(record, all) {
  const targets = all[0].one.values.map((value) => value.target);
  const classes = listClasses(record);
  const headings = targets.length ? targets : ["class", "probability", ...classes.map((name) => `probability of ${name}`)];
  const alone = record.alone.length ? (targets.length ? targets.map((target) => `${target} alone`) : ["class alone"]) : [];
  const read = ({ one }) => {
    if (targets.length) return one.values.map((value) => value.value);
    const known = new Map(one.top.map((each) => [each.class, each.probability]));
    return [one.class || one.labels.map((label) => label.class).join("; "), one.class ? one.probability : "", ...classes.map((name) => known.get(name))];
  };
  const readAlone = ({ alone: one }) => (targets.length ? one.values.map((value) => value.value) : [sayAnswer(one)]);
  const tellExpected = (one) => (Array.isArray(one) ? one.join("; ") : one);
  return [
    ["row", ...headings, ...alone, ...(record.expected ? ["in the file"] : []), "note"],
    ...all.map((row) => [
      row.at,
      ...read(row),
      ...(alone.length ? readAlone(row) : []),
      ...(record.expected ? [tellExpected(row.expected)] : []),
      row.one.notes.join("; "),
    ]),
  ];
}

// The classes or labels of which every answer tells, in the run's order; none where it tells of a few alone.
function listClasses(record) {
  const told = [...record.predictions[0].top].sort((one, other) => one.label - other.label).map((one) => one.class);
  return record.predictions.every((one) => one.top.every((each) => told.includes(each.class))) ? told : [];
}

// ---- what they are worth

function Worth({ judged, columns, onGroup }) {
  const { by, cuts } = judged?.group ?? NO_GROUP;
  const record = judged?.record;
  return html`
    <h3>What these answers are worth</h3>
    <${Notes}><${Note} state="warn" what="Members may have trained on rows of this file." remedy="Only samples that nobody trained on say what the model is worth." /><//>
    ${judged?.error && html`<${Notes}><${Note} state="bad" what=${judged.error.message} /><//>`}
    ${!record && !judged?.error && html`<p class="soft">Measuring …</p>`}
    ${record && html`
      ${record.alone?.verdict && html`<p>${record.alone.verdict.sentence}</p>`}
      ${Object.values(record.signs).map((sign) => html`<p class="state warn">${sign}</p>`)}
      <${MeasureTable} measures=${record.measures} alone=${record.alone?.measures} mixed=${record.mixed?.measures} />
      ${record.mixed && html`<p class="small soft">Mixed are the answers of both models, the federation's and the one trained alone, ${sayShares(record.mixed.weight)}.</p>`}
      <${ClassTable} classes=${record.measures.classes} />
      ${isConfused(record.measures.classes) && html`<${ConfusionTable} classes=${record.measures.classes} />`}`}
    ${columns.length > 0 && html`<div class="row">
      <label>by the values of <select value=${by} onChange=${(event) => onGroup({ by: event.target.value, cuts: "" })}>
        <option value="">no column</option>
        ${columns.map((name) => html`<option value=${name}>${name}</option>`)}
      </select></label>
      ${by && html`<label>numbers cut at <input value=${cuts} placeholder="the quartiles" onChange=${(event) => onGroup({ by, cuts: event.target.value })} /></label>`}
    </div>`}
    ${record?.groups.length > 0 && html`
      <${GroupTables} column=${by} groups=${record.groups} />
      <p class="small soft">Groups of fewer than ten samples are counted and not measured. Of many groups some differ by chance: look at the intervals.</p>`}`;
}

// ---- from a probability on

function Operating({ record, at, onMove }) {
  const classes = useMemo(() => listClasses(record), [record]);
  const isMultilabel = Array.isArray(record.expected[0]);
  const chosen = classes.includes(at.name) ? at.name : classes[classes.length === 2 ? 1 : 0];
  const shown = isMultilabel ? classes : classes.filter((name) => name === chosen);
  const samples = useMemo(() => new Map(shown.map((name) => [name, readSamples(record, name)])), [record, shown.join("\n")]);
  if (!shown.length || record.predictions[0].values.length) return null;
  const typed = Number(at.prevalence);
  const points = shown.map((name) => ({ name, ...findPoint(...samples.get(name), at.threshold, typed > 0 && typed < 1 ? typed : null) }));
  return html`
    <h3>From a probability on</h3>
    <div class="row">
      ${!isMultilabel && html`<label>call it <select value=${chosen} onChange=${(event) => onMove({ name: event.target.value })}>
        ${classes.map((name) => html`<option value=${name}>${name}</option>`)}
      </select></label>`}
      <label>where <input type="number" aria-label="prevalence" min="0" max="1" step="any" value=${at.prevalence} placeholder=${showNumber(points[0].prevalence, 3)} onInput=${(event) => onMove({ prevalence: event.target.value })} /> have it</label>
    </div>
    <label class="dial">from a probability of
      <input type="range" aria-label="threshold" min="0" max="1" step="0.01" value=${at.threshold} onInput=${(event) => onMove({ threshold: Number(event.target.value) })} />
      <span class="number">${showNumber(at.threshold, 2)}</span>
    </label>
    <${Table} label="from a threshold on" rows=${points} getKey=${(point) => point.name} columns=${[
      [isMultilabel ? "label" : "class", (point) => point.name],
      ["prevalence", (point) => showNumber(point.prevalence, 3), "number"],
      ["called", (point) => point.num_called, "number"],
      ...AT_POINT.flatMap((name) => makeColumns(name, points, (point) => point)),
    ]} />
    <p class="small soft">PPV and NPV, the positive and the negative predictive value, are those at the prevalence; left empty, that of the file.</p>`;
}

function readSamples(record, name) {
  const isOf = record.expected.map((one) => (Array.isArray(one) ? one.includes(name) : one === name));
  return [isOf, record.predictions.map((one) => one.top.find((each) => each.class === name).probability)];
}
