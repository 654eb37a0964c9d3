"use strict";
const COLOURS = 8;

function sortBy(head) {
  const now = head.getAttribute("aria-sort");
  const turned = now === "ascending" ? "descending" : "ascending";
  const order = now === "none" ? head.dataset.first : turned;
  for (const other of head.parentElement.cells) {
    other.setAttribute("aria-sort", other === head ? order : "none");
  }
  const sign = order === "ascending" ? 1 : -1;
  const value = (row) => row.cells[head.cellIndex].dataset.value;
  const compare = (a, b) => {
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    return sign * (head.cellIndex ? a - b : a.localeCompare(b));
  };
  const body = head.closest("table").tBodies[0];
  body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b))));
}

function paint(box) {
  const parts = [...document.querySelectorAll(`[data-system="${box.value}"]`)];
  if (!box.checked) {
    for (const part of parts) delete part.dataset.colour;
    return;
  }
  const taken = [...document.querySelectorAll("label[data-colour]")].map((l) => l.dataset.colour);
  const free = [...Array(COLOURS).keys()].find((colour) => !taken.includes(String(colour)));
  for (const part of parts) {
    part.dataset.colour = free ?? taken.length % COLOURS;
    if (part instanceof SVGElement) part.parentNode.append(part);
  }
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.parentElement));
}
for (const box of document.querySelectorAll("fieldset label[data-system] input")) {
  box.addEventListener("change", () => paint(box));
}
const only = document.getElementById("only");
only.addEventListener("change", () => document.body.classList.toggle("only-chosen", only.checked));

let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});
