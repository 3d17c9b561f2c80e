// The node's records, and acts, under /api/v1/. The key of `fednode open` is kept for this tab alone.

const BASE = "api/v1";
const KEPT = "fednode-key";
const PATIENCE_MS = 20000;
export const LONG_PATIENCE_MS = 600000; // for what is made when it is asked for
const RETRY_MS = 2000;

export class Refused extends Error {
  constructor(code, text) {
    super(text);
    this.code = code;
  }
}

let session = null;
try {
  session = JSON.parse(sessionStorage.getItem(KEPT));
} catch {
  session = null;
}

export function getRole() {
  return session ? session.role : null;
}

export function forgetKey() {
  session = null;
  sessionStorage.removeItem(KEPT);
}

// The key in the fragment of the address, if there is one, for this page's own. The address is cleaned at once.
export async function redeemFragment() {
  const found = /^#key=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", `${location.pathname}#/`);
  session = await post("/session", { key: found[1] });
  sessionStorage.setItem(KEPT, JSON.stringify(session));
}

export function keepToken(token) {
  session = { key: token, role: "read" };
  sessionStorage.setItem(KEPT, JSON.stringify(session));
}

export function get(path, signal) {
  return ask(path, { signal });
}

export function post(path, said, patience) {
  return ask(path, { ...makePost(said), patience });
}

function makePost(said) {
  return said ? { method: "POST", body: JSON.stringify(said), type: "application/json" } : {};
}

export function postFile(path, file, patience) {
  return ask(path, { method: "POST", body: file, type: "application/octet-stream", patience });
}

// Saves what an address gives as a file; a link alone could not show the key. `said` is for what is posted.
export async function download(path, name, said) {
  const response = await send(path, { ...makePost(said), patience: LONG_PATIENCE_MS });
  save(await response.blob(), name);
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Server-sent events. An EventSource can show no key and posts nothing, so then the stream is read as any other answer.
export function openStream(path, said) {
  return session || said ? new ReadStream(`${BASE}${path}`, said) : new EventSource(`${BASE}${path}`);
}

// As much of an EventSource as the page uses: it goes on behind the last event when it was cut off.
class ReadStream extends EventTarget {
  constructor(address, said) {
    super();
    this.readyState = EventSource.CONNECTING;
    this.onerror = null;
    this.last = null;
    this.aborting = new AbortController();
    this.read(address, makePost(said));
  }

  close() {
    this.readyState = EventSource.CLOSED;
    this.aborting.abort();
  }

  async read(address, { method, body, type }) {
    while (this.readyState !== EventSource.CLOSED) {
      try {
        const headers = makeHeaders(type);
        if (this.last) headers["Last-Event-ID"] = this.last;
        const options = { method, body, headers, cache: "no-store", credentials: "omit", signal: this.aborting.signal };
        const response = await fetch(address, options);
        if (!response.ok) throw new Refused(response.status, "no stream");
        this.readyState = EventSource.OPEN;
        await this.take(response.body.pipeThrough(new TextDecoderStream()).getReader());
      } catch (error) {
        if (error instanceof Refused) this.readyState = EventSource.CLOSED;
      }
      if (this.readyState === EventSource.CLOSED) break;
      this.readyState = EventSource.CONNECTING;
      this.onerror?.();
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
    if (!this.aborting.signal.aborted) this.onerror?.();
  }

  async take(reader) {
    let held = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (held + value).split("\n\n");
      held = events.pop();
      for (const event of events) this.tell(event);
    }
  }

  tell(text) {
    const fields = new Map(text.split("\n").map((line) => line.split(/: (.*)/s)).filter(([name]) => name));
    if (fields.has("id")) this.last = fields.get("id");
    if (fields.has("data")) this.dispatchEvent(new MessageEvent(fields.get("event") ?? "message", { data: fields.get("data") }));
  }
}

async function ask(path, options) {
  const response = await send(path, options);
  return parse(await response.text());
}

// Whatever a node says, events and refusals too.
export function parse(text) {
  return JSON.parse(text, revive);
}

// What does not show, or turns other characters round, is shown as an escape, as commands do.
const UNSEEN = /[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\u{e0000}-\u{e0fff}]/gu;

// A number too large for JavaScript stays what it is, too: nonces and seeds have 64 bits.
function revive(key, value, context) {
  if (typeof value === "string") return value.replace(UNSEEN, (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`);
  const isRounded = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
  return isRounded && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value;
}

function makeHeaders(type) {
  const headers = {};
  if (session) headers.Authorization = `Bearer ${session.key}`;
  if (type) headers["Content-Type"] = type;
  return headers;
}

async function send(path, { method = "GET", body, type, signal, patience = PATIENCE_MS }) {
  const limit = AbortSignal.timeout(patience);
  const response = await fetch(`${BASE}${path}`, {
    method,
    body,
    headers: makeHeaders(type),
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  });
  if (response.ok) return response;
  const said = await response.text().then(parse).catch(() => ({ error: `the node answered ${response.status}` }));
  if (response.status === 401 && session) forgetKey();
  throw new Refused(response.status, said.error);
}
