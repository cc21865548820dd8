// Follow the events: each new one that the server tells of loads the part of the page that shows them, until the reader
// goes on to older ones or works in that part.
const events = document.getElementById("events");
const following = document.getElementById("following");
const source = new EventSource(events.dataset.follow);

source.addEventListener("change", (message) => {
  const shown = Number(events.querySelector("[data-position]")?.dataset.position);
  if (JSON.parse(message.data).position !== shown) htmx.trigger(events, "changed");
});
following.hidden = false;

function stop(event) {
  if (!event.target.closest(".more, form")) return;
  source.close();
  following.textContent = "paused";
  following.className = "chip";
}

events.addEventListener("click", stop);
events.addEventListener("focusin", stop);
