// A table of rounds, as `fednode rounds` has it.

import { html } from "./lib.js";
import { State, Table } from "./parts.js";
import { showNumber, showSeconds } from "./words.js";

export function RoundTable({ rounds }) {
  return html`<${Table}
    label="rounds"
    rows=${rounds}
    getKey=${(round) => round.height}
    columns=${[
      ["round", (round) => html`<a href=${`#/round/${round.height}`}>${round.run > 1 ? `${round.round} of run ${round.run}` : round.round}</a>`, "number"],
      ["contributions", (round) => `${round.contributors.length}/${round.num_members}`, "number"],
      ["seconds", (round) => showSeconds(round.seconds.wall), "number"],
      ["accuracy before", (round) => showNumber(round.local_accuracy, 3), "number"],
      ["after", (round) => showNumber(round.accuracy, 3), "number"],
      ["val loss", (round) => showNumber(round.apply.val_loss, 3), "number"],
      ["", describe],
    ]}
  />`;
}

function describe(round) {
  const signs = Object.keys(round.signs).map((name) => name.replace("_", " "));
  return html`${round.best && html`<${State} state="ok">best<//> `}<span class="soft">${signs.join(", ")}</span>`;
}
