// Split SQL into tokens, and find the tables that it names.
const TOKEN = /(?<comment>--[^\n]*|\/\*[^]*?(?:\*\/|$))|(?<string>'[^']*(?:''[^']*)*'?)|(?<quoted>"[^"]*(?:""[^"]*)*"?|`[^`]*`?)|(?<number>\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b)|(?<word>[\p{L}_][\p{L}\p{N}_$]*)|(?<space>\s+)|(?<other>[^])/giu;

export function tokenize(text) {
  const tokens = [];
  for (const match of text.matchAll(TOKEN)) {
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    tokens.push({ kind, text: match[0], start: match.index, end: match.index + match[0].length });
  }
  return tokens;
}

// A name without quotes is one in lower case, as DataFusion reads it.
export function nameOf(token) {
  if (token.kind === "word") return token.text.toLowerCase();
  const quote = token.text[0];
  return token.text.slice(1).replace(new RegExp(`${quote}$`), "").replaceAll(quote + quote, quote);
}

export function isName(token) {
  return token !== undefined && (token.kind === "word" || token.kind === "quoted");
}

// Nested namespaces are one schema, joined by $; the schema public is the root.
export function pathOf(names) {
  const schema = names.slice(0, -1).join("$");
  return [...(schema === "" || schema === "public" ? [] : schema.split("$")), names.at(-1)];
}

// The tables behind FROM, JOIN and their commas, with the names that the query calls them by.
export function tablesOf(tokens, keywords) {
  const tables = [];
  const said = tokens.filter((token) => token.kind !== "space" && token.kind !== "comment");
  for (let at = 0; at < said.length; at += 1) {
    if (said[at].kind !== "word" || !["from", "join"].includes(said[at].text.toLowerCase())) continue;
    do {
      at += 1;
      const names = [];
      while (isName(said[at]) && !isKeyword(said[at], keywords)) {
        names.push(nameOf(said[at]));
        if (said[at + 1]?.text !== ".") break;
        at += 2;
      }
      if (!names.length) break;
      if (said[at + 1]?.text.toLowerCase() === "as") at += 1;
      let alias = names.at(-1);
      if (isName(said[at + 1]) && !isKeyword(said[at + 1], keywords)) {
        at += 1;
        alias = nameOf(said[at]);
      }
      tables.push({ path: pathOf(names), alias });
    } while (said[at + 1]?.text === "," && (at += 1));
  }
  return tables;
}

export function isKeyword(token, keywords) {
  return token.kind === "word" && keywords.has(token.text.toUpperCase());
}
