// The SQL page: run, explain and cancel a query without leaving the text; history; completion; charts.
import { Completion } from "./sql_completion.js";
import { Editor } from "./sql_editor.js";
import { History, showHistory } from "./sql_history.js";
import { offerChart } from "./sql_chart.js";

const form = document.getElementById("sql-form");
const area = document.getElementById("query");
const result = document.getElementById("result");
const status = document.getElementById("sql-status");
const cancelButton = document.getElementById("cancel");
const menu = document.getElementById("history");
const history = new History(form.dataset.person);
const say = (text) => { status.textContent = text; status.classList.remove("visually-hidden"); };
const tell = (text) => { status.textContent = text; status.classList.add("visually-hidden"); }; // what the page shows by itself
const editor = new Editor(area, form.querySelector(".colours"), document.getElementById("suggestions"), new Completion(JSON.parse(form.dataset.words)), tell);
let running = null;

async function run(action) {
  if (running) return;
  const started = performance.now();
  running = new AbortController();
  history.add(editor.text);
  const body = new URLSearchParams(new FormData(form));
  body.set("action", action);
  const ticking = setInterval(() => say(`Running for ${Math.round((performance.now() - started) / 1000)} s.`), 1000);
  setRunning(true);
  say("Running.");
  try {
    const response = await fetch(form.getAttribute("action"), { method: "POST", body, headers: { "hx-request": "true" }, signal: running.signal });
    const redirect = response.headers.get("hx-redirect");
    if (redirect) { location.assign(redirect); return; }
    const text = await response.text();
    show(text);
  } catch (error) {
    if (error.name === "AbortError") say(`Cancelled after ${((performance.now() - started) / 1000).toFixed(1)} s: the server stops the query.`);
    else say("The server did not answer: check that it runs, then run the query again.");
  } finally {
    clearInterval(ticking);
    running = null;
    setRunning(false);
  }
}

function setRunning(isRunning) {
  for (const button of form.querySelectorAll("button[type=submit]")) button.disabled = isRunning;
  cancelButton.hidden = !isRunning;
  result.toggleAttribute("aria-busy", isRunning);
}

function show(fragment) {
  result.innerHTML = fragment;
  htmx.process(result);
  tell(result.querySelector("[data-said]")?.textContent ?? "");
  follow();
}

// Say where an error is, and offer a chart.
function follow() {
  const problem = result.querySelector(".problem");
  area.toggleAttribute("aria-invalid", false);
  if (problem) area.setAttribute("aria-invalid", "true");
  if (problem?.dataset.offset) editor.showWrong(Number(problem.dataset.offset));
  offerChart(result);
}

form.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (button?.name === "format") { button.closest("details").open = false; history.add(editor.text); return; }
  event.preventDefault();
  run(button?.value ?? "run");
});
cancelButton.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target === area) { event.preventDefault(); editor.close(); run("run"); }
});
area.addEventListener("input", () => { history.draft = editor.text; });
menu.hidden = false;
menu.addEventListener("toggle", () => {
  if (menu.open) showHistory(menu, history, (text) => { menu.open = false; editor.replace(text); });
});
if (!editor.text && history.draft) { area.value = history.draft; editor.paint(); }
follow();
