// Tables to take along, as CSV.

import { save } from "./api.js";

// Rows of cells, the headings first; `name` without its ending.
export function saveTable(name, rows) {
  const text = rows.map((row) => row.map((cell) => quote(cell ?? "")).join(",")).join("\n");
  save(new Blob([`${text}\n`], { type: "text/csv" }), `${name}.csv`);
}

// A cell that a spreadsheet takes for a formula is one no longer.
function quote(cell) {
  const text = typeof cell === "string" && /^[=+\-@\t]/.test(cell) ? `'${cell}` : String(cell);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
