// Draw charts over time of the data that their figures carry: bars upon each other, or lines. uPlot draws on a canvas.
import { axisStyle, token } from "./chart_style.js";

const HEIGHT = 150;
const COLORS = { ok: "c0", repeated: "c1", refused: "c4", failed: "c5", cut: "c3", errors: "c5" };
const charts = new Map();

function format(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "bytes") return `${(value / 1048576).toLocaleString("en", { maximumFractionDigits: 1 })} MiB`;
  return `${value.toLocaleString("en", { maximumSignificantDigits: 4 })}${unit ? ` ${unit}` : ""}`;
}

// Times in UTC, as precise as the steps between them.
function formatTimes(seconds) {
  const step = seconds.length > 1 ? seconds[1] - seconds[0] : 60;
  const [from, to] = step >= 86400 ? [5, 10] : step >= 60 ? [11, 16] : [11, 19];
  return seconds.map((each) => new Date(each * 1000).toISOString().slice(from, to));
}

// Bars of one interval stand upon each other: each series is drawn from the bottom to the sum of those up to it.
function stack(series) {
  let below = series[0].values.map(() => 0);
  return series.map((entry) => {
    below = entry.values.map((value, index) => below[index] + value);
    return { ...entry, shown: below };
  }).reverse();
}

function draw(figure) {
  charts.get(figure)?.destroy();
  const data = JSON.parse(figure.dataset.chart);
  const isStacked = figure.dataset.kind === "bars";
  const unit = figure.dataset.unit ?? "";
  const series = isStacked ? stack(data.series) : data.series.map((entry) => ({ ...entry, shown: entry.values }));
  const place = figure.querySelector(".canvas");
  const readout = figure.querySelector(".readout");
  const axis = axisStyle();
  const options = {
    width: place.clientWidth,
    height: HEIGHT,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { show: !isStacked } },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [{ ...axis, values: (_, seconds) => formatTimes(seconds) }, { ...axis, size: 64, values: (_, values) => values.map((value) => format(value, unit)) }],
    series: [{}, ...series.map((entry, index) => {
      const color = token(COLORS[entry.label] ?? `c${index}`);
      return isStacked
        ? { stroke: color, fill: color, width: 0, paths: uPlot.paths.bars({ size: [0.8, 60] }), points: { show: false } }
        : { stroke: color, width: 1.5, points: { show: data.x.length < 60, size: 4 }, spanGaps: false };
    })],
    hooks: readout ? { setCursor: [(chart) => {
      const index = chart.cursor.idx;
      readout.textContent = index === null || index === undefined ? "" : `${new Date(data.x[index] * 1000).toISOString().slice(11, 19)}  ${data.series.map((entry) => `${entry.label} ${format(entry.values[index], unit)}`).join(" · ")}`;
    }] } : {},
  };
  charts.set(figure, new uPlot(options, [data.x, ...series.map((entry) => entry.shown)], place));
}

const watcher = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.get(entry.target.closest("figure"));
    if (chart && entry.contentRect.width > 0) chart.setSize({ width: entry.contentRect.width, height: HEIGHT });
  }
});

function find(root) {
  for (const [figure, chart] of charts) {
    if (!figure.isConnected) { chart.destroy(); charts.delete(figure); }
  }
  for (const figure of root.querySelectorAll("figure[data-chart]")) {
    if (charts.has(figure)) continue;
    draw(figure);
    watcher.observe(figure.querySelector(".canvas"));
  }
}

find(document);
document.addEventListener("htmx:afterSettle", () => find(document));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const figure of charts.keys()) draw(figure);
});
