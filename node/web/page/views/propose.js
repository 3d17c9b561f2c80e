// One place to propose a change. First the node says what it would do, and signs nothing; then it is asked once more.

import { Act, mayAct } from "../act.js";
import { LONG_PATIENCE_MS, post } from "../api.js";
import { html, useState } from "../lib.js";
import { Card, Diff, Facts, State, Warnings } from "../parts.js";
import { KINDS, describeMissing, showId, showName } from "../words.js";

const REFUSED = [400, 409]; // what is asked for cannot be; anything else is no field's fault

// Each kind of change: its fields, what they ask the node for, and what is signed. What is wrong with a term shows beside
// the field of its name, or the one in `places`, or `main`.
const CHANGES = {
  start_run: {
    label: "the next run",
    main: "set",
    places: { select: "patience" },
    Fields: RunFields,
    read: (given) => ({
      set: [...readLines(given.get("set")), ...["by", "patience", "evaluate"].filter((name) => given.get(name)).map((name) => `select.${name}=${given.get(name)}`)],
      initial: given.get("initial"),
      ...(given.get("rounds") === "" ? {} : { rounds: Number(given.get("rounds")) }),
    }),
    describe: ({ run }) => run.number,
  },
  set_rounds: {
    label: "other rounds for the run in force",
    main: "rounds",
    Fields: ({ trouble }) => html`<${Field} name="rounds" label="rounds in all; 0: no end" trouble=${trouble} type="number" min="0" required />`,
    read: (given) => ({ rounds: Number(given.get("rounds")) }),
    describe: ({ run, rounds }) => `of run ${run} to ${rounds[1]}`,
  },
  end_run: {
    label: "the end of the run in force",
    Fields: () => null,
    read: () => ({}),
    describe: ({ run }) => run,
  },
  add_member: {
    label: "a new member",
    main: "request",
    Fields: ({ trouble }) => html`<${Field} as="textarea" name="request" label="join request, the line that fednode init printed; or NAME=ID" trouble=${trouble} rows="3" required />`,
    read: (given) => ({ request: given.get("request").trim() }),
    describe: nameMember,
    advice: "Compare the whole id above with who asks to join, by voice, before you sign.",
  },
  remove_member: {
    label: "that a member goes",
    main: "name",
    Fields: ({ trouble, members }) => html`<${Field} as="select" name="name" label="member" trouble=${trouble} required>
      <option value="">–</option>
      ${members.map((member) => html`<option key=${member.id} value=${member.id}>${showName(member.name, member.id)}${member.me ? ", this node" : ""}</option>`)}
    <//>`,
    read: (given) => ({ name: given.get("name") }),
    describe: nameMember,
  },
  set_rules: {
    label: "other rules",
    main: "set",
    Fields: ({ trouble }) => html`<${Field} as="textarea" name="set" label="rules, a line PATH=VALUE each" trouble=${trouble} rows="3" placeholder="waits.collect_s=5" required />`,
    read: (given) => ({ set: readLines(given.get("set")) }),
    describe: (terms, differences) => differences.map((one) => one.path).join(", "),
  },
};

function RunFields({ trouble }) {
  return html`
    <p class="small soft">What is not named here stays as it is in the run in force.</p>
    <${Field} as="textarea" name="set" label="settings, a line KEY=VALUE each" trouble=${trouble} rows="4" placeholder=${"lr=0.05\nmodel.hidden=[32]"} />
    <div class="row">
      <${Field} name="rounds" label="rounds; 0: no end" trouble=${trouble} type="number" min="0" />
      <${Field} as="select" name="initial" label="begins" trouble=${trouble}>
        <option value="continue">from the model in force</option>
        <option value="new">anew, as the node draws it</option>
      <//>
      <${Field} as="select" name="by" label="best round by" trouble=${trouble}>
        <option value="">–</option>
        <option value="loss">loss</option>
        <option value="auc">AUC</option>
      <//>
      <${Field} name="patience" label="ends after so many rounds without a better one" trouble=${trouble} type="number" min="0" />
      <${Field} as="select" name="evaluate" label="at its end every site measures the best model" trouble=${trouble}>
        <option value="">–</option>
        <option value="true">yes</option>
        <option value="false">no</option>
      <//>
    </div>`;
}

function readLines(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

function nameMember(terms, differences) {
  const { path, old, new: added } = differences.find((one) => one.path.startsWith("members."));
  return showName(path.slice("members.".length), JSON.parse(added ?? old));
}

function Field({ as = "input", name, label, trouble, children, ...options }) {
  const isWrong = trouble?.field === name;
  const id = `trouble-${name}`;
  return html`<div class="field">
    <label>${label} <${as} name=${name} aria-invalid=${isWrong} aria-describedby=${isWrong ? id : null} ...${options}>${children}<//></label>
    ${isWrong && html`<div id=${id} role="alert"><${State} state="bad">${trouble.text}<//></div>`}
  </div>`;
}

function findTrouble({ main = null, places = {} }, form, { code, message }) {
  const named = /^(?:--set )?(\w+)/.exec(message)?.[1];
  const found = places[named] ?? named;
  const field = form.elements.namedItem(found) ? found : main;
  return { field: REFUSED.includes(code) ? field : null, text: message };
}

export function Propose({ members, status }) {
  const [kind, setKind] = useState("start_run");
  const [draft, setDraft] = useState(null);
  const [made, setMade] = useState(null);
  const [state, setState] = useState({ busy: false, trouble: null });
  const change = CHANGES[kind];
  const choose = (event) => {
    setKind(event.target.value);
    setState({ busy: false, trouble: null });
  };
  const onSubmit = (event) => {
    event.preventDefault();
    const form = event.target;
    const given = new FormData(form);
    const said = { kind, terms: change.read(given), note: given.get("note").trim() };
    setMade(null);
    setState({ busy: true, trouble: null });
    post("/propose", { ...said, dry_run: true }, LONG_PATIENCE_MS).then(
      (proposal) => {
        setDraft({ said, proposal });
        setState({ busy: false, trouble: null });
      },
      (error) => setState({ busy: false, trouble: findTrouble(change, form, error) }),
    );
  };
  const end = (record) => {
    setDraft(null);
    setMade(record);
  };
  return html`<${Card} title="Propose a change">
    ${draft && html`<${Draft} draft=${draft} status=${status} onBack=${() => setDraft(null)} onDone=${end} />`}
    <form class="stack" hidden=${draft !== null} onSubmit=${onSubmit} aria-label="propose a change">
      <div class="field"><label>what <select name="kind" value=${kind} disabled=${state.busy} onChange=${choose}>
        ${Object.entries(CHANGES).map(([name, { label }]) => html`<option key=${name} value=${name}>${label}</option>`)}
      </select></label></div>
      <div class="stack" key=${`${kind} ${made?.id}`}>
        <${change.Fields} trouble=${state.trouble} members=${members} />
        <${Field} name="note" label="note, on the chain with it" trouble=${state.trouble} maxlength="500" />
      </div>
      <div class="row">
        <button disabled=${state.busy || !mayAct()}>${state.busy ? "asking the node…" : "Look at it…"}</button>
        ${state.trouble?.field === null && html`<div role="alert"><${State} state="bad">${state.trouble.text}<//></div>`}
        ${made && html`<${State} state="ok">Proposed as change ${showId(made.id)}. It waits above for the others.<//>`}
      </div>
    </form>
  <//>`;
}

function Draft({ draft: { said, proposal }, status, onBack, onDone }) {
  const { describe, advice } = CHANGES[said.kind];
  const signs = `“${KINDS[said.kind]}” ${describe(JSON.parse(proposal.terms), proposal.differences)}, and yes to it`;
  return html`<article aria-label="a proposal">
    <h3>What you are about to propose</h3>
    <${Diff} differences=${proposal.differences} />
    <${Facts} facts=${[["note", proposal.note], ["lacks then", describeMissing(proposal.missing)]]} />
    <${Warnings} texts=${proposal.warnings} />
    <div class="row">
      <button onClick=${onBack}>Back</button>
      <${Act} label="Propose" isMain title="Propose this change?" text="Every member is asked. This site's yes goes along with it." path="/propose" said=${{ ...said, shown: proposal.terms }} signs=${signs} status=${status} onDone=${onDone}>
        <${Diff} differences=${proposal.differences} />
        ${advice && html`<p>${advice}</p>`}
      <//>
    </div>
  </article>`;
}
