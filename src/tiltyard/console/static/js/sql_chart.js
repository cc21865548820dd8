// A chart of the rows that are shown: what the cells say is what is drawn.
import { axisStyle, token } from "./chart_style.js";

const HEIGHT = 240;
const MAX_SERIES = 8;
let drawn = null;

export function offerChart(result) {
  drawn?.destroy();
  drawn = null;
  const place = result.querySelector(".sql-chart");
  const columns = place ? readColumns(result) : [];
  const numbers = columns.filter((column) => column.isNumber);
  if (!numbers.length || columns[0].values.length < 2) return;
  place.hidden = false;
  fill(place, columns, numbers);
  place.addEventListener("toggle", () => { if (place.open) draw(place, columns); });
  place.addEventListener("change", () => draw(place, columns));
  new ResizeObserver(() => { if (drawn && place.open) drawn.setSize({ width: widthOf(place), height: HEIGHT }); }).observe(place);
}

function readColumns(result) {
  const rows = [...result.querySelectorAll(".grid tbody tr")];
  return [...result.querySelectorAll(".grid thead th")].map((head, index) => {
    const cells = rows.map((row) => row.cells[index]);
    const texts = cells.map((cell) => (cell.classList.contains("null") ? null : (cell.querySelector("summary") ?? cell).textContent.trim()));
    const isNumber = head.classList.contains("num") && texts.some((text) => text !== null);
    const times = texts.map((text) => (text === null || !/^\d{4}-\d\d-\d\d/.test(text) ? NaN : Date.parse(text.length > 10 ? `${text.replace(" ", "T").replace(/(\.\d{3})\d+/, "$1")}${/(?:Z|[+-]\d\d:?\d\d)$/.test(text) ? "" : "Z"}` : text)));
    const isTime = !isNumber && times.some((time) => !Number.isNaN(time)) && times.every((time, at) => texts[at] === null || !Number.isNaN(time));
    return {
      name: head.querySelector("bdi").textContent, texts, isNumber, isTime,
      isDrawable: cells.every((cell) => !cell.matches(".vector, .bytes")),
      values: isNumber ? texts.map((text) => (text === null || Number.isNaN(Number(text)) ? null : Number(text))) : isTime ? times.map((time) => time / 1000) : texts,
    };
  });
}

function fill(place, columns, numbers) {
  const along = columns.filter((column) => column.isDrawable);
  const first = along.find((column) => column.isTime) ?? along.find((column) => !column.isNumber) ?? along[0];
  const shown = numbers.filter((column) => column !== first).at(-1) ?? first;
  place.querySelector("#chart-x").replaceChildren(...along.map((column) => new Option(column.name, columns.indexOf(column), false, column === first)));
  place.querySelector("#chart-kind").value = first.isTime || first.isNumber ? "line" : "bar";
  const legend = place.querySelector("#chart-y legend");
  place.querySelector("#chart-y").replaceChildren(legend, ...numbers.slice(0, 40).map((column) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: columns.indexOf(column), checked: shown === column });
    label.append(box, Object.assign(document.createElement("bdi"), { textContent: column.name }));
    return label;
  }));
}

function widthOf(place) { return Math.max(200, place.querySelector(".canvas").clientWidth); }

function draw(place, columns) {
  drawn?.destroy();
  drawn = null;
  const x = columns[Number(place.querySelector("#chart-x").value)];
  const chosen = [...place.querySelectorAll("#chart-y input:checked")].slice(0, MAX_SERIES).map((box) => columns[Number(box.value)]);
  const isBar = place.querySelector("#chart-kind").value === "bar";
  const order = x.values.map((_, index) => index);
  const isScale = (x.isNumber || x.isTime) && !isBar;
  const kept = isScale ? order.filter((index) => x.values[index] !== null && !Number.isNaN(x.values[index])).sort((one, other) => x.values[one] - x.values[other]) : order;
  const along = isScale ? kept.map((index) => x.values[index]) : kept;
  const canvas = place.querySelector(".canvas");
  showLegend(place, chosen);
  if (!chosen.length) { canvas.replaceChildren(); return; }
  const label = (index) => x.texts[kept[index]] ?? "null";
  const axis = axisStyle();
  const labels = isScale ? (x.isTime ? {} : { values: (_, splits) => splits.map(plain) }) : {
    splits: (_, __, low, high) => steps(Math.max(0, Math.ceil(low)), Math.min(kept.length - 1, Math.floor(high)), widthOf(place)),
    values: (_, splits) => splits.map((at) => short(label(at))),
  };
  const readout = place.querySelector(".readout");
  drawn = new uPlot({
    width: widthOf(place), height: HEIGHT, legend: { show: false }, cursor: { drag: { x: false, y: false } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { x: { time: isScale && x.isTime, range: isScale ? undefined : () => [-0.6, kept.length - 0.4] }, y: isBar ? { range: (_, low, high) => [Math.min(0, low), Math.max(0, high) || 1] } : {} },
    axes: [{ ...axis, ...labels }, { ...axis, size: 70 }],
    series: [{}, ...chosen.map((column, index) => {
      const colour = token(`c${index}`);
      return isBar
        ? { stroke: colour, fill: colour, width: 0, points: { show: false }, paths: bars(index, chosen.length) }
        : { stroke: colour, width: 1.5, points: { show: kept.length < 60, size: 4 }, spanGaps: false };
    })],
    hooks: { setCursor: [(chart) => {
      const at = chart.cursor.idx;
      readout.textContent = at === null || at === undefined ? "" : `${short(label(at))}  ${chosen.map((column) => `${column.name} ${column.texts[kept[at]] ?? "null"}`).join(" · ")}`;
    }] },
  }, [along, ...chosen.map((column) => kept.map((index) => column.values[index]))], canvas);
}

// Bars of several columns stand beside each other; uPlot takes their middles and widths in units of the axis (1).
function bars(index, count) {
  return count === 1 ? uPlot.paths.bars({ size: [0.8, 60] }) : uPlot.paths.bars({
    size: [0.8, 60],
    disp: {
      x0: { unit: 1, values: (chart) => chart.data[0].map((at) => at - 0.4 + (0.8 * (index + 0.5)) / count) },
      size: { unit: 1, values: () => [0.8 / count] },
    },
  });
}

function steps(from, to, width) {
  const step = Math.max(1, Math.ceil((to - from + 1) / Math.max(2, Math.floor(width / 90))));
  const found = [];
  for (let at = from; at <= to; at += step) found.push(at);
  return found;
}

// Years have no thousands.
function plain(number) {
  return number?.toLocaleString("en", { useGrouping: Math.abs(number) >= 10_000, maximumSignificantDigits: 8 }) ?? "";
}

function short(text) { return text.length > 14 ? `${text.slice(0, 13)}…` : text; }

function showLegend(place, chosen) {
  place.querySelector(".legend").replaceChildren(...chosen.map((column, index) => (
    Object.assign(document.createElement("span"), { className: `key c${index}`, textContent: column.name }))));
}
