// The page of a node: its frame, and which view is in it by the fragment of the address.

import { forgetKey, getRole, redeemFragment, keepToken } from "./api.js";
import { html, render, useEffect, useState } from "./lib.js";
import { refresh, start, useLive } from "./live.js";
import { Card, Loading, Note, Notes, Pill, Title } from "./parts.js";
import { showClock } from "./words.js";
import { ChainList, BlockView } from "./views/chain.js";
import { FederationView } from "./views/federation.js";
import { LearningView } from "./views/learning.js";
import { ModelView } from "./views/model.js";
import { Overview } from "./views/overview.js";
import { RoundView } from "./views/round.js";
import { SettingsView } from "./views/settings.js";

const VIEWS = [
  ["", "Overview", Overview],
  ["learning", "Learning", LearningView],
  ["round", "Round", RoundView],
  ["chain", "Chain", ChainList],
  ["federation", "Federation", FederationView],
  ["model", "Model & data", ModelView],
  ["settings", "Settings", SettingsView],
];

function readPlace() {
  const [, view = "", which = null] = location.hash.slice(1).split("/");
  return { view, which: which === null || which === "" ? null : decodeURIComponent(which) };
}

function usePlace() {
  const [place, setPlace] = useState(readPlace());
  useEffect(() => {
    const listener = () => setPlace(readPlace());
    addEventListener("hashchange", listener);
    return () => removeEventListener("hashchange", listener);
  }, []);
  return place;
}

function App({ opening }) {
  const live = useLive();
  const place = usePlace();
  const [, , View] = VIEWS.find(([name]) => name === place.view) ?? VIEWS[0];
  const name = live.overview?.status.name;
  useEffect(() => {
    const [, title] = VIEWS.find(([view]) => view === place.view) ?? VIEWS[0];
    document.title = name ? `${title} · ${name} · fednode` : "fednode";
  }, [place.view, name]);
  const Shown = place.view === "chain" && place.which !== null ? BlockView : View;
  return html`
    <a class="skip unseen" href="#main" onClick=${skip}>Skip to the view</a>
    <${Bar} live=${live} view=${place.view} />
    <main id="main" tabindex="-1">
      ${opening.error && html`<${Notes}><${Note} state="warn" what=${opening.error} remedy="The page shows what everybody may see." /><//>`}
      ${live.error && !live.needsKey && live.overview && html`<${Silent} live=${live} />`}
      ${live.needsKey ? html`<${Locked} />` : live.overview ? html`<div class=${live.error ? "stale" : ""}><${Stack}><${Shown} key=${place.view} which=${place.which} /><//></div>` : html`<${First} live=${live} />`}
    </main>`;
}

// Space between what a view has below each other.
function Stack({ children }) {
  return html`<div class="stack">${children}</div>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function Bar({ live, view }) {
  const status = live.overview?.status;
  const role = getRole();
  return html`<header class="bar">
    <div class="who"><img src="icon.svg" alt="" /><span>${status ? status.name : "fednode"}</span>${status && html`<span class="of">${status.chain_name}</span>`}</div>
    <nav aria-label="views">
      ${VIEWS.map(([name, title]) => html`<a href=${`#/${name}`} aria-current=${name === view ? "page" : null}>${title}</a>`)}
    </nav>
    <div class="end">
      ${role && html`<span>${role === "admin" ? "may act" : "may look"} <button onClick=${() => { forgetKey(); refresh(); location.reload(); }}>give the key up</button></span>`}
      <${Health} live=${live} />
    </div>
  </header>`;
}

function Health({ live }) {
  if (live.needsKey) return html`<${Pill} state="off">locked<//>`;
  if (live.error) return html`<${Pill} state="bad">no answer<//>`;
  const status = live.overview?.status;
  if (!status) return html`<${Pill} state="off">asking<//>`;
  if (status.stalled) return html`<${Pill} state="bad">waiting<//>`;
  if (status.done) return html`<${Pill} state="ok">done, height ${status.height}<//>`;
  if (!status.ready) return html`<${Pill} state="warn">not ready<//>`;
  if (status.paused) return html`<${Pill} state="off">paused<//>`;
  return html`<${Pill} state="ok">height ${status.height}<//>`;
}

function Silent({ live }) {
  return html`<div role="alert"><${Notes}>
    <${Note} state="bad" what=${`This node has not answered since ${showClock(live.silentSince)} UTC. What you see is from before.`}
      remedy="It may have been stopped, or the way to it is cut. The page goes on asking." />
  <//></div>`;
}

function First({ live }) {
  return html`<${Title}>${live.error ? "This node does not answer" : "One moment"}<//>
    <${Card} label="waiting">${live.error ? html`<p>${live.error.message}</p><p class="soft">The page goes on asking.</p>` : html`<${Loading} />`}<//>`;
}

function Locked() {
  const onSubmit = (event) => {
    event.preventDefault();
    const token = new FormData(event.target).get("token").trim();
    if (token) {
      keepToken(token);
      refresh();
    }
  };
  return html`<${Title}>This node shows itself to those with a key<//>
    <${Card} label="a key">
      <p>Run <code>fednode open</code> where the node runs and open the address that it prints; or give a token here that <code>fednode token new</code> made.</p>
      <form class="row" onSubmit=${onSubmit}>
        <label>token <input name="token" type="password" autocomplete="off" spellcheck="false" /></label>
        <button class="main">Look</button>
      </form>
    <//>`;
}

async function main() {
  const opening = { error: null };
  await redeemFragment().catch((error) => {
    opening.error = error.message;
  });
  render(html`<${App} opening=${opening} />`, document.getElementById("app"));
  start();
}

main();
