// One round: how long each phase took, who contributed and who not and why, and what each contribution looks like.

import { html } from "../lib.js";
import { useLive, useRecord } from "../live.js";
import { Awaited, Bars, Card, Empty, Facts, Figures, Matrix, Note, Notes, State, Table, Title } from "../parts.js";
import { RoundTable } from "../rounds.js";
import { list, showBytes, showCount, showId, showNumber, showSeconds, showTime } from "../words.js";

const PHASES = ["train", "exchange", "mine", "vote", "apply"];
const TOO_MANY = 400; // what the node answers where there are more classes than it compares
const FAR = 10; // times what is usual: such a contribution stands out

export function RoundView({ which }) {
  const live = useLive();
  const newest = which === null || which === "head";
  const rounds = useRecord("/rounds?limit=10", [live.head]);
  const last = rounds.record?.rounds[0]?.height ?? null;
  const height = newest ? last : which;
  const isFinal = Number(height) <= live.head; // one that is not yet is asked for again once it is
  const found = useRecord(height === null ? null : `/rounds/${encodeURIComponent(height)}`, [isFinal]);
  const block = useRecord(height === null ? null : `/chain/${encodeURIComponent(height)}`, [isFinal]);
  if (newest && rounds.record && !rounds.record.rounds.length) {
    return html`<${Title}>Rounds<//><${Card} label="rounds"><${Empty} title="No round is final yet">The first one shows as soon as it is voted in.<//><//>`;
  }
  const shown = found.record;
  return html`
    <${Title}>${shown ? `Round ${shown.round} of run ${shown.run}${shown.best ? ", the best so far" : ""}` : "Round"}<//>
    <p class="row">
      ${shown && shown.height > 1 && html`<a href=${`#/round/${shown.height - 1}`}>the one before</a>`}
      ${shown && shown.height < last && html`<a href=${`#/round/${shown.height + 1}`}>the one after</a>`}
      ${shown && html`<a href=${`#/chain/${shown.height}`}>its block</a>`}
      <a href="#/round">the newest</a>
    </p>
    <${Awaited} found=${found}>${(round) => html`
      <${Trouble} round=${round} />
      <div class="grid">
        <${Phases} round=${round} />
        <${Outcome} round=${round} />
        <${Contributions} round=${round} block=${block.record} />
        <${Prototypes} height=${round.height} block=${block.record} />
        <${LeftOut} round=${round} members=${live.overview.members.members} />
        <${Traffic} round=${round} />
        ${round.peering && html`<${Peering} peering=${round.peering} />`}
        ${round.schedule && html`<${Schedule} schedule=${round.schedule} round=${round} />`}
        ${round.published.length > 0 && html`<${Published} published=${round.published} />`}
        <${Card} title="Newest rounds"><${Awaited} found=${rounds}>${(record) => html`<${RoundTable} rounds=${record.rounds} />`}<//><//>
      </div>`}
    <//>`;
}

// Signs by which a model has not learned, and such as are no alarm. All others are of one that learns.
const NOT_LEARNED = ["one_class", "majority", "prior", "mean", "worse"];
const QUIET = ["not_yet", "missing", "behind", "few"];

function describeSign([name, text]) {
  if (NOT_LEARNED.includes(name)) return ["warn", `Not learned: ${text}.`];
  return QUIET.includes(name) ? ["off", `Of the model: ${text}.`] : ["warn", `The model learns, but ${text}.`];
}

function Trouble({ round }) {
  const notes = [
    round.spoiled && ["bad", `Its aggregate was not taken over here: ${round.spoiled}.`],
    round.clipped > 0 && ["warn", `${round.clipped} numbers of its mean were outside of masked_radius, and were clipped to it.`],
    round.failure && ["bad", `This node has not trained in it: ${round.failure}.`],
    round.went_back && ["warn", `Training began from this node's own model: ${round.went_back}.`],
    round.data_change && ["warn", `It was trained on other data: ${round.data_change}.`],
    ...Object.entries(round.signed_twice).map(([author, what]) => ["bad", `${showId(author)} signed two of one ${what}.`]),
    ...Object.entries(round.signs).map(describeSign),
    !round.measured && ["off", "This node caught up with the round later, and measured nothing of it."],
  ].filter(Boolean);
  if (!notes.length) return null;
  return html`<${Notes}>${notes.map(([state, what]) => html`<${Note} state=${state} what=${what} />`)}<//>`;
}

function Phases({ round }) {
  const there = PHASES.filter((phase) => phase in round.seconds);
  const whole = Math.max(there.reduce((sum, phase) => sum + round.seconds[phase], 0), 1e-9);
  let at = 0;
  const lanes = there.map((phase) => {
    const start = at;
    at += round.seconds[phase];
    return { phase, start, seconds: round.seconds[phase] };
  });
  return html`<${Card} title="Where the time went" wide="w7" end=${html`<span>${showTime(round.time)} UTC</span>`}>
    ${lanes.length
      ? html`<div class="gantt" role="list">
          ${lanes.map((lane) => html`
            <span role="listitem">${lane.phase}</span>
            <span class="lane" aria-hidden="true"><i style=${{ left: `${(100 * lane.start) / whole}%`, width: `${(100 * lane.seconds) / whole}%` }} /></span>
            <span class="number">${showSeconds(lane.seconds)}</span>`)}
        </div>
        <p class="small soft">${showSeconds(round.seconds.wall)} in all, of which mining itself took ${showSeconds(round.beta_s)}.</p>`
      : html`<${Empty} title="Not measured here" />`}
  <//>`;
}

function Outcome({ round }) {
  return html`<${Card} title="What came of it" wide="w5">
    <${Figures} figures=${[
      ["accuracy before", showNumber(round.local_accuracy, 3)],
      ["and after", showNumber(round.accuracy, 3)],
      ["training loss", showNumber(round.train.loss)],
      ["contributions", `${round.contributors.length} of ${round.num_members}`],
      ["votes", `${round.votes}, view ${round.view}`],
      ["mined by", round.miner_name],
    ]} />
  <//>`;
}

function Contributions({ round, block }) {
  const scores = new Map(round.scores.map((score) => [score.author, score]));
  const parts = new Map((block?.contributions ?? []).map((one) => [one.author, one]));
  const rows = round.contributors.map((author, i) => ({ author, name: round.contributor_names[i], score: scores.get(author), part: parts.get(author) }));
  const hasScores = round.scores.length > 0;
  return html`<${Card} title="Contributions">
    <${Table} label="contributions" rows=${rows} getKey=${(row) => row.author} columns=${[
      ["member", (row) => html`${row.name} <code class="soft">${showId(row.author)}</code>`],
      ["weight", (row) => showCount(row.part?.weight), "number"],
      ["payloads", (row) => (row.part ? list(row.part.payloads.map((payload) => `${payload.kind} ${showBytes(payload.bytes)}`)) : "–"), "wide"],
      ...(hasScores
        ? [
            ["distance", (row) => html`<${State} state=${row.score?.distance > FAR ? "warn" : "ok"}>${showNumber(row.score?.distance, 2)}<//>`],
            ["effect on loss", (row) => html`<${State} state=${row.score?.effect > 0 ? "warn" : "ok"}>${showNumber(row.score?.effect, 4)}<//>`],
          ]
        : []),
    ]} />
    <p class="small soft">${hasScores
      ? "Distance is from the median of all, 1 is usual; an effect above 0 did harm here. Both are advice: a site with rare cases is far, too."
      : html`Scores of each contribution: <code>fednode rounds show ${round.height} --scores</code>. They stand here once they were worked out.`}</p>
  <//>`;
}

// Of methods that share prototypes: which classes are hard to tell apart, and whose prototypes are far from the others'.
function Prototypes({ height, block }) {
  const hasSome = (block?.contributions ?? []).some((one) => one.payloads.some((payload) => payload.kind === "prototypes"));
  const found = useRecord(hasSome ? `/rounds/${height}/prototypes` : null);
  if (!hasSome) return null;
  if (found.error?.code === TOO_MANY) {
    return html`<${Card} title="Prototypes: distance between classes"><${Empty} title="Too many classes to show">${found.error.message}<//><//>`;
  }
  return html`
    <${Card} title="Prototypes: distance between classes" wide="w6">
      <${Awaited} found=${found}>${({ held, classes, distances }) => (held
        ? html`<${Matrix} label="distance between classes" corner="" rows=${classes} columns=${classes} show=${showShort}
              values=${distances.map((row, i) => row.map((value, j) => (i === j ? null : value)))} />
            <p class="small soft">Euclidean, of the prototypes that members agreed on. Classes close to each other are hard to tell apart.</p>`
        : html`<${Empty} title="None to compare">No member of this round has sent any that count, or what was agreed on was dropped to save room.<//>`)}
      <//>
    <//>
    <${Card} title="Prototypes: each member's distance to them" wide="w6">
      <${Awaited} found=${found}>${({ held, classes, members }) => (held
        ? html`<${Matrix} label="distance of members' prototypes" corner="" rows=${members.map((one) => one.name)} columns=${classes} show=${showShort}
              values=${members.map((one) => one.distances)} />
            <p class="small soft">– where a member has sent none of a class, or what it sent is not held here.</p>`
        : html`<${Empty} title="None to compare" />`)}
      <//>
    <//>`;
}

function showShort(value) {
  return value.toFixed(2);
}

function LeftOut({ round, members }) {
  const names = new Map(members.map((member) => [member.id, member.name]));
  const rows = [
    ...Object.entries(round.left_out).map(([member, why]) => [member, "left out", why]),
    ...Object.entries(round.rejected).filter(([author, why]) => round.left_out[author] !== why).map(([author, why]) => [author, "refused", why]),
    ...Object.entries(round.gone).map(([author, why]) => [author, "went without", why]),
    ...round.candidates.map((one) => [one.miner, "candidate refused", one.reason]),
  ];
  const taken = round.not_taken.flatMap((one) => Object.entries(one.counts).map(([reason, count]) => [one.name, "not taken", `${reason.replaceAll("_", " ")}, ${count} times`]));
  const absent = round.absent_names.filter(() => !Object.keys(round.left_out).length).map((name) => [name, "left out", "no contribution of it in the block"]);
  const all = [...rows.map(([id, what, why]) => [names.get(id) ?? showId(id), what, why]), ...absent, ...taken];
  return html`<${Card} title="Left out and refused" wide="w6">
    ${all.length
      ? html`<${Table} label="left out" rows=${all} columns=${[["whom", ([who]) => who], ["what", ([, what]) => what], ["why", ([, , why]) => why, "wide"]]} />`
      : html`<${Empty} title="Nobody was left out, and nothing refused" />`}
  <//>`;
}

function Traffic({ round }) {
  const rows = Object.entries(round.bytes_sent).filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  return html`<${Card} title="Bytes sent by this node" wide="w6" end=${html`<span>payloads of all ${showBytes(round.payload_bytes)}</span>`}>
    ${rows.length ? html`<${Bars} rows=${rows} show=${showBytes} />` : html`<${Empty} title="Not measured here" />`}
    <${Facts} facts=${[["pulled", round.pulled_bytes === null ? null : showBytes(round.pulled_bytes)]]} />
  <//>`;
}

function Peering({ peering }) {
  if (!peering.held) {
    return html`<${Card} title="Who took what from whom"><${Empty} title="Not known here">The aggregate of this round is not held any more.<//><//>`;
  }
  const names = peering.nodes.map((node) => node.name);
  const matrices = [["divergences", "Divergence"], ["weights", "Weights of the mix"]].filter(([key]) => peering.nodes.every((node) => node[key].length === names.length));
  return html`
    ${matrices.map(([key, title]) => html`<${Card} title=${title} wide="w6" end=${key === "divergences" && peering.threshold !== null && html`<span>alike up to ${peering.threshold} (${peering.div})</span>`}>
      <${Matrix} label=${title} corner="" rows=${names} columns=${names} values=${peering.nodes.map((node) => node[key])} show=${(value) => value.toFixed(3)} />
    <//>`)}
    <${Card} title="Who took what from whom">
      <${Table} label="draws" rows=${peering.nodes} getKey=${(node) => node.id} columns=${[
        ["member", (node) => node.name],
        ["branch", (node) => node.branch ?? "–"],
        ["drew", (node) => list(node.peers) || "–", "wide"],
        ["also the classifier of", (node) => list(node.similar) || "–", "wide"],
        ["took the whole of", (node) => node.donor ?? "–"],
      ]} />
    <//>`;
}

function Schedule({ schedule, round }) {
  return html`<${Card} title="What this round sets" wide="w6">
    <${Facts} facts=${[
      ["epochs", schedule.epochs],
      ["weight of own samples", showNumber(schedule.lambda_c)],
      ["weight of others' sets", showNumber(schedule.lambda_dis)],
      ["sets of others", round.train.sets],
    ]} />
  <//>`;
}

function Published({ published }) {
  const names = [...new Set(published.flatMap((one) => Object.keys(one.values)))].filter((name) => !/^(alone_|gain)/.test(name));
  const verdicts = published.filter((one) => one.verdict);
  return html`<${Card} title="What members say of their own models">
    <${Table} label="published" rows=${published} getKey=${(one) => one.author} columns=${[
      ["member", (one) => one.name],
      ["samples", (one) => showCount(one.num_samples), "number"],
      ...names.map((name) => [name.replaceAll("_", " "), (one) => showNumber(one.values[name]), "number"]),
    ]} />
    ${verdicts.length > 0 && html`<${Facts} facts=${verdicts.map((one) => [one.name, one.verdict.sentence])} />`}
    <p class="small soft">Their word: nobody else can check it.</p>
  <//>`;
}
