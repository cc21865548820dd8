// The editor: a text area, whose colours are a layer below it, with a list of suggestions at its caret.
import { isKeyword, tokenize } from "./sql_tokens.js";

const MAX_COLOURED = 30_000;
const PAUSE_MS = 120;

export class Editor {
  constructor(area, layer, list, completion, tell) {
    Object.assign(this, { area, layer, list, completion, tell });
    this.functions = new Set(completion.functions);
    this.wrong = -1;
    this.suggestions = [];
    this.active = -1;
    this.asked = 0;
    area.closest(".editor").classList.add("is-coloured");
    area.setAttribute("aria-autocomplete", "list");
    area.setAttribute("aria-controls", list.id);
    area.addEventListener("input", () => { this.wrong = -1; this.paint(); this.follow(); });
    area.addEventListener("scroll", () => { layer.scrollTop = area.scrollTop; layer.scrollLeft = area.scrollLeft; });
    area.addEventListener("keydown", (event) => { if (this.press(event)) { event.preventDefault(); event.stopPropagation(); } });
    area.addEventListener("blur", () => this.close());
    area.addEventListener("click", () => this.close());
    list.addEventListener("pointerdown", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) { event.preventDefault(); this.accept([...list.children].indexOf(option)); }
    });
    this.paint();
  }

  get text() { return this.area.value; }

  replace(text) {
    this.area.focus();
    this.area.select();
    this.insert(text);
  }

  // As typed, so that the browser's undo takes it back.
  insert(text) {
    if (!document.execCommand("insertText", false, text)) {
      this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
      this.area.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  // Colours

  paint() {
    const text = this.area.value;
    const parts = text.length > MAX_COLOURED ? [text] : tokenize(text).map((token) => this.coloured(token));
    this.layer.replaceChildren(...parts, "\n");
    this.layer.scrollTop = this.area.scrollTop;
  }

  coloured(token) {
    const isWrong = this.wrong >= token.start && this.wrong < token.end;
    let kind = { comment: "comment", string: "string", number: "number" }[token.kind];
    if (isKeyword(token, this.completion.keywords)) kind = "keyword";
    else if (token.kind === "word" && this.functions.has(token.text.toLowerCase())) kind = "function";
    if (!kind && !isWrong) return token.text;
    const span = document.createElement("span");
    span.className = `${kind ?? ""}${isWrong ? " wrong" : ""}`;
    span.textContent = token.text;
    return span;
  }

  showWrong(offset) {
    this.wrong = Math.min(offset, Math.max(0, this.area.value.length - 1));
    this.paint();
    this.area.focus();
    this.area.setSelectionRange(offset, offset);
  }

  // Suggestions

  follow() {
    const asked = ++this.asked;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.suggest(asked, false), PAUSE_MS);
  }

  async suggest(asked, isWanted) {
    const caret = this.area.selectionStart, text = this.area.value;
    const found = await this.completion.suggest(text.slice(0, caret), text.slice(caret));
    if (asked !== this.asked || document.activeElement !== this.area || this.area.selectionStart !== caret) return;
    const isComplete = found?.suggestions.length === 1 && found.suggestions[0].insert === text.slice(found.start, caret);
    const isMember = text[found?.start - 1] === ".";
    if (!found?.suggestions.length || isComplete || !(isWanted || found.word || isMember)) { this.close(); return; }
    this.open(found, isWanted ? 0 : -1);
  }

  open(found, active) {
    this.suggestions = found.suggestions;
    this.start = found.start;
    this.list.replaceChildren(...found.suggestions.map((entry, index) => {
      const option = document.createElement("li");
      option.id = `suggestion-${index}`;
      option.setAttribute("role", "option");
      const name = document.createElement("bdi");
      name.textContent = entry.text;
      const detail = document.createElement("small");
      detail.textContent = entry.detail ?? entry.kind;
      option.append(name, detail);
      return option;
    }));
    this.list.hidden = false;
    this.place();
    this.activate(active);
    this.tell(`${found.suggestions.length} suggested, first ${found.suggestions[0].text}: Tab takes it, the arrow keys choose.`);
  }

  place() {
    const frame = this.area.closest(".editor").getBoundingClientRect();
    const caret = this.rectangle(this.start);
    const left = Math.max(0, Math.min(caret.left - frame.left, frame.width - this.list.offsetWidth));
    this.list.style.left = `${left}px`;
    this.list.style.top = `${Math.min(caret.bottom - frame.top, frame.height) + 2}px`;
  }

  rectangle(offset) {
    const walker = document.createTreeWalker(this.layer, NodeFilter.SHOW_TEXT);
    let left = offset;
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (left <= node.length) {
        const range = document.createRange();
        range.setStart(node, left);
        range.setEnd(node, Math.min(left + 1, node.length));
        return range.getBoundingClientRect();
      }
      left -= node.length;
    }
    return this.area.getBoundingClientRect();
  }

  close() {
    this.asked += 1;
    clearTimeout(this.timer);
    this.list.hidden = true;
    this.suggestions = [];
    this.activate(-1);
  }

  activate(index) {
    this.active = index;
    [...this.list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === index)));
    const option = this.list.children[index];
    if (!option) { this.area.removeAttribute("aria-activedescendant"); return; }
    this.area.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  accept(index) {
    const entry = this.suggestions[index];
    this.area.setSelectionRange(this.start, this.area.selectionStart);
    this.insert(entry.insert);
    this.close();
  }

  // Return whether a key was the list's; others are the text area's, or the page's.
  press(event) {
    if (event.ctrlKey && event.key === " ") {
      this.suggest(++this.asked, true);
      return true;
    }
    if (this.list.hidden || event.ctrlKey || event.metaKey || event.altKey) return false;
    const count = this.suggestions.length;
    if (event.key === "ArrowDown") this.activate((this.active + 1) % count);
    else if (event.key === "ArrowUp") this.activate(this.active > 0 ? this.active - 1 : count - 1);
    else if (event.key === "Escape") this.close();
    else if (event.key === "Tab" && !event.shiftKey) this.accept(Math.max(0, this.active));
    else if (event.key === "Enter" && this.active >= 0) this.accept(this.active);
    else return false;
    return true;
  }
}
