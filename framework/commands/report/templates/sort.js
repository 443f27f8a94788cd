"use strict";
// Headers become buttons that sort their column; rows without a value stay last. Without this script the page is the same, unsorted.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const up = before === null ? !head.hasAttribute("data-number") || column === 0 : before !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [key(row.cells[column], head.hasAttribute("data-number")), row]);
      rows.sort(([a], [b]) => compare(a, b, up));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

function key(cell, isNumber) {
  if (!isNumber) return cell.textContent.trim();
  return cell.hasAttribute("data-sort") ? Number(cell.getAttribute("data-sort")) : null;
}

function compare(a, b, up) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
  return up ? order : -order;
}
