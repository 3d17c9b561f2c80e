// What the page knows of the node, kept fresh: an overview every three seconds, events as they come, and the history of
// measures, of which only what is new is asked for. A page that nobody looks at asks for nothing.

import { get, openStream, parse } from "./api.js";
import { useEffect, useRef, useState } from "./lib.js";

const POLL_MS = 3000;
const SOON_MS = 500; // from the last time to the next, where something happened
const BLOCK_MS = 2000; // where it is a block: rounds may take less, and ten pages are to cost a node little
const RETRY_MS = 30000;
const MAX_STREAMS = 4;
const MAX_EVENTS = 100;
const MAX_POINTS = 4000;
const FIRST_POINTS = 2000; // that a page begins with: the whole chain, of which the node leaves what a chart needs

const KINDS = ["block", "round", "peer", "rejected", "evidence", "stall", "operator", "proposal", "approval", "change"];
KINDS.push("spoiled", "consent", "standing", "divergence");

const state = {
  overview: null,
  evidence: [],
  events: [],
  history: { points: [], upTo: -1 },
  head: -1, // grows with the chain: views that list blocks ask again then
  phase: null,
  error: null,
  silentSince: null,
  needsKey: false,
};

const listeners = new Set();
let polling = null;
let stream = null;
let isOpening = false;
let due = Infinity;
let asked = 0;
let isAsking = false;

function tell() {
  for (const listener of listeners) listener();
}

export function useLive() {
  const [, setTurn] = useState(0);
  useEffect(() => {
    const listener = () => setTurn((turn) => turn + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return state;
}

// A record, asked for again whenever one of `on` changes. While it is asked for again the last one stays.
export function useRecord(path, on = []) {
  const [found, setFound] = useState({ path: null, record: null, error: null });
  useEffect(() => {
    if (path === null) return undefined;
    const aborting = new AbortController();
    get(path, aborting.signal)
      .then((record) => setFound({ path, record, error: null }))
      .catch((error) => {
        if (!aborting.signal.aborted) setFound((last) => ({ path, record: last.path === path ? last.record : null, error }));
      });
    return () => aborting.abort();
  }, [path, ...on]);
  return found.path === path ? found : { path, record: null, error: null };
}

// Keeps what comes of the newest question; an answer to one before it that comes later is dropped.
export function useNewest() {
  const newest = useRef(0);
  return (answer, keep) => {
    newest.current += 1;
    const turn = newest.current;
    const keepNewest = (found) => turn === newest.current && keep(found);
    answer.then((record) => keepNewest({ record }), (error) => keepNewest({ error }));
  };
}

export function refresh(after = SOON_MS) {
  pollAt(Math.max(Date.now(), asked + after));
}

function pollAt(time) {
  if (time >= due) return;
  due = time;
  clearTimeout(polling);
  polling = setTimeout(poll, time - Date.now());
}

async function poll() {
  clearTimeout(polling);
  due = Infinity;
  if (document.hidden || isAsking) return;
  isAsking = true;
  asked = Date.now();
  try {
    const overview = await get("/overview");
    const { height } = overview.status;
    state.overview = overview;
    state.phase = overview.status.phase;
    state.error = null;
    state.silentSince = null;
    state.needsKey = false;
    if (height !== state.head) {
      state.head = height;
      state.history = await extend(state.history, height, []).catch(() => state.history); // a round late is no trouble
    }
    follow();
  } catch (error) {
    state.needsKey = error.code === 401;
    state.error = error;
    state.silentSince ??= new Date().toISOString();
  }
  isAsking = false;
  tell();
  pollAt(Date.now() + POLL_MS);
}

// Only what came since: a long chain is read once, for each choice of series.
async function extend(history, height, series) {
  if (height <= history.upTo) return history;
  const first = history.upTo + 1; // and without an end, so that pages that come together ask for the same
  const asked = series.map((name) => `&series=${name}`).join("");
  const found = await get(`/metrics?from=${first}&max_points=${FIRST_POINTS}${asked}`);
  let points = history.points.concat(found.rounds);
  if (points.length > MAX_POINTS) points = points.filter((_, i) => i % 2 === 0 || i > points.length - 500);
  // What a node measures of a round comes a little after its block.
  const measured = points.length ? points.at(-1).height : -1;
  return { points, upTo: Math.max(measured, height - 20) };
}

const EMPTY = { points: [], upTo: -1 };

// The history of these series, extended as the chain grows; none where nobody chose any.
export function useSeries(series) {
  const { head } = useLive();
  const key = series.join(" ");
  const [found, setFound] = useState({ key, history: EMPTY, error: null });
  const history = found.key === key ? found.history : EMPTY;
  useEffect(() => {
    if (!series.length) return undefined;
    let isCurrent = true;
    const keep = (next) => isCurrent && setFound({ key, ...next });
    extend(history, head, series).then(
      (extended) => keep({ history: extended, error: null }),
      (error) => keep({ history, error: history.points.length ? null : error }), // of a round not measured yet there is nothing
    );
    return () => {
      isCurrent = false;
    };
  }, [key, head]);
  return { points: history.points, error: found.key === key ? found.error : null };
}

async function follow() {
  if (stream || isOpening || document.hidden) return;
  isOpening = true;
  const release = await takeTurn();
  isOpening = false;
  if (!release) return; // asked again with the next overview
  const opened = openStream(`/events?${KINDS.map((kind) => `kinds=${kind}`).join("&")}`);
  stream = { opened, release };
  for (const kind of KINDS) opened.addEventListener(kind, (message) => onEvent(kind, parse(message.data)));
  opened.onerror = () => {
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => stream?.opened === opened && unfollow(), RETRY_MS);
  };
  if (document.hidden) unfollow();
}

function unfollow() {
  stream?.opened.close();
  stream?.release();
  stream = null;
}

// A browser has six connections to one node for all its tabs, and a stream holds one: so many tabs hear of events at once,
// the others ask. Null where it is not this one's turn.
async function takeTurn() {
  if (!navigator.locks) return () => {};
  for (let i = 0; i < MAX_STREAMS; i += 1) {
    const release = await new Promise((resolve) => {
      const hold = (lock) => (lock ? new Promise((done) => resolve(done)) : resolve(null));
      navigator.locks.request(`fednode-stream-${i}`, { ifAvailable: true }, hold);
    });
    if (release) return release;
  }
  return null;
}

function onEvent(kind, event) {
  if (kind === "round") {
    state.phase = event.data.phase;
    tell();
    return;
  }
  state.events = [event, ...state.events].slice(0, MAX_EVENTS);
  if (kind === "evidence") readEvidence();
  refresh(kind === "block" ? BLOCK_MS : SOON_MS);
}

function readEvidence() {
  get("/evidence")
    .then((record) => {
      state.evidence = record.evidence;
      tell();
    })
    .catch(() => {});
}

function onVisibility() {
  if (document.hidden) {
    clearTimeout(polling);
    due = Infinity;
    unfollow();
  } else {
    refresh();
  }
}

export function start() {
  document.addEventListener("visibilitychange", onVisibility);
  poll();
  readEvidence();
}
