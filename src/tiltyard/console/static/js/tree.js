// The tree: folding by its buttons, and moving through it by the arrow keys.
export function followTree(root) {
  root.addEventListener("click", (event) => {
    const twist = event.target.closest(".twist");
    if (twist) fold(twist, twist.getAttribute("aria-expanded") !== "true");
  });
  root.addEventListener("keydown", (event) => {
    const tree = event.target.closest(".tree");
    if (!tree || event.altKey || event.ctrlKey || event.metaKey) return;
    if (move(tree, event.target, event.key)) event.preventDefault();
  });
}

function fold(twist, isOpen) {
  twist.setAttribute("aria-expanded", String(isOpen));
  const inner = twist.closest("li").querySelector("ul");
  if (inner) inner.hidden = !isOpen;
}

function move(tree, from, key) {
  const links = [...tree.querySelectorAll("a")].filter((link) => link.offsetParent !== null);
  const item = from.closest("li");
  const at = links.indexOf(item?.querySelector("a"));
  const twist = item?.querySelector(":scope > .branch > .twist");
  if (key === "ArrowDown" || key === "ArrowUp") {
    links[at + (key === "ArrowDown" ? 1 : -1)]?.focus();
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
