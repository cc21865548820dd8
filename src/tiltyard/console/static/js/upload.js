// Bring in a file: look at its beginning, show its columns, send it, and say how far it is.
// The file stays here until it is sent as a whole: a refusal loses nothing.
const TEXT_BYTES = 2 << 20, WHOLE_BYTES = 32 << 20, HEAD_BYTES = 24 << 20, MOST_TAIL_BYTES = 8 << 20;
const TEXTS = /\.(csv|tsv|json|jsonl|ndjson)(\.gz)?$/i;

export function startUpload(form) {
  if (form.dataset.started) return;
  form.dataset.started = "yes";
  new Upload(form);
}

class Upload {
  constructor(form) {
    this.form = form;
    this.file = null;
    this.request = null;
    this.looks = 0;
    const drop = form.querySelector("[data-drop-here]");
    this.part("file").addEventListener("change", () => this.take(this.part("file").files[0]));
    drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      this.take(event.dataTransfer.files[0]);
    });
    form.addEventListener("change", (event) => { if (event.target.matches("[data-look]")) this.look(); });
    form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    this.part("stop").addEventListener("click", () => this.request?.abort());
    form.upload = this;
  }

  part(name) { return this.form.querySelector(`#upload-${name}`); }

  take(file) {
    if (!file) return;
    this.file = file;
    this.part("title").textContent = `${file.name} · ${bytes(file.size)}`;
    this.part("result").replaceChildren();
    this.part("columns").replaceChildren();
    const name = this.part("name");
    if (name && !name.value) name.value = file.name.replace(/\.gz$/i, "").replace(/\.[^.]*$/, "");
    if (file.size > Number(this.form.dataset.most)) {
      this.say(`${file.name} has ${bytes(file.size)}, and up to ${bytes(Number(this.form.dataset.most))} can be sent here: tiltyard import brings in larger ones.`);
      return;
    }
    this.look();
  }

  async look() {
    if (!this.file) return;
    const number = ++this.looks;
    this.state("Looking at it…");
    try {
      const part = await beginning(this.file);
      const response = await this.post(this.form.dataset.sample, part, () => {});
      if (number !== this.looks) return;
      if (response.status >= 400 || !response.text) { this.problem(response.text); this.state(""); return; }
      this.problem("");
      this.part("columns").innerHTML = response.text; // made by the console's own templates, which escape all
      this.part("run").hidden = false;
      this.state("");
    } catch (error) {
      if (number === this.looks) { this.say(error.message); this.state(""); }
    }
  }

  fields(part) {
    const fields = new URLSearchParams();
    const values = new FormData(this.form);
    const options = [...this.form.querySelectorAll("[data-option]")].map((field) => field.name);
    for (const name of ["name", "mode", "format", ...options, "rejected", "key"]) {
      for (const value of values.getAll(name)) fields.append(name, value);
    }
    fields.append("title", part.title ?? this.file.name);
    for (const box of this.form.querySelectorAll("[name=take]:not(:checked)")) fields.append("leave-out", box.value);
    for (const field of this.form.querySelectorAll("[name=type]:not(:disabled)")) {
      const type = field.value.trim();
      if (field.dataset.chosen || type !== field.dataset.was) {
        fields.append("cast-name", field.dataset.column);
        fields.append("cast-type", type);
      }
    }
    for (const [name, value] of Object.entries(part.numbers ?? {})) fields.append(name, value);
    return fields;
  }

  post(address, part, onProgress, onText) {
    const form = new Blob([this.fields(part).toString()]);
    const request = this.request = new XMLHttpRequest();
    request.open("POST", address);
    request.setRequestHeader("x-csrf-token", JSON.parse(document.body.getAttribute("hx-headers"))["x-csrf-token"]);
    request.setRequestHeader("x-form-bytes", String(form.size));
    request.setRequestHeader("content-type", "application/octet-stream");
    request.setRequestHeader("hx-request", "true");
    return new Promise((resolve, reject) => {
      request.upload.onprogress = onProgress;
      request.onprogress = () => onText?.(request.responseText);
      request.onload = () => {
        const next = request.getResponseHeader("hx-redirect");
        if (next) location.assign(next);
        else resolve({ status: request.status, text: request.responseText });
      };
      request.onerror = () => reject(new Error("The connection to the server was cut: check that it runs, then try again."));
      request.onabort = () => reject(new Error("Stopped: unless it was just done, nothing was written."));
      request.send(new Blob([form, ...part.blobs]));
    });
  }

  async send() {
    const name = this.part("name");
    if (!this.file) { this.say("Choose a file."); return; }
    if (name && !name.value.trim()) { this.say("Give the table a name."); name.focus(); return; }
    this.looks += 1; // what still looks at it has nothing more to say
    this.busy(true);
    this.problem("");
    this.part("result").replaceChildren();
    let last = {};
    try {
      const response = await this.post(
        this.form.getAttribute("action"), { blobs: [this.file] },
        (event) => this.progress(event.loaded, event.total, `${bytes(event.loaded)} sent`),
        (text) => {
          const line = text.trimEnd().split("\n").pop();
          if (line.endsWith("}")) last = JSON.parse(line);
          if (last.rows !== undefined) this.progress(last.bytes, last.total, `${rows(last.rows)} read`);
        });
      if (response.status >= 400) { this.problem(response.text); return; }
      last = JSON.parse(response.text.trimEnd().split("\n").pop());
      if (last.problem) this.say(`${last.problem} (request ${last.request})`);
      else this.done(last.done);
    } catch (error) {
      this.say(error.message);
    } finally {
      this.busy(false);
    }
  }

  done(done) {
    const result = this.part("result");
    const panel = element("section", "panel done");
    const text = element("p");
    const link = element("a", "", done.table);
    link.href = done.address;
    text.append(`${rows(done.rows)} ${done.rows === 1 ? "is" : "are"} in `, link, done.version ? `, as version ${done.version}.` : ".");
    panel.append(text);
    if (done.rejected) {
      panel.append(element("p", "", `${rows(done.rejected)} did not fit, and ${done.rejected === 1 ? "was" : "were"} left out${done.rejected > done.examples.length ? "; the first" : ""}:`));
      const list = element("dl", "facts");
      for (const [reason, row] of done.examples) {
        const entry = element("div");
        const value = element("dd");
        value.append(element("code", "", row));
        entry.append(element("dt", "", reason), value);
        list.append(entry);
      }
      panel.append(list);
    }
    result.replaceChildren(panel);
    result.focus();
  }

  progress(done, total, text) {
    const bar = this.part("progress");
    if (total && done) { bar.max = total; bar.value = done; } else bar.removeAttribute("value");
    this.state(text);
  }

  busy(isBusy) {
    this.form.querySelector("[type=submit]").disabled = isBusy;
    this.part("stop").hidden = this.part("progress").hidden = !isBusy;
    this.state(isBusy ? "Sending…" : "");
  }

  state(text) { this.part("status").textContent = text; }

  problem(html) { this.part("problem").innerHTML = html; } // made by the console's own templates

  say(text) { this.part("problem").replaceChildren(element("p", "problem", text)); }
}

function element(kind, name = "", text = "") {
  const made = document.createElement(kind);
  if (name) made.className = name;
  made.textContent = text;
  return made;
}

function rows(count) { return `${count.toLocaleString("en")} row${count === 1 ? "" : "s"}`; }

function bytes(size) {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return `${unit ? size.toPrecision(3) : size} ${units[unit]}`;
}

// Return what shows the columns of a file and its first rows: of text its first lines, else its beginning and its end.
async function beginning(file) {
  if (TEXTS.test(file.name)) {
    const isPacked = /\.gz$/i.test(file.name);
    const head = isPacked ? await unpacked(file) : new Uint8Array(await file.slice(0, TEXT_BYTES).arrayBuffer());
    const isCut = isPacked ? head.length >= TEXT_BYTES : file.size > TEXT_BYTES;
    const end = isCut ? head.lastIndexOf(10) + 1 || head.length : head.length;
    const numbers = { head: end, size: isCut ? end + 1 : end };
    return { blobs: [head.subarray(0, end)], title: file.name.replace(/\.gz$/i, ""), numbers };
  }
  if (file.size <= WHOLE_BYTES) return { blobs: [file], numbers: { head: file.size, size: file.size } };
  const last = new DataView(await file.slice(-10).arrayBuffer());
  const isParquet = last.getUint32(6) === 0x50415231; // PAR1 ends a Parquet file, ARROW1 one of Arrow
  const footer = isParquet ? last.getInt32(2, true) + 8 : last.getInt32(0, true) + 10;
  const tail = Math.min(Math.max(footer, 10), MOST_TAIL_BYTES);
  return { blobs: [file.slice(0, HEAD_BYTES), file.slice(-tail)], numbers: { head: HEAD_BYTES, size: file.size } };
}

async function unpacked(file) {
  const reader = file.stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const parts = [];
  let size = 0;
  try {
    while (size < TEXT_BYTES) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      size += value.length;
    }
  } catch {
    throw new Error(`${file.name} cannot be unpacked, as its name says it can: it is broken, or no gzip.`);
  } finally {
    reader.cancel().catch(() => {});
  }
  return new Uint8Array(await new Blob(parts).slice(0, TEXT_BYTES).arrayBuffer());
}

// A place on another page: what is dropped there opens the page that its link names, with the file.
export async function openWith(address, file) {
  const response = await fetch(address, { headers: { "hx-request": "true" } });
  if (!response.ok || response.headers.get("hx-redirect")) { location.assign(address); return; }
  const main = document.getElementById("main");
  main.innerHTML = await response.text(); // a page of the console
  history.pushState(null, "", address);
  window.addEventListener("popstate", () => location.reload(), { once: true });
  const form = main.querySelector("#upload");
  startUpload(form);
  form.upload.take(file);
}

const here = document.getElementById("upload");
if (here) startUpload(here);
