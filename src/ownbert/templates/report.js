// Sorts a table by the column whose heading is clicked; numbers by their size, largest first.
"use strict";
const scales = {kB: 1e3, MB: 1e6, GB: 1e9, min: 60, h: 3600};
function numberIn(text) {
  const match = /^([+-]?[\d,.]+(?:e[+-]?\d+)?)\s*(\w*)/i.exec(text);
  return match ? Number(match[1].replaceAll(",", "")) * (scales[match[2]] ?? 1) : NaN;
}
for (const head of document.querySelectorAll("div.scroll th:not(.fixed)")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0], column = head.cellIndex;
    const before = head.getAttribute("aria-sort");
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    const rows = Array.from(body.rows), cell = row => row.cells[column].textContent;
    const numeric = rows.every(row => !cell(row) || !isNaN(numberIn(cell(row))));
    const up = before ? before === "descending" : !numeric;
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    rows.sort((a, b) => (up ? 1 : -1) * (numeric
      ? (numberIn(cell(a)) || 0) - (numberIn(cell(b)) || 0)
      : cell(a).localeCompare(cell(b))));
    body.append(...rows);
  });
}
