// The federation: who decides, what waits for approval, and which runs there were.

import { Act, ActHint } from "../act.js";
import { download } from "../api.js";
import { html, useState } from "../lib.js";
import { useLive, useRecord } from "../live.js";
import { Awaited, Card, Diff, Empty, Facts, State, Table, Title, Warnings } from "../parts.js";
import { Evaluations } from "./evaluations.js";
import { Propose } from "./propose.js";
import { Statistics } from "./statistics.js";
import { KINDS, describeMember, describeMissing, describeOrigin, isDialOut, list, plural, showAhead, showBytes, showCount, showId, showMs, showName, showNumber, showSeconds } from "../words.js";

const PHASES = { running: "running", done: "its rounds are made", ended: "ended by a change", over: "another run followed" };

export function FederationView() {
  const live = useLive();
  const { status, members, peers, proposals } = live.overview;
  const up = members.members.filter((member) => member.alive).length;
  return html`
    <${Title}>${plural(members.members.length, "member")}, ${up} in sight; ${members.quorum} decide<//>
    <${ActHint} />
    <${Proposals} proposals=${proposals.proposals} status=${status} />
    <${Propose} members=${members.members} status=${status} />
    <${Members} members=${members} peers=${peers.peers} version=${status.version} />
    <${Runs} head=${live.head} />`;
}

function Members({ members, peers, version }) {
  const byId = new Map(peers.map((peer) => [peer.id, peer]));
  const getPeer = (member) => byId.get(member.id);
  return html`<${Card} title="Members" end=${html`<span>${members.min_contributions} contribute to a round at least</span>`}>
    <${Table} label="members" rows=${members.members} getKey=${(member) => member.id} columns=${[
      ["seat", (member) => member.seat, "number"],
      ["name", (member) => html`${member.name}${member.display_name === null ? "" : ` – ${member.display_name}`} <code class="soft" title=${member.id}>${showId(member.id)}</code>`],
      ["state", (member) => html`<${State} state=${describeMember(member, getPeer(member)).state}>${describeMember(member, getPeer(member)).word}${isDialOut(member) ? ", dials out" : ""}<//>`],
      ["member since", describeOrigin],
      ["height", (member) => showCount(member.height), "number"],
      ["version", (member) => (member.me ? version : (member.version ?? "–"))],
      ["clock", (member) => showAhead(member.clock_ahead_s)],
      ["heard of", (member) => (member.me ? "–" : member.silent_s === null ? "never" : `${showSeconds(member.silent_s)} ago`)],
      ["round trip", (member) => showMs(getPeer(member)?.round_trip_s), "number"],
      ["sent / received", (member) => (getPeer(member) ? `${showBytes(getPeer(member).bytes_sent)} / ${showBytes(getPeer(member).bytes_received)}` : "–")],
      ["not taken", (member) => describeRefused(getPeer(member)), "wide"],
    ]} />
    <p class="small soft">Not taken of a member, and why: what is of another height or came twice was late, which is usual. What was against a rule counts against it.</p>
    ${members.observers.length > 0 && html`<p class="small">Observers: ${list(members.observers.map((one) => `${showName(one.name, one.id)} (${one.alive ? "up" : "away"})`))}. They read, and decide nothing.</p>`}
  <//>`;
}

function describeRefused(peer) {
  if (!peer) return "–";
  const told = Object.entries(peer.not_taken).map(([reason, count]) => `${reason.replaceAll("_", " ")} ${count}`);
  if (peer.rejected) told.unshift(`${peer.rejected} against a rule`);
  return told.join(", ") || "–";
}

function Proposals({ proposals, status }) {
  return html`<${Card} title="Changes that wait">
    ${proposals.length
      ? proposals.map((one) => html`<${Proposal} key=${one.id} proposal=${one} status=${status} />`)
      : html`<${Empty} title="No change waits for approval">What a member proposes shows here with what it does, until enough agree or its time is over.<//>`}
  <//>`;
}

function Proposal({ proposal, status }) {
  const name = KINDS[proposal.kind] ?? proposal.kind;
  const trains = ["start_run", "set_rounds", "add_member"].includes(proposal.kind);
  const lends = proposal.kind === "start_run" && JSON.parse(proposal.terms).run.method.lend === true;
  const by = showName(proposal.proposer, proposal.proposer_id);
  const signs = `yes to “${name}” by ${by}, change ${showId(proposal.id)}`;
  return html`<article aria-label=${`${name} by ${by}`}>
    <div class="row">
      <h3>${name}, proposed by ${by} <code>${showId(proposal.id)}</code></h3>
      ${proposal.approved_here ? html`<${State} state="ok">approved by this site<//>` : html`<${State} state="warn">not answered by this site<//>`}
    </div>
    ${proposal.note && html`<p>${proposal.note}</p>`}
    <${Diff} differences=${proposal.differences} />
    <${Facts} facts=${[
      ["approved by", proposal.approvals.map((one) => `${showName(one.name, one.id)}${one.trains ? "" : " (does not train)"}`).join(", ") || "nobody"],
      ["lent", proposal.lends_here ? "this site's own model, to all members and observers" : ""],
      ["lacks", describeMissing(proposal.missing)],
      ["not answered", proposal.missing.unanswered.map((one, i) => showName(one, proposal.missing.unanswered_ids[i])).join(", ")],
      ["open until", `height ${proposal.expires}; the chain is at ${proposal.height}`],
    ]} />
    <${Warnings} texts=${proposal.warnings} />
    ${!proposal.approved_here && html`<div class="row">
      <${Act} label="Approve" isMain title="Approve this change?" text="This site says yes. Once enough members have, the change is in the next block." path="/approve" said=${{ change: proposal.id }} signs=${signs} status=${status}>
        <${Diff} differences=${proposal.differences} />
      <//>
      ${trains && html`<${Act} label="Approve, without training here" title="Approve, and not train?" text="This site says yes, votes, and does not train." path="/approve" said=${{ change: proposal.id, no_train: true }} signs=${`${signs}, without training here`} status=${status}>
        <${Diff} differences=${proposal.differences} />
      <//>`}
      ${lends && html`<${Act} label="Approve, and lend this site's model" title="Approve, and send this site's model?" text="This site says yes, and sends the weights of its own model to all members and observers, who may keep them. Weights can tell of the samples that they were trained on." path="/approve" said=${{ change: proposal.id, lend: true }} signs=${`${signs}, and lends this site's own model to all members and observers`} status=${status}>
        <${Diff} differences=${proposal.differences} />
      <//>`}
    </div>`}
  </article>`;
}

function Runs({ head }) {
  const found = useRecord("/runs", [head]);
  return html`<${Card} title="Runs">
    <${Awaited} found=${found}>${(record) => html`
      <${Table} label="runs" rows=${record.runs.toReversed()} getKey=${(run) => run.number} columns=${[
        ["run", (run) => run.number, "number"],
        ["method", (run) => run.method],
        ["model", (run) => run.model],
        ["rounds", (run) => `${showCount(run.made)}${run.rounds ? ` of ${showCount(run.rounds)}` : ""}`, "number"],
        ["state", (run) => (run.phase === "done" && run.selected?.stopped ? "patience has ended it" : PHASES[run.phase] ?? run.phase)],
        ["began", (run) => (run.began ? html`<a href=${`#/chain/${run.began}`}>height ${run.began}</a>` : "genesis")],
        ["approved by", (run) => run.approvals.map((one) => showName(one.name, one.id)).join(", ") || "genesis", "wide"],
        ["accuracy here", (run) => showNumber(run.accuracy), "number"],
        ["note", (run) => run.note, "wide"],
        ["report", (run) => html`<${Report} run=${run} />`],
      ]} />
      <${Evaluations} runs=${record.runs} />
      <${Statistics} runs=${record.runs} />`}
    <//>
  <//>`;
}

// For an ethics board: one page, for which the node verifies its whole chain first.
function Report({ run }) {
  const [state, setState] = useState({ busy: false, error: null });
  const make = () => {
    setState({ busy: true, error: null });
    download(`/runs/${run.number}/report`, `report-run-${run.number}.html`, {}).then(
      () => setState({ busy: false, error: null }),
      (error) => setState({ busy: false, error }),
    );
  };
  return html`<button disabled=${state.busy} aria-label=${`report of run ${run.number}`} onClick=${make}>${state.busy ? "verifying…" : "Report"}</button>
    ${state.error && html`<${State} state="bad">${state.error.message}<//>`}`;
}
