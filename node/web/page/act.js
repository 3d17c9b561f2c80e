// Acting: a step that says what will happen, and where something is signed what and as whom; then the call, and what came
// of it. Without a key that may act the buttons say how to get one.

import { getRole, post } from "./api.js";
import { html, useEffect, useRef, useState } from "./lib.js";
import { refresh } from "./live.js";
import { Facts, Note, Notes } from "./parts.js";
import { showId } from "./words.js";

export function mayAct() {
  return getRole() === "admin";
}

// A button that asks once more. `path` and `said` are the call; `signs` says what is signed, null where nothing is.
export function Act({ label, title, text, path, said, signs = null, status, isMain = false, disabled = false, onDone, children }) {
  const dialog = useRef(null);
  const [state, setState] = useState({ busy: false, error: null });
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    if (isOpen) dialog.current.showModal();
  }, [isOpen]);
  const close = () => {
    setOpen(false);
    setState({ busy: false, error: null });
  };
  const go = async () => {
    setState({ busy: true, error: null });
    try {
      const record = await post(path, said);
      close();
      refresh();
      onDone?.(record);
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  const hint = mayAct() ? null : "this page may only look: run fednode open where the node runs";
  return html`
    <button class=${isMain ? "main" : ""} disabled=${disabled || !mayAct()} title=${hint} onClick=${() => setOpen(true)}>${label}</button>
    ${isOpen && html`<dialog ref=${dialog} aria-label=${title} onClose=${close}>
      <h2>${title}</h2>
      <p>${text}</p>
      ${children}
      ${signs && html`<${Facts} facts=${[
        ["signed", signs],
        ["as", `${status.name} (${showId(status.id)}…)`],
        ["on chain", html`${status.chain_name} <code>${showId(status.chain_id)}</code>`],
      ]} />
      <p class="small soft">A signature cannot be taken back. It stays on the chain, where every member can check it.</p>`}
      ${state.error && html`<${Notes}><${Note} state="bad" what=${state.error.message} /><//>`}
      <div class="row">
        <button onClick=${close}>Cancel</button>
        <button class="main" disabled=${state.busy} onClick=${go}>${signs ? "Sign and send" : label}</button>
      </div>
    </dialog>`}`;
}

// Said once on a view with buttons.
export function ActHint() {
  if (mayAct()) return null;
  return html`<p class="small soft">This page only looks. To act from it, run <code>fednode open</code> where the node runs, and open the address that it prints.</p>`;
}
