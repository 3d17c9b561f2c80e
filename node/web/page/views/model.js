// Model and data: what this site's samples are, a prediction of a dropped file, and the model to take along.

import { download } from "../api.js";
import { Ask, RoundChoice } from "../asking.js";
import { html, useState } from "../lib.js";
import { useLive, useRecord } from "../live.js";
import { Awaited, Bars, Card, Empty, Facts, Figures, Table, Title } from "../parts.js";
import { showBytes, showCount, showNumber } from "../words.js";

export function ModelView() {
  const live = useLive();
  const { status } = live.overview;
  const [round, setRound] = useState("");
  const usual = useRecord("/model", [live.head]);
  const asked = useRecord(round ? `/model?round=${round}` : null, [live.head]);
  const model = round ? asked : usual;
  return html`
    <${Title}>${status.num_train === null ? "Model and data" : `${showCount(status.num_train)} samples to train on, ${showCount(status.num_test)} to test on${status.num_val ? `, ${showCount(status.num_val)} to compare rounds by` : ""}`}<//>
    <div class="grid">
      <${Samples} measures=${status.measures} />
      ${status.privacy && html`<${Privacy} privacy=${status.privacy} />`}
      <${ModelCard} found=${model} status=${status} round=${round} onChoose=${setRound} />
      <${Ask} hasClasses=${usual.record?.task === "classification"} canCalibrate=${status.num_val > 0 && usual.record?.task !== "regression"} canMix=${Boolean(status.alone?.measures)} />
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

function ModelCard({ found, status, round, onChoose }) {
  return html`<${Card} title="Model card" wide="w6" end=${html`<${RoundChoice} round=${round} onChoose=${onChoose} />`}>
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
      <button onClick=${() => download(`/model/file${round ? `?round=${round}` : ""}`, `${status.name}-round-${model.applied_round}.safetensors`)}>Download as safetensors</button>`}
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
