// Follow a job: each change that the server tells of loads the part of the page that shows it.
const job = document.getElementById("job");

function follow() {
  const source = new EventSource(job.dataset.follow);
  source.addEventListener("change", () => htmx.trigger(job, "changed"));
  source.addEventListener("end", () => {
    source.close();
    htmx.trigger(job, "changed");
  });
}

if (job.querySelector("[data-final=no]")) follow();
