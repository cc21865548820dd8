// What every page does: fold the tree, open the menu on narrow screens, copy snippets, say what failed.
import { followTree } from "./tree.js";
import { followCopyButtons } from "./copy.js";
import { followLists } from "./lists.js";
import { followNotices } from "./notices.js";
import { forgetQueries } from "./sql_history.js";

followTree(document);
followCopyButtons(document);
followLists(document);
followNotices(document);

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-toggle]");
  if (!button) return;
  const target = document.getElementById(button.dataset.toggle);
  const isOpen = target.classList.toggle("open");
  button.setAttribute("aria-expanded", String(isOpen));
  if (isOpen) target.querySelector("input, a, button")?.focus();
});

// Escape closes what was opened over the page, and gives the focus back.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
    menu.open = false;
  }
  const button = document.querySelector('[data-toggle][aria-expanded="true"]');
  if (!button) return;
  button.click();
  button.focus();
});

// Forms that apply themselves once a choice is made.
document.addEventListener("change", (event) => {
  if (event.target.closest("[data-submit]")) event.target.form.requestSubmit();
});

// Choices that ask before they are sent.
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
}, true);

// Whoever signs out leaves no queries behind.
document.addEventListener("submit", (event) => {
  if (event.target.getAttribute("action") === "/console/sign-out") forgetQueries();
});

// Places for files: what is dropped on one opens the page that its link names.
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    const place = event.target.closest?.("[data-drop]");
    if (!place) return;
    event.preventDefault();
    place.classList.toggle("over", kind === "dragover");
    const file = event.dataTransfer?.files[0];
    if (kind === "drop" && file) import("./upload.js").then((upload) => upload.openWith(place.getAttribute("href"), file));
  });
}
