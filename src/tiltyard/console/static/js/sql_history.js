// The queries of one person in this browser, the newest first; they end with the session.
export const PREFIX = "tiltyard.sql.";
const MAX_ENTRIES = 50;
const MAX_CHARACTERS = 100_000;

export class History {
  constructor(person) {
    this.key = `${PREFIX}history.${person}`;
    this.draftKey = `${PREFIX}draft.${person}`;
  }

  get entries() {
    try {
      const found = JSON.parse(localStorage.getItem(this.key) ?? "[]");
      return Array.isArray(found) ? found.filter((entry) => typeof entry?.text === "string").slice(0, MAX_ENTRIES) : [];
    } catch {
      return []; // what is there is no list of ours, or the browser keeps nothing
    }
  }

  add(text) {
    let left = MAX_CHARACTERS;
    const entries = [{ text, at: Date.now() }, ...this.entries.filter((entry) => entry.text !== text)];
    write(localStorage, this.key, JSON.stringify(entries.slice(0, MAX_ENTRIES).filter((entry) => (left -= entry.text.length) >= 0)));
  }

  clear() { localStorage.removeItem(this.key); }

  // What is written and was not run, in this tab.
  get draft() {
    try { return sessionStorage.getItem(this.draftKey) ?? ""; } catch { return ""; }
  }

  set draft(text) { write(sessionStorage, this.draftKey, text.slice(0, MAX_CHARACTERS)); }
}

function write(storage, key, text) {
  try { storage.setItem(key, text); } catch { /* the browser keeps nothing, or no more */ }
}

export function forgetQueries() {
  for (const storage of [localStorage, sessionStorage]) {
    for (const key of Object.keys(storage)) if (key.startsWith(PREFIX)) storage.removeItem(key);
  }
}

// Fill the menu of the history.
export function showHistory(menu, history, take) {
  const body = menu.querySelector(".menu-body");
  const entries = history.entries;
  body.replaceChildren(...entries.map((entry) => button(entry.text, new Date(entry.at).toLocaleString(), () => take(entry.text))));
  if (entries.length) body.append(Object.assign(button("Clear the history", "", () => { history.clear(); menu.open = false; }), { className: "quiet" }));
  else body.append(Object.assign(document.createElement("p"), { className: "muted", textContent: "Queries that you run are kept here, in this browser, until you sign out." }));
}

function button(text, detail, act) {
  const made = Object.assign(document.createElement("button"), { type: "button", title: detail });
  const name = Object.assign(document.createElement("bdi"), { textContent: text.slice(0, 300) });
  made.append(name);
  made.addEventListener("click", act);
  return made;
}
