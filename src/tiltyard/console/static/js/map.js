// The map of vectors: points on a canvas, the row of the nearest one, and a selection that leads to its rows.
const RADIUS = 3.2;
const NEAR = 14;
const PADDING = 16;
const GRID = 10000;
const HOVER_MS = 90;
const MAX_FILTER = 9900;

class ScatterMap {
  constructor(figure) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.points = JSON.parse(figure.dataset.points);
    this.selected = new Set();
    this.current = -1;
    this.path = [];
    this.canvas.addEventListener("pointerdown", (event) => this.begin(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", (event) => this.end(event));
    this.canvas.addEventListener("pointercancel", () => { this.path = []; this.draw(); });
    this.canvas.addEventListener("keydown", (event) => { if (this.press(event.key)) event.preventDefault(); });
    figure.querySelector("[data-clear]").addEventListener("click", () => this.select(new Set()));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.draw();
  }

  // Where a point lies on the canvas, in its own pixels: the square of the map in its middle.
  place(index) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const side = Math.max(1, Math.min(width, height) - 2 * PADDING);
    return [
      (width - side) / 2 + (this.points.x[index] / GRID) * side,
      (height + side) / 2 - (this.points.y[index] / GRID) * side,
    ];
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width) return;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const token = (name) => style.getPropertyValue(`--${name}`).trim();
    const colors = this.points.colors.map(token);
    for (let index = 0; index < this.points.x.length; index += 1) {
      const isDim = this.selected.size > 0 && !this.selected.has(index);
      context.globalAlpha = isDim ? 0.18 : 0.85;
      context.fillStyle = colors[this.points.codes[index]];
      this.dot(context, index, RADIUS);
      context.fill();
    }
    context.globalAlpha = 1;
    context.strokeStyle = token("text");
    context.lineWidth = 1.5;
    if (this.current >= 0) {
      this.dot(context, this.current, RADIUS + 3.5);
      context.stroke();
    }
    if (this.path.length > 1) {
      context.setLineDash([4, 3]);
      context.beginPath();
      this.path.forEach(([x, y], at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
      context.stroke();
    }
  }

  dot(context, index, radius) {
    const [x, y] = this.place(index);
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
  }

  begin(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.path = [[event.offsetX, event.offsetY]];
  }

  move(event) {
    if (this.path.length) {
      this.path.push([event.offsetX, event.offsetY]);
      this.draw();
    } else {
      this.look(this.nearest(event.offsetX, event.offsetY));
    }
  }

  // A drag selects what is inside; a click shows the row, as pointing at it does.
  end(event) {
    const path = this.path;
    this.path = [];
    const xs = path.map(([x]) => x);
    const ys = path.map(([, y]) => y);
    if (Math.max(...xs) - Math.min(...xs) < 6 && Math.max(...ys) - Math.min(...ys) < 6) {
      this.look(this.nearest(event.offsetX, event.offsetY));
      this.draw();
      return;
    }
    const inside = new Set(event.shiftKey ? this.selected : []);
    for (let index = 0; index < this.points.x.length; index += 1) {
      if (isInside(this.place(index), path)) inside.add(index);
    }
    this.select(inside);
  }

  nearest(x, y) {
    let best = -1;
    let distance = NEAR * NEAR;
    for (let index = 0; index < this.points.x.length; index += 1) {
      const [px, py] = this.place(index);
      const apart = (px - x) ** 2 + (py - y) ** 2;
      if (apart < distance) [best, distance] = [index, apart];
    }
    return best;
  }

  look(index) {
    if (index < 0 || index === this.current) return;
    this.current = index;
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const address = `${this.figure.dataset.row}&row=${this.points.ids[index]}`;
      htmx.ajax("GET", address, { target: "#map-row", swap: "innerHTML" });
    }, HOVER_MS);
  }

  press(key) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (steps[key]) {
      this.look(this.current < 0 ? 0 : this.neighbour(...steps[key]));
    } else if (key === " " && this.current >= 0) {
      const selected = new Set(this.selected);
      if (!selected.delete(this.current)) selected.add(this.current);
      this.select(selected);
    } else if (key === "Enter" && this.selected.size) {
      this.figure.querySelector("[data-show]").click();
    } else if (key === "Escape") {
      this.select(new Set());
    } else {
      return false;
    }
    return true;
  }

  // The point that is closest in a direction: what lies aside counts as three times as far.
  neighbour(dx, dy) {
    const [x, y] = this.place(this.current);
    let best = -1;
    let distance = Infinity;
    for (let index = 0; index < this.points.x.length; index += 1) {
      const [px, py] = this.place(index);
      const ahead = (px - x) * dx + (py - y) * dy;
      const aside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
      if (ahead > 0.5 && ahead + 3 * aside < distance) [best, distance] = [index, ahead + 3 * aside];
    }
    return best;
  }

  select(selected) {
    this.selected = selected;
    const show = this.figure.querySelector("[data-show]");
    const ids = [...selected].map((index) => this.points.ids[index]);
    let filter = "_rowid IN (";
    let shown = 0;
    while (shown < ids.length && filter.length + ids[shown].length < MAX_FILTER) {
      filter += `${shown ? "," : ""}${ids[shown]}`;
      shown += 1;
    }
    show.href = `${this.figure.dataset.rows}&filter=${encodeURIComponent(`${filter})`)}`;
    show.hidden = shown === 0;
    this.figure.querySelector("[data-clear]").hidden = shown === 0;
    const count = ids.length === 1 ? "1 row selected" : `${ids.length.toLocaleString("en")} rows selected`;
    const cut = shown < ids.length ? `; the first ${shown.toLocaleString("en")} can be shown` : "";
    this.figure.querySelector("[data-selected]").textContent = ids.length ? count + cut : "";
    this.draw();
  }
}

// Whether a line to the right of a point crosses the outline an odd number of times.
function isInside([x, y], path) {
  let inside = false;
  for (let at = 0, before = path.length - 1; at < path.length; before = at, at += 1) {
    const [ax, ay] = path[at];
    const [bx, by] = path[before];
    if ((ay > y) !== (by > y) && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}

document.addEventListener("htmx:afterSettle", () => {
  const figure = document.querySelector("figure[data-points]:not([data-drawn])");
  if (!figure) return;
  figure.dataset.drawn = "yes";
  new ScatterMap(figure);
});
