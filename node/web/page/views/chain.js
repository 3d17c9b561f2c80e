// The chain: its blocks, and one of them in full, checked by this browser and on request by the node.

import { download, get, openStream, parse, post } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { useLive, useNewest, useRecord } from "../live.js";
import { BlockTable } from "../blocks.js";
import { Awaited, Card, Facts, Loading, Mark, Note, Notes, State, Table, Title } from "../parts.js";
import { checkBlock } from "../verify.js";
import { plural, showBytes, showCount, showId, showSeconds, showTime } from "../words.js";

const PAGE = 25;

export function ChainList() {
  const live = useLive();
  const [first, setFirst] = useState(null);
  const path = first === null ? `/chain?limit=${PAGE}` : `/chain?limit=${PAGE}&from=${first}`;
  const found = useRecord(path, [first === null ? live.head : 0]);
  return html`
    <${Title}>Chain ${live.overview.status.chain_name}<//>
    <div class="grid">
      <${Card} title="Blocks, newest first" wide="w8" end=${html`<${Search} />`}>
        <${Awaited} found=${found}>${(record) => html`
          <${BlockTable} blocks=${record.blocks} />
          <div class="row">
            <button disabled=${first === null} onClick=${() => setFirst(null)}>newest</button>
            <button disabled=${record.next === null} onClick=${() => setFirst(record.next)}>older</button>
          </div>`}
        <//>
      <//>
      <div class="w4 stack">
        <${Identity} status=${live.overview.status} />
        <${NodeCheck} />
        <${Compare} peers=${live.overview.peers.peers} />
      </div>
    </div>`;
}

function Search() {
  const onSubmit = (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("which").trim().toLowerCase();
    if (text) location.hash = `#/chain/${encodeURIComponent(text)}`;
  };
  return html`<form class="row" role="search" onSubmit=${onSubmit}>
    <input name="which" aria-label="height or block id" placeholder="height or block id" size="18" autocomplete="off" spellcheck="false" />
    <button>Show</button>
  </form>`;
}

function Identity({ status }) {
  return html`<${Card} title="Is it the same chain?">
    <${Facts} facts=${[
      ["chain id", html`<code>${status.chain_id}</code>`],
      ["head", html`<code>${status.head}</code>`],
      ["height", showCount(status.height)],
    ]} />
    <p class="small soft">Two sites are on one chain if both show the same chain id: compare its first eight digits by voice.</p>
    <button onClick=${() => download("/export", `${status.chain_name}.fednode`)}>Download all blocks</button>
  <//>`;
}

// What the node finds when it checks all it has stored.
function NodeCheck() {
  const [seen, setSeen] = useState(null);
  const [stream, setStream] = useState(null);
  useEffect(() => () => stream?.close(), [stream]);
  const begin = (deep) => {
    setSeen({ progress: null });
    const opened = openStream(`/verify?deep=${deep}`, {});
    opened.addEventListener("update", (message) => {
      const update = parse(message.data);
      setSeen(update);
      if (update.report) opened.close();
    });
    opened.addEventListener("refused", (message) => {
      setSeen({ error: parse(message.data).error });
      opened.close();
    });
    opened.onerror = () => {
      opened.close();
      setSeen((last) => (last?.report ? last : { error: "the check was cut off" }));
    };
    setStream(opened);
  };
  const isRunning = seen && !seen.report && !seen.error;
  return html`<${Card} title="Checked by the node">
    <div class="row">
      <button disabled=${isRunning} onClick=${() => begin(false)}>Links, work, signatures</button>
      <button disabled=${isRunning} onClick=${() => begin(true)}>and every aggregate</button>
    </div>
    <div aria-live="polite">
      ${isRunning && html`<p class="small">${seen.progress ? `height ${seen.progress.height} of ${seen.progress.last}` : "beginning"}</p>`}
      ${seen?.error && html`<${State} state="bad">${seen.error}<//>`}
      ${seen?.report && html`<${Report} report=${seen.report} />`}
    </div>
  <//>`;
}

function Report({ report }) {
  const fault = report.fault;
  return html`<${Notes}>
    ${report.ok
      ? html`<${Note} state="ok" what=${`Heights ${report.from} to ${report.to} hold.`} />`
      : html`<${Note} state="bad" what=${`Broken at height ${fault.height ?? "–"}: ${fault.what}`} remedy=${fault.expected && `expected ${fault.expected}, got ${fault.got}`} />`}
  <//>
  <${Facts} facts=${[
    ["blocks", showCount(report.blocks)],
    ["signatures", showCount(report.signatures)],
    ["aggregates recomputed", report.recomputed || null],
    ["not held", report.not_held.length ? plural(report.not_held.length, "height") : null],
    ["took", showSeconds(report.seconds)],
  ]} />`;
}

function Compare({ peers }) {
  const [found, setFound] = useState(null);
  const ask = useNewest();
  const onSubmit = (event) => {
    event.preventDefault();
    const peer = new FormData(event.target).get("peer");
    setFound({});
    ask(post(`/compare?peer=${encodeURIComponent(peer)}`, {}), setFound);
  };
  if (!peers.length) return null;
  return html`<${Card} title="Compare with a peer">
    <form class="row" onSubmit=${onSubmit}>
      <select name="peer" aria-label="peer">${peers.map((peer) => html`<option value=${peer.id}>${peer.name}</option>`)}</select>
      <button>Compare</button>
    </form>
    <div aria-live="polite">
      ${found?.error && html`<${State} state="warn">${found.error.message}<//>`}
      ${found?.record && html`<${Comparison} record=${found.record} />`}
    </div>
  <//>`;
}

function Comparison({ record }) {
  if (record.ours === null) return html`<${State} state="ok">the same up to height ${record.common}<//>`;
  return html`<${Notes}><${Note} state="bad" what=${`The chains part above height ${record.common}.`}
    remedy=${record.guilty.length ? `Signed both: ${record.guilty.map((one) => one.name).join(", ")}.` : "Nobody's votes are in both certificates."} /><//>`;
}

// ---- one block

export function BlockView({ which }) {
  const found = useRecord(`/chain/${encodeURIComponent(which)}?payloads=true`);
  return html`
    <${Title}>Block ${found.record ? found.record.height : which}<//>
    <p class="row"><a href="#/chain">all blocks</a>
      ${found.record && html`
        ${found.record.height > 0 && html`<a href=${`#/chain/${found.record.height - 1}`}>the one below</a>`}
        <a href=${`#/chain/${found.record.height + 1}`}>the one above</a>
        ${found.record.num_contributions > 0 && html`<a href=${`#/round/${found.record.height}`}>its round</a>`}`}
    </p>
    <${Awaited} found=${found}>${(block) => html`
      <div class="grid">
        <div class="w7 stack"><${Header} block=${block} /><${Contributions} block=${block} /></div>
        <div class="w5 stack"><${BrowserCheck} key=${block.id} block=${block} /><${Certificate} block=${block} /></div>
      </div>`}
    <//>`;
}

function Header({ block }) {
  return html`<${Card} title="Header">
    <${Facts} facts=${[
      ["id", html`<code>${block.id}</code>`],
      ["parent", html`<code>${block.prev}</code>`],
      ["body", html`<code>${block.body}</code>`],
      ["aggregate", block.aggregate && html`<code>${block.aggregate}</code>${block.aggregate_held ? "" : " (not held)"}`],
      ["time (UTC)", showTime(block.time)],
      ["mined in", block.height ? showSeconds(block.mining_s) : null],
      ["miner", block.miner ? html`${block.miner_name} <code>${showId(block.miner)}</code>` : "genesis"],
      ["difficulty", showCount(block.difficulty)],
      ["nonce", String(block.nonce)],
      ["size", showBytes(block.bytes)],
    ]} />
  <//>`;
}

function Contributions({ block }) {
  if (!block.contributions.length) {
    const what = block.height ? "This block holds a change of the federation." : "Genesis holds no contributions.";
    return html`<${Card} title="Body"><p class="soft">${what}</p><//>`;
  }
  return html`<${Card} title="Contributions">
    <${Table} label="contributions" rows=${block.contributions} getKey=${(one) => one.author} columns=${[
      ["member", (one) => html`${one.name} <code class="soft">${showId(one.author)}</code>`],
      ["weight", (one) => showCount(one.weight), "number"],
      ["payloads", (one) => one.payloads.map((payload) => html`<div>${payload.kind} <code title=${payload.digest}>${showId(payload.digest)}</code> ${showBytes(payload.bytes)}${payload.held ? "" : " (not held)"}
        ${payload.arrays.length > 0 && html`<span class="soft"> ${payload.arrays.map((array) => `${array.name} ${array.dtype} ${array.shape.join("×") || "scalar"}`).slice(0, 4).join(", ")}${payload.arrays.length > 4 ? ", …" : ""}</span>`}</div>`), "wide"],
    ]} />
  <//>`;
}

function Certificate({ block }) {
  if (!block.votes.length) return null;
  return html`<${Card} title="Certificate" end=${html`<span>view ${block.view}</span>`}>
    <p>${block.num_votes} of ${block.num_members} voted for this block: ${block.votes.map((voter) => voter.name).join(", ")}.</p>
  <//>`;
}

// What this browser finds by itself, tick by tick.
function BrowserCheck({ block }) {
  const [ticks, setTicks] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    let isCurrent = true;
    readBytes(block.height)
      .then(([given, below, above]) => checkBlock(given, block, below, above))
      .then((found) => isCurrent && setTicks(found), (failed) => isCurrent && setError(failed));
    return () => {
      isCurrent = false;
    };
  }, [block.id]);
  const bad = ticks?.filter((tick) => tick.ok === false) ?? [];
  return html`<${Card} title="Checked by this browser">
    <div aria-live="polite" data-checked=${ticks ? (bad.length ? "bad" : "ok") : "no"}>
      ${error && html`<${State} state="warn">${error.message}<//>`}
      ${!ticks && !error && html`<${Loading} />`}
      ${ticks && html`<${Notes}>
        ${bad.length
          ? html`<${Note} state="bad" what="This block is not what it says." remedy="Do not trust what this node shows. Run fednode chain verify on it, and compare with other members." />`
          : html`<${Note} state="ok" what="All that this browser can check holds." />`}
      <//>
      <ul class="ticks">${ticks.map((tick) => html`<${Tick} tick=${tick} />`)}</ul>`}
    </div>
    <p class="small soft">Computed here from the block's own bytes. Who the members are is as this node says; the aggregate is recomputed by the node.</p>
  <//>`;
}

function Tick({ tick }) {
  const state = tick.ok === null ? "off" : tick.ok ? "ok" : "bad";
  const word = tick.ok === null ? "not checked" : tick.ok ? "holds" : "does not hold";
  return html`<li class=${`state-${state}`}>
    <span class="state ${state}"><${Mark} state=${state} /></span>
    <span class="name">${tick.name}<span class="unseen">: ${word}</span></span>
    <span class="why">${tick.why}</span>
  </li>`;
}

async function readBytes(height) {
  const read = (at) => get(`/chain/${at}/bytes`);
  const beside = (at) => (at < 0 ? null : read(at).catch(() => null));
  return Promise.all([read(height), beside(height - 1), beside(height + 1)]);
}
