// A table of blocks, as `fednode chain list` has it.

import { html } from "./lib.js";
import { Table } from "./parts.js";
import { showBytes, showId, showTime } from "./words.js";

export function BlockTable({ blocks }) {
  return html`<${Table}
    label="blocks"
    rows=${blocks}
    getKey=${(block) => block.id}
    columns=${[
      ["height", (block) => html`<a href=${`#/chain/${block.height}`}>${block.height}</a>`, "number"],
      ["id", (block) => html`<code title=${block.id}>${showId(block.id)}</code>`],
      ["time (UTC)", (block) => showTime(block.time)],
      ["miner", (block) => block.miner_name ?? "genesis"],
      ["contributions", (block) => `${block.num_contributions}/${block.num_members}`, "number"],
      ["votes", (block) => `${block.num_votes}/${block.num_members}`, "number"],
      ["size", (block) => showBytes(block.bytes), "number"],
    ]}
  />`;
}
