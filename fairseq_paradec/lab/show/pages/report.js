// Tables that a click on a column's head sorts, commands that a click copies, and what the viewer
// of traces, which has a page to itself elsewhere, must not hear here.

const NUMBER = /^[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?/i;
const BLANK = new Set(["", "-", "not run", "unknown"]);
const order = new Intl.Collator("en", { numeric: true });

/** How two cells compare: in columns of numbers by the first number, then (dates) as text. */
function comparison(cells) {
  const filled = cells.filter((cell) => !BLANK.has(cell));
  if (filled.every((cell) => NUMBER.test(cell))) {
    return (a, b) => parseFloat(a) - parseFloat(b) || order.compare(a, b);
  }
  return (a, b) => order.compare(a, b);
}

/** Make the heads of a table's columns buttons: rising, falling, and as it was. */
function sortable(table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  if (rows.length < 2) return;

  function sort(column) {
    const next = { none: "ascending", ascending: "descending", descending: "none" };
    const way = next[heads[column].getAttribute("aria-sort")];
    for (const head of heads) head.setAttribute("aria-sort", "none");
    heads[column].setAttribute("aria-sort", way);
    const cell = (row) => row.cells[column].textContent;
    const compare = comparison(rows.map(cell));
    const sign = way === "descending" ? -1 : 1;
    const sorted = [...rows];
    if (way !== "none") {
      sorted.sort((a, b) => {
        const [left, right] = [cell(a), cell(b)];
        const blanks = BLANK.has(left) - BLANK.has(right); // last, either way
        return blanks || (BLANK.has(left) ? 0 : sign * compare(left, right));
      });
    }
    body.append(...sorted);
  }

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(column));
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
  });
}

/** Put a button beside a command, which copies it, or selects it where that is not allowed. */
function copyable(box) {
  const code = box.querySelector("pre");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
  });
  box.append(button);
}

document.querySelectorAll("section.file table.grid").forEach(sortable);
document.querySelectorAll(".command").forEach(copyable);

// Links lead to other parts of the page, too, which are no sentences; keys scroll its tables.
addEventListener("hashchange", (event) => {
  if (document.getElementById(decodeURIComponent(location.hash.slice(1)))) event.stopImmediatePropagation();
});
addEventListener("keydown", (event) => {
  if (!document.activeElement.closest("#viewer")) event.stopPropagation();
}, true);
