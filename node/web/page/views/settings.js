// Settings: what this node does next, how much it logs, and its configuration with where each value comes from.

import { Act, ActHint } from "../act.js";
import { LONG_PATIENCE_MS, getRole, post } from "../api.js";
import { html, useState } from "../lib.js";
import { useLive, useRecord } from "../live.js";
import { Awaited, Card, Facts, Note, Notes, State, Table, Title } from "../parts.js";
import { plural, showAhead, showBytes, showCount, showSeconds, showTime } from "../words.js";

const LEVELS = ["debug", "info", "warning", "error"];

export function SettingsView() {
  const { status, members } = useLive().overview;
  return html`
    <${Title}>${status.name} ${status.paused ? "is paused" : "takes part"}${status.stops_after === null ? "" : ` and ends after round ${status.stops_after}`}<//>
    <${ActHint} />
    <div class="grid">
      <${TakingPart} status=${status} />
      <${Logging} status=${status} />
      <${Checks} status=${status} members=${members} />
      <${About} status=${status} />
      <${Configuration} />
    </div>`;
}

function TakingPart({ status }) {
  const [round, setRound] = useState("");
  return html`<${Card} title="Taking part" wide="w6">
    <p>${status.paused ? "This node votes, mines and takes in aggregates, and contributes nothing." : "This node contributes to each round."}</p>
    <div class="row">
      ${status.paused
        ? html`<${Act} label="Resume training" isMain title="Resume training?" text="This node contributes again, to the round in hand too if others have not finished it." path="/resume" said=${{}} status=${status} />`
        : html`<${Act} label="Pause training" title="Pause training?" text="From the next round on this node contributes nothing, also after a restart. It goes on voting, and with fewer than are needed the rounds wait." path="/pause" said=${{}} status=${status} />`}
    </div>
    <div class="row">
      ${status.stops_after === null
        ? html`<label>round <input type="number" min="0" size="6" placeholder=${String(status.round)} value=${round} onInput=${(event) => setRound(event.target.value)} /></label>
            <${Act} label="Stop after it" title="Stop after that round?" text=${`The daemon ends once round ${round || status.round} is final here. A service manager that always restarts it would start it again.`} path="/stop" said=${{ round: Number(round || 0) }} status=${status} />`
        : html`<${Act} label="Go on after all" isMain title="Go on after all?" text="The node does not end after a round." path="/stop" said=${{ withdraw: true }} status=${status} />`}
    </div>
  <//>`;
}

function Logging({ status }) {
  const [level, setLevel] = useState("debug");
  const [done, setDone] = useState(null);
  return html`<${Card} title="Log" wide="w6">
    <p>How much is logged, until the daemon ends.</p>
    <div class="row">
      <label>level <select value=${level} onChange=${(event) => setLevel(event.target.value)}>${LEVELS.map((one) => html`<option>${one}</option>`)}</select></label>
      <${Act} label="Set" title=${`Log at level ${level}?`} text="At debug the log grows fast." path="/log-level" said=${{ level }} status=${status} onDone=${setDone} />
      <span aria-live="polite">${done && html`<${State} state="ok">${done.level}, it was ${done.before}<//>`}</span>
    </div>
  <//>`;
}

// What `fednode doctor` would say that a running node knows of itself.
function Checks({ status, members }) {
  const others = members.members.filter((member) => !member.me);
  const reached = others.filter((member) => member.connected).length;
  const checks = [
    [status.ready, "ready", status.ready ? "it takes part in finalising blocks" : status.unready_reason],
    [reached === others.length, "members reached", `${reached} of ${others.length}`],
    [status.members_in_sight >= status.quorum, "a quorum in sight", `${status.members_in_sight} of ${status.members}, ${status.quorum} are needed`],
    [Math.abs(status.clock_ahead_s ?? 0) < 2, "clock", status.clock_ahead_s === null ? "no other is known" : `${showAhead(status.clock_ahead_s)} of the others`],
    [status.disk_free_bytes > 2e9, "disk", `${showBytes(status.disk_free_bytes)} free`],
    [status.training_trouble === null, "training", status.training_trouble ?? status.device ?? "not begun"],
    [status.not_learning.length === 0, "learning", status.not_learning.join("; ") || "no sign against it"],
    [status.model_signs.length === 0, "model", status.model_signs.join("; ") || "no sign against it"],
  ];
  return html`<${Card} title="Is all well?" wide="w6">
    <${Table} label="checks" rows=${checks} columns=${[
      ["", ([isWell]) => html`<${State} state=${isWell ? "ok" : "warn"}>${isWell ? "well" : "look"}<//>`],
      ["what", ([, name]) => name],
      ["found", ([, , found]) => found, "wide"],
    ]} />
    <${Doctor} />
  <//>`;
}

// `fednode doctor` looks at keys, ports, data and the way to each peer, too; as that takes seconds, when somebody asks.
const VERDICTS = { ok: ["ok", "well"], warn: ["warn", "look"], fail: ["bad", "fault"] };

function Doctor() {
  const [state, setState] = useState({ busy: false });
  const examine = () => {
    setState({ busy: true });
    post("/doctor", {}, LONG_PATIENCE_MS).then((record) => setState({ record }), (error) => setState({ error }));
  };
  if (!getRole()) return html`<p class="small soft"><code>fednode doctor --config node.yaml</code> also looks at keys, ports, data and the way to each peer; with a key this page asks it.</p>`;
  return html`
    <div class="row"><button disabled=${state.busy} onClick=${examine}>${state.busy ? "looking …" : "Ask the doctor"}</button>
      <span class="small soft">also looks at keys, ports, data and the way to each peer</span></div>
    <div aria-live="polite">
      ${state.error && html`<${Notes}><${Note} state="bad" what=${state.error.message} /><//>`}
      ${state.record && html`<${Table} label="doctor" rows=${state.record.checks} columns=${[
        ["", ({ verdict }) => html`<${State} state=${VERDICTS[verdict][0]}>${VERDICTS[verdict][1]}<//>`],
        ["what", ({ check }) => check],
        ["found, and what to do", ({ found, advice }) => html`${found}${advice && html`<div class="remedy">${advice}</div>`}`, "wide"],
      ]} />
      <${Missing} rows=${state.record.checks.flatMap(({ missing }) => missing)} />`}
    </div>`;
}

// The columns of this site's table with empty cells, as `fednode data inspect` has them.
function Missing({ rows }) {
  if (!rows.length) return null;
  return html`<${Table} label="missing" rows=${rows} getKey=${({ column }) => column} columns=${[
    ["column", ({ column }) => html`<code>${column}</code>`],
    ["missing", ({ missing, rows }) => `${showCount(missing)} (${missing / rows < 0.005 ? "<1" : Math.round((100 * missing) / rows)}%)`, "number"],
  ]} />`;
}

function About({ status }) {
  const found = useRecord("/version");
  return html`<${Card} title="About this node" wide="w6">
    <${Facts} facts=${[
      ["id", html`<code>${status.id}</code>`],
      ["release", status.version],
      ["running since", `${showTime(status.started_at)} UTC, ${showSeconds(status.uptime_s)}`],
      ["device", status.device && `${status.device}, ${status.precision}`],
      ["model", status.parameters && `${showCount(status.parameters)} numbers, ${showBytes(status.model_bytes)}`],
      ["store", showBytes(status.database_bytes)],
      ["sent / received", `${showBytes(status.bytes_sent)} / ${showBytes(status.bytes_received)}`],
      ["processes", plural(1 + (status.worker_pid === null ? 0 : 1) + status.miner_pids.length, "process", "processes")],
      ...Object.entries(found.record?.libraries ?? {}),
    ]} />
  <//>`;
}

function Configuration() {
  const found = useRecord("/config");
  const [sought, setSought] = useState("");
  const [isWhole, setWhole] = useState(false);
  const isShown = (key, origins) => key.includes(sought) && (isWhole || sought || (origins[key] ?? "default") !== "default");
  return html`<${Card} title="Configuration" end=${html`<button aria-pressed=${isWhole} onClick=${() => setWhole(!isWhole)}>also defaults</button> <input type="search" aria-label="part of a key" placeholder="part of a key" value=${sought} onInput=${(event) => setSought(event.target.value)} />`}>
    <${Awaited} found=${found}>${(record) => html`
      <${Table} label="configuration" empty="no such key" rows=${walk(record.config).filter(([key]) => isShown(key, record.origins))} getKey=${([key]) => key} columns=${[
        ["key", ([key]) => html`<code>${key}</code>`],
        ["value", ([, value]) => html`<code>${show(value)}</code>`, "wide"],
        ["from", ([key]) => html`<span class="soft">${record.origins[key] ?? "default"}</span>`, "place"],
      ]} />`}
    <//>
  <//>`;
}

function show(value) {
  return typeof value === "bigint" ? String(value) : JSON.stringify(value);
}

function walk(tree, above = "") {
  return Object.entries(tree).flatMap(([name, value]) => {
    const isSection = value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0;
    return isSection ? walk(value, `${above}${name}.`) : [[`${above}${name}`, value]];
  });
}
