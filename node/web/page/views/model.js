// Model and data: what this site's samples are, a prediction of a dropped file, and the model to take along.

import { download, getRole, postFile } from "../api.js";
import { html, useState } from "../lib.js";
import { useLive, useNewest, useRecord } from "../live.js";
import { Awaited, Bars, Card, Empty, Facts, Figures, Note, Notes, Table, Title } from "../parts.js";
import { plural, showBytes, showCount, showNumber } from "../words.js";

const MAX_SHOWN = 50;

export function ModelView() {
  const live = useLive();
  const { status } = live.overview;
  const model = useRecord("/model", [live.head]);
  return html`
    <${Title}>${status.num_train === null ? "Model and data" : `${showCount(status.num_train)} samples to train on, ${showCount(status.num_test)} to test on${status.num_val ? `, ${showCount(status.num_val)} to compare rounds by` : ""}`}<//>
    <div class="grid">
      <${Samples} measures=${status.measures} />
      ${status.privacy && html`<${Privacy} privacy=${status.privacy} />`}
      <${Predict} hasClasses=${model.record?.task === "classification"} />
      <${ModelCard} found=${model} status=${status} />
      <${Arrays} found=${model} />
    </div>`;
}

function Samples({ measures }) {
  const rows = (measures?.classes ?? []).map((one) => [one.class, one.num_samples]);
  return html`<${Card} title="Own test samples by class" wide="w6" end=${html`<span>stays here</span>`}>
    ${rows.length ? html`<${Bars} rows=${rows} show=${showCount} />` : html`<${Empty} title="Not known yet">It shows once a round was measured.<//>`}
    <p class="small soft"><code>fednode data stats</code> tells the same of the training samples. None of it is sent to anybody.</p>
  <//>`;
}

// In a run that hides samples: how far that goes by now.
function Privacy({ privacy }) {
  const { phases, epsilon, epsilon_phases: counted, delta, budget, guessable, set_aside: isSetAside } = privacy;
  const isKnown = epsilon !== null && epsilon !== undefined;
  const isInfinite = guessable > 0 && !isSetAside;
  return html`<${Card} title="What was told of any one sample" wide="w6">
    <${Figures} figures=${[
      ["epsilon", isKnown ? showNumber(epsilon, 2) : isInfinite ? "∞" : "–"],
      ["budget", budget ? showNumber(budget, 1) : "none"],
      ["local phases", showCount(phases)],
    ]} />
    ${budget && isKnown && html`<div class="meter" role="progressbar" aria-label="budget spent" aria-valuenow=${Math.round((100 * epsilon) / budget)} aria-valuemin="0" aria-valuemax="100">
      <i style=${{ width: `${Math.min(100, (100 * epsilon) / budget)}%` }} />
    </div>`}
    <p class="small soft">${isKnown
      ? `Nobody's conclusion from all that this site has sent is more than e to the epsilon times as likely with a sample as without it, but for a chance of ${delta}.${counted === phases ? "" : ` This counts ${counted} of ${phases} phases; the rest is being added up.`}`
      : isInfinite
        ? `Epsilon is infinite: the noise of ${guessable} phases can be guessed, as an earlier release drew it from a generator that keeps no secrets.`
        : counted
          ? "The noise is so small that nothing is hidden."
          : "It is being added up; where it stays away, dp-accounting is not installed."}${isKnown && guessable ? ` Set aside is that the noise of ${guessable} phases can be guessed.` : ""} How many samples there are, and of which classes, is not hidden.</p>
  <//>`;
}

function sayPrior(prior) {
  return prior ? `leans ${showNumber(prior, 2)} to the classes that this site has` : "as the model answers";
}

function Predict({ hasClasses }) {
  const [isOver, setOver] = useState(false);
  const [found, setFound] = useState(null);
  const [prior, setPrior] = useState(0);
  const ask = useNewest();
  const take = (file, kappa = prior) => {
    if (!file) return;
    setFound({ file });
    const answer = postFile(`/predict?name=${encodeURIComponent(file.name)}${kappa ? `&prior=${kappa}` : ""}`, file);
    ask(answer, (said) => setFound({ file, prior: kappa, ...said }));
  };
  const lean = (kappa) => {
    setPrior(kappa);
    take(found?.file, kappa);
  };
  if (!getRole()) {
    return html`<${Card} title="Ask the model" wide="w6"><${Empty} title="A key is needed to ask">Run <code>fednode open</code> where the node runs, or <code>fednode predict FILE</code> there.<//><//>`;
  }
  return html`<${Card} title="Ask the model" wide="w6">
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
      <input type="range" min="0" max="1" step="0.05" value=${prior} aria-valuetext=${sayPrior(prior)} onChange=${(event) => lean(Number(event.target.value))} />
      <span class="small">this site's</span>
      <span class="small soft">${sayPrior(prior)}</span>
    </label>`}
    <div aria-live="polite">
      ${found && !found.record && !found.error && html`<p class="soft">Asking about ${found.file.name} …</p>`}
      ${found?.error && html`<${Notes}><${Note} state="bad" what=${found.error.message} /><//>`}
      ${found?.record && html`<${Answers} record=${found.record} prior=${found.prior} />`}
    </div>
  <//>`;
}

function Answers({ record, prior }) {
  const rows = record.predictions.slice(0, MAX_SHOWN).map((one, i) => ({ one, i, alone: record.alone[i] }));
  const isValues = rows.some(({ one }) => one.values.length > 0);
  return html`
    <p class="small">${plural(record.predictions.length, "answer")} of the model after round ${record.applied_round} of run ${record.run}${record.predictions.length > MAX_SHOWN ? `, the first ${MAX_SHOWN}` : ""}.${prior ? ` Each ${sayPrior(prior)}.` : ""} It is no diagnosis.</p>
    ${record.passed_over.length > 0 && html`<p class="small soft">Passed over, as the federation does not name them: ${record.passed_over.join(", ")}.</p>`}
    <${Table} label="answers" rows=${rows} columns=${[
      ["sample", ({ i }) => i, "number"],
      ...(isValues
        ? [["values", ({ one }) => one.values.map((value) => `${value.target} ${showNumber(value.value, 3)}`).join(", "), "wide"]]
        : [
            ["class", ({ one }) => one.class || one.labels.map((label) => label.class).join(", ") || "–", "wide"],
            ["probability", ({ one }) => showNumber(one.probability, 3), "number"],
            ["next", ({ one }) => one.top.slice(1, 3).map((next) => `${next.class} ${showNumber(next.probability, 3)}`).join(", "), "wide"],
          ]),
      ...(rows.some(({ one }) => one.notes.length > 0) ? [["note", ({ one }) => one.notes.join("; ") || "–", "wide"]] : []),
      ...(record.alone.length ? [["alone", ({ alone }) => alone?.class || "–"]] : []),
    ]} />`;
}

function ModelCard({ found, status }) {
  return html`<${Card} title="Model card" wide="w6">
    <${Awaited} found=${found}>${(model) => html`
      <${Facts} facts=${[
        ["after", `round ${model.applied_round} of run ${model.run}`],
        ["federation", `${model.chain_name} (${model.chain_id.slice(0, 8)})`],
        ["method", model.method],
        ["network", JSON.parse(model.model).name],
        ["task", model.task],
        ["classes", model.classes.join(", ")],
        ["numbers", showCount(model.numbers)],
        ["file", showBytes(model.bytes)],
        ["SHA-256", html`<code>${model.sha256}</code>`],
        ["trained on", status.device],
      ]} />
      <button onClick=${() => download("/model/file", `${status.name}-round-${model.applied_round}.safetensors`)}>Download as safetensors</button>`}
    <//>
  <//>`;
}

function Arrays({ found }) {
  if (!found.record) return null;
  return html`<${Card} title="Arrays in it" wide="w6">
    <${Table} label="arrays" rows=${found.record.arrays} getKey=${(array) => array.name} columns=${[
      ["name", (array) => html`<code>${array.name}</code>`],
      ["type", (array) => array.dtype],
      ["shape", (array) => array.shape.join(" × ") || "scalar"],
    ]} />
  <//>`;
}
