// What all charts look like: the colours of the page, light or dark, and the axes.
export function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function axisStyle() {
  return { stroke: token("muted"), grid: { stroke: token("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
}
