// The tree: folding by its buttons, and moving through it by the arrow keys. It is one stop of the Tab key.
const STOPS = "a, .more button";

export function followTree(root) {
  const tree = root.getElementById("tree");
  if (!tree) return;
  tree.addEventListener("click", (event) => {
    const twist = event.target.closest(".twist");
    if (twist) fold(twist, twist.getAttribute("aria-expanded") !== "true");
    chooseStop(tree);
  });
  tree.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (move(tree, event.target, event.key)) event.preventDefault();
  });
  tree.addEventListener("focusin", () => chooseStop(tree));
  tree.addEventListener("htmx:afterSettle", () => chooseStop(tree));
  chooseStop(tree);
}

// The Tab key comes to where the focus is or was, else to the page that is shown, else to the first entry.
function chooseStop(tree) {
  const stops = [...tree.querySelectorAll(STOPS)];
  const shown = stops.filter((stop) => stop.offsetParent !== null);
  const among = shown.length ? shown : stops;
  const chosen = among.find((stop) => stop === document.activeElement)
    ?? among.find((stop) => stop.getAttribute("tabindex") === "0")
    ?? among.find((stop) => stop.hasAttribute("aria-current"))
    ?? among[0];
  for (const stop of stops) stop.setAttribute("tabindex", stop === chosen ? "0" : "-1");
}

function fold(twist, isOpen) {
  twist.setAttribute("aria-expanded", String(isOpen));
  const inner = twist.closest("li").querySelector("ul");
  if (inner) inner.hidden = !isOpen;
}

function move(tree, from, key) {
  const stops = [...tree.querySelectorAll(STOPS)].filter((stop) => stop.offsetParent !== null);
  const item = from.closest("li");
  const at = stops.indexOf(item?.querySelector(STOPS));
  const twist = item?.querySelector(":scope > .branch > .twist");
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: stops.length - 1 }[key];
  if (next !== undefined) {
    stops[next]?.focus();
    return true;
  }
  if (key === "ArrowRight" && twist && twist.getAttribute("aria-expanded") === "false") {
    twist.click();
    return true;
  }
  if (key === "ArrowLeft") {
    if (twist && twist.getAttribute("aria-expanded") === "true") twist.click();
    else item?.parentElement.closest("li")?.querySelector("a")?.focus();
    return true;
  }
  return false;
}
