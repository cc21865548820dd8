// Say so where a part of a page could not be loaded: the server is away, or the connection was cut.
export function followNotices(root) {
  const notice = () => root.getElementById("notice");
  const say = (text) => { if (notice()) notice().textContent = text; };
  root.addEventListener("htmx:sendError", () => {
    say("The server did not answer. What is shown may be old: check that it runs, then load the page again.");
  });
  root.addEventListener("htmx:timeout", () => say("The server took too long to answer: load the page again."));
  root.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful) say("");
  });
}
