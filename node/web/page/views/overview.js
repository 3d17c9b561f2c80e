// The overview: is it learning, who is here, do we agree? One sentence, what is wrong, the round in hand, and the newest
// blocks.

import { html, useMemo } from "../lib.js";
import { useLive, useRecord } from "../live.js";
import { Card, Empty, Figures, Mark, Note, Notes, Title, Awaited } from "../parts.js";
import { BlockTable } from "../blocks.js";
import { Chart, findRuns } from "../chart.js";
import { findProblems } from "../problems.js";
import { Ring } from "../ring.js";
import { plural, showNumber, showSeconds } from "../words.js";

const STEPS = ["train", "exchange", "mine", "vote"];
const ROUNDS_BACK = 10;

export function Overview() {
  const live = useLive();
  const { status, members, peers } = live.overview;
  const problems = findProblems(live);
  return html`
    <${Title}>${describe(status, live.history.points)}<//>
    <${Notes} label="what is wrong">
      ${problems.length
        ? problems.map((one) => html`<${Note} key=${one.what} state=${one.state} what=${one.what} remedy=${one.remedy}>
            ${one.link && html` <a href=${one.link[0]}>See the ${one.link[1]}.</a>`}
          <//>`)
        : html`<${Note} state="ok" what="Nothing is wrong that this node knows of." />`}
    <//>
    <div class="grid">
      <div class="w7 stack">
        <${Learning} points=${live.history.points} />
        <${Newest} head=${live.head} />
      </div>
      <div class="w5 stack">
        <${RoundInHand} status=${status} phase=${live.phase} members=${members.members.length} />
        <${Card} title="Members" end=${html`<span>${members.quorum} of ${members.members.length} decide</span>`}>
          <${Ring} members=${members.members} peers=${peers.peers} />
        <//>
      </div>
    </div>`;
}

// The same sentence that one would say over the phone: first whether it helps, where that is known.
function describe(status, points) {
  const of = status.rounds ? ` of ${status.rounds}` : "";
  const verdict = status.alone?.verdict?.sentence;
  const said = verdict ? [verdict] : [];
  said.push(status.done ? `All ${plural(status.rounds, "round")} of run ${status.run} are done.` : `Round ${status.round}${of} of run ${status.run}.`);
  said.push(`${status.members_in_sight} of ${plural(status.members, "member")} in sight.`);
  if (status.accuracy !== null) {
    const before = points.filter((point) => "accuracy" in point.values).at(-1 - ROUNDS_BACK);
    const change = before ? status.accuracy - before.values.accuracy : null;
    const more = change === null ? "" : `, ${change >= 0 ? "+" : "−"}${Math.abs(change).toFixed(3)} in ten rounds`;
    said.push(`Accuracy ${status.accuracy.toFixed(3)}${more}.`);
  } else {
    said.push("Nothing measured yet.");
  }
  if (status.selected?.best_round) {
    const by = `${status.selected.by} ${status.selected.score.toPrecision(3)} on val samples`;
    said.push(`${status.done ? "Best was" : "Best so far is"} round ${status.selected.best_round}, ${by}.`);
    if (status.selected.stopped) said.push("Patience has ended the run.");
  }
  return said.join(" ");
}

function Learning({ points }) {
  const x = useMemo(() => points.map((point) => point.height), [points]);
  const shares = useMemo(
    () => [
      { label: "after the exchange", values: points.map((point) => point.values.accuracy ?? null) },
      { label: "before it", values: points.map((point) => point.values.local_accuracy ?? null) },
    ],
    [points],
  );
  const losses = useMemo(() => [{ label: "training loss", values: points.map((point) => point.values.loss ?? null) }], [points]);
  const runs = useMemo(() => findRuns(points), [points]);
  if (!points.length) {
    return html`<${Card} title="Accuracy on this site's own test samples">
      <${Empty} title="No round was measured here yet">The first one shows as soon as it is applied.<//>
    <//>`;
  }
  return html`<${Card} title="Accuracy on this site's own test samples" end=${html`<a href="#/learning">more</a>`}>
    <${Chart} label="Accuracy by height" x=${x} series=${shares} isShare marks=${runs} xLabel="height" />
    <h3>Training loss</h3>
    <${Chart} label="Training loss by height" x=${x} series=${losses} marks=${runs} xLabel="height" />
  <//>`;
}

function RoundInHand({ status, phase, members }) {
  const at = STEPS.indexOf(phase);
  const progress = phase === "train" && status.train_steps ? status.train_step / status.train_steps : null;
  const title = status.done ? "The last round" : `Round ${status.round}`;
  return html`<${Card} title=${title} end=${html`<a href="#/round/head">the last one in full</a>`}>
    ${status.done
      ? html`<p class="state ok"><${Mark} state="ok" /><span>${status.selected?.stopped ? "Patience has ended the run" : "The rounds that were agreed on are made"}. A member can propose more, under Federation.</span></p>`
      : html`<ol class="phases" aria-label="phases of the round">
          ${STEPS.map((step, i) => html`<li class=${i < at ? "past" : ""} aria-current=${i === at ? "step" : null}>${step}</li>`)}
        </ol>`}
    ${progress !== null && html`<div class="meter" role="progressbar" aria-label="training" aria-valuenow=${Math.round(100 * progress)} aria-valuemin="0" aria-valuemax="100">
      <i style=${{ width: `${100 * progress}%` }} />
    </div>`}
    <${Figures} figures=${[
      ...(status.done
        ? []
        : [
            ["contributions", `${status.contributions} of ${members}`],
            ["candidates", status.candidates],
            ["view", status.view],
          ]),
      ["training takes", showSeconds(status.train_s)],
      ["mining takes", showSeconds(status.mine_s)],
      ["training loss", showNumber(status.loss)],
    ]} />
    ${status.not_awaited.length > 0 && html`<ul class="notes">
      ${status.not_awaited.map((one) => html`<${Note} state="off" what=${`${one.name} is not waited for`} remedy=${one.reason} />`)}
    </ul>`}
  <//>`;
}

function Newest({ head }) {
  const found = useRecord("/chain?limit=10", [head]);
  return html`<${Card} title="Newest blocks" end=${html`<a href="#/chain">all</a>`}>
    <${Awaited} found=${found}>${(record) => html`<${BlockTable} blocks=${record.blocks} />`}<//>
  <//>`;
}
