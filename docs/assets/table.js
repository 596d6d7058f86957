// Tables that sort by a click on a head. `sortable(table)` does it to one; on the site's pages every
// table inside `.sortable` gets it, and one field above the first filters the lines of all of them.
// Shared with the page of every problem (docs/suite_page.py), which is one file.
"use strict";

/** Sort by a column's values: `data-value` or the text; numbers before words, blanks at the end. */
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const name = head.textContent;
    for (const row of table.tBodies[0].rows) {
      row.cells[column].dataset.column = name;
      if (row.cells[column].textContent === "–") row.cells[column].dataset.none = "";
    }
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending" ||
        (!head.hasAttribute("aria-sort") && head.dataset.first === "descending");
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      order(table, column, down);
    });
  });
}

function order(table, column, down) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [value(row.cells[column]), row]);
  keyed.sort(([a], [b]) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const apart = typeof a === "number" && typeof b === "number"
      ? a - b
      : typeof a === typeof b ? a.localeCompare(b, "en", { numeric: true })
      : typeof a === "number" ? -1 : 1;
    return down ? -apart : apart;
  });
  body.append(...keyed.map(([, row]) => row));
}

function value(cell) {
  const text = (cell.dataset.value ?? cell.textContent).trim();
  return /^[-−]?[\d.,]+$/.test(text) ? Number(text.replace("−", "-").replaceAll(",", "")) : text;
}

/** Lines that hold every word of the text stay; tables and their headings without any go. */
function filtered(tables, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const table of tables) {
    for (const row of table.tBodies[0].rows) {
      const said = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => said.includes(word));
      shown += !row.hidden;
    }
  }
  return shown;
}

/** Of a table of figures: cells that hold no sentence stay on one line. */
const SHORT = 28;

function enable() {
  for (const cell of document.querySelectorAll(".md-typeset td")) {
    const sentence = cell.textContent.length > SHORT || cell.closest(".sortable");
    cell.classList.toggle("short", !sentence);
  }
  const tables = [...document.querySelectorAll(".sortable table")];
  if (!tables.length || document.querySelector(".table-filter")) return;
  tables.forEach(sortable);
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Filter the lines";
  const count = document.createElement("output");
  const say = () => {
    const shown = filtered(tables, field.value);
    count.textContent = field.value ? `${shown} of ${all} lines` : `${all} lines`;
  };
  const all = filtered(tables, "");
  field.addEventListener("input", say);
  say();
  const line = document.createElement("p");
  line.className = "table-filter";
  line.append(field, " ", count);
  // Above the heading of the first table, so that it stands for all of them.
  const first = tables[0].closest(".sortable");
  const before = first.previousElementSibling;
  (before && /^H[2-6]$/.test(before.tagName) ? before : first).before(line);
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", enable);
else enable();
