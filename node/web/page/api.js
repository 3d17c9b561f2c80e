// The node's records, and acts, under /api/v1/. The key of `fednode open` is kept for this tab alone.

const BASE = "api/v1";
const KEPT = "fednode-key";
const PATIENCE_MS = 20000;

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

export function post(path, said) {
  return ask(path, { method: "POST", body: JSON.stringify(said), type: "application/json" });
}

export function postFile(path, file) {
  return ask(path, { method: "POST", body: file, type: "application/octet-stream" });
}

// Saves what an address gives as a file; a link alone could not show the key.
export async function download(path, name) {
  const response = await send(path, {});
  save(await response.blob(), name);
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export function openStream(path) {
  return new EventSource(`${BASE}${path}`);
}

async function ask(path, options) {
  const response = await send(path, options);
  return JSON.parse(await response.text(), keepWhole);
}

// A number too large for JavaScript stays what it is: nonces and seeds have 64 bits.
function keepWhole(key, value, context) {
  const isRounded = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
  return isRounded && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value;
}

async function send(path, { method = "GET", body, type, signal }) {
  const headers = {};
  if (session) headers.Authorization = `Bearer ${session.key}`;
  if (type) headers["Content-Type"] = type;
  const limit = AbortSignal.timeout(PATIENCE_MS);
  const response = await fetch(`${BASE}${path}`, {
    method,
    body,
    headers,
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({ error: `the node answered ${response.status}` }));
  if (response.status === 401 && session) forgetKey();
  throw new Refused(response.status, said.error);
}
