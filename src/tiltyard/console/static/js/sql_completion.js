// What may stand where the caret is: columns, tables, functions, keywords. Names come from the server, as far as they
// may be seen; each list is fetched once.
import { isName, nameOf, pathOf, tablesOf, tokenize } from "./sql_tokens.js";

const MAX_SUGGESTIONS = 40;
const MAX_TABLES = 12;
const PLAIN = /^[a-z_][a-z0-9_]*$/;

async function fetchJson(address) {
  try {
    const response = await fetch(address);
    return response.ok && response.headers.get("content-type")?.includes("json") ? await response.json() : null;
  } catch {
    return null; // the server is away: there are no suggestions
  }
}

export class Completion {
  constructor(words) {
    this.keywords = new Set(words.keywords);
    this.functions = words.functions;
    this.columns = new Map();
    this.tables = new Map();
  }

  // The suggestions for a text that ends at the caret in `before`, and where what they replace begins.
  async suggest(before, behind) {
    const tokens = tokenize(before);
    const last = tokens.at(-1);
    if (last && (last.kind === "comment" || last.kind === "string")) return null;
    const typed = isName(last) ? last : null;
    const word = typed ? nameOf(typed) : "";
    const qualifiers = [];
    let at = tokens.length - (typed ? 2 : 1);
    while (tokens[at]?.text === "." && isName(tokens[at - 1])) {
      qualifiers.unshift(nameOf(tokens[at - 1]));
      at -= 2;
    }
    const start = typed ? typed.start : before.length;
    while (at >= 0 && ["space", "comment"].includes(tokens[at].kind)) at -= 1;
    const named = tablesOf(tokenize(before + behind), this.keywords).slice(0, MAX_TABLES);
    const found = qualifiers.length
      ? await this.members(qualifiers, named, word)
      : await this.anything(tokens[at], named, word, typed?.kind === "quoted");
    return { start, word, suggestions: rank(found, word) };
  }

  async members(qualifiers, named, word) {
    const known = named.find((table) => qualifiers.length === 1 && table.alias === qualifiers[0]);
    const columns = await this.columnsOf(known?.path ?? pathOf(qualifiers));
    const schema = qualifiers.join("$");
    const tables = (await this.tablesWith(word)).filter((path) => path.length > 1 && path.slice(0, -1).join("$") === schema);
    return [...columns, ...tables.map((path) => ({ kind: "table", text: path.at(-1), insert: this.quote(path.at(-1)) }))];
  }

  async anything(previous, named, word, isQuoted) {
    const tables = (await this.tablesWith(word)).map((path) => ({ kind: "table", text: path.join("."), insert: this.nameOfTable(path) }));
    const lead = previous?.kind === "word" ? previous.text.toLowerCase() : "";
    if (["from", "join", "view", "describe"].includes(lead)) return tables;
    const columns = (await Promise.all(named.map((table) => this.columnsOf(table.path)))).flat();
    const words = isQuoted ? [] : [
      ...[...this.keywords].map((text) => ({ kind: "keyword", text, insert: text })),
      ...this.functions.map((text) => ({ kind: "function", text, insert: `${text}(` })),
    ];
    return [...columns, ...words, ...tables];
  }

  async columnsOf(path) {
    const all = this.tables.get("");
    if (all && (await all)?.has_all && !(await all).tables.some((entry) => same(entry.path, path))) return [];
    const key = JSON.stringify(path);
    if (!this.columns.has(key)) {
      const address = `/console/sql-columns/${path.map(encodeURIComponent).join("/")}`;
      this.columns.set(key, fetchJson(address).then((found) => (found?.columns ?? []).map((column) => (
        { kind: "column", text: column.name, detail: column.type, insert: this.quote(column.name) }))));
    }
    return this.columns.get(key);
  }

  // All tables, where these are few, else those with this in their name.
  async tablesWith(word) {
    const every = await this.listed("");
    const found = every?.has_all || !word ? every : await this.listed(word);
    return (found?.tables ?? []).map((entry) => entry.path);
  }

  listed(word) {
    if (!this.tables.has(word)) {
      this.tables.set(word, fetchJson(`/console/sql-names?q=${encodeURIComponent(word)}`));
    }
    return this.tables.get(word);
  }

  quote(name) {
    return PLAIN.test(name) && !this.keywords.has(name.toUpperCase()) ? name : `"${name.replaceAll('"', '""')}"`;
  }

  nameOfTable(path) {
    const name = this.quote(path.at(-1));
    return path.length > 1 ? `${this.quote(path.slice(0, -1).join("$"))}.${name}` : name;
  }
}

function same(one, other) {
  return one.length === other.length && one.every((name, index) => name === other[index]);
}

// Those that begin with the word, then those that have it in them; each once, in the order in which they came.
function rank(found, word) {
  const sought = word.toLowerCase();
  const begins = [], has = [], seen = new Set();
  for (const entry of found) {
    const name = entry.text.toLowerCase();
    const key = `${entry.kind} ${entry.text}`;
    if (seen.has(key) || !name.includes(sought)) continue;
    seen.add(key);
    if (name.startsWith(sought) || (entry.kind === "table" && name.includes(`.${sought}`))) begins.push(entry);
    else if (entry.kind !== "keyword" && sought.length > 1) has.push(entry);
  }
  return [...begins, ...has].slice(0, MAX_SUGGESTIONS);
}
