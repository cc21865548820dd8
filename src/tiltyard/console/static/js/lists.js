// Lists of narrow screens stand as blocks, a row each: their cells are told by the heads of their columns.
export function followLists(root) {
  labelCells(root);
  root.addEventListener("htmx:afterSettle", () => labelCells(root));
}

function labelCells(root) {
  for (const table of root.querySelectorAll(".scroll > .list")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    for (const row of table.querySelectorAll("tbody > tr:not([data-labelled])")) {
      row.dataset.labelled = "";
      [...row.cells].forEach((cell, index) => {
        if (cell.tagName === "TD" && cell.colSpan === 1 && heads[index]) cell.dataset.label = heads[index];
      });
    }
  }
}
