// Pictures by uPlot. An element with data-chart has {x: [s], series: [{label, values, kind}], unit}.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const probe = document.createElement("i");
// colour resolves light-dark() for the canvas.
const colour = (name) => {
  probe.style.color = css(name);
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
};
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
// moment writes an instant of the time axis in the chosen zone: a date where a day begins, else the time.
const moment = (s, step) => {
  const zone = { timeZone: document.documentElement.dataset.zone }, at = new Date(s * 1e3);
  const time = at.toLocaleTimeString("en-GB", { ...zone, hour: "2-digit", minute: "2-digit" });
  return step >= 86400 || time === "00:00" ? at.toLocaleDateString("en-GB", { ...zone, day: "numeric", month: "short" }) : time;
};
const charts = new Map();

function options(data, width) {
  const axis = { stroke: colour("--mute"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui" };
  const colours = [colour("--accent"), colour("--good"), colour("--warn"), colour("--bad"), colour("--mute")];
  const bars = (part) => uPlot.paths.bars({ size: [part, 60], align: 1 });
  return {
    width, height: data.height ?? 220, tzDate: (s) => uPlot.tzDate(new Date(s * 1e3), document.documentElement.dataset.zone),
    cursor: { points: { size: 6 } }, legend: { live: true },
    axes: [{ ...axis, values: (_, all, __, ___, step) => all.map((s) => moment(s, step)) }, { ...axis, size: 72, values: (_, all) => all.map((v) => v === null ? "" : compact.format(v) + (data.unit ?? "")) }],
    scales: { y: { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] } },
    series: [{ label: "Time", value: (_, s) => s === null ? "–" : new Date(s * 1e3).toLocaleString("en-GB", { timeZone: document.documentElement.dataset.zone, dateStyle: "medium", timeStyle: "short" }) },
      ...data.series.map((s, i) => ({
        label: s.label, stroke: colours[i % colours.length], width: s.kind === "bars" ? 0 : 1.5,
        fill: s.kind === "bars" ? colours[i % colours.length] : undefined, paths: s.kind === "bars" ? bars(0.9) : undefined, points: { show: false },
        value: (_, v) => v === null ? "–" : v.toLocaleString("en") + (data.unit ?? ""),
      }))],
  };
}

function draw(element) {
  const text = element.dataset.chart, known = charts.get(element);
  if (known && known.text === text && known.width === element.clientWidth) return;
  const data = JSON.parse(text), columns = [data.x, ...data.series.map((s) => s.values)];
  if (known && known.width === element.clientWidth && !known.stale) {
    known.text = text;
    known.plot.setData(columns);
    return;
  }
  known?.plot.destroy();
  charts.set(element, { text, width: element.clientWidth, plot: new uPlot(options(data, element.clientWidth), columns, element) });
}
const all = () => { for (const e of document.querySelectorAll("[data-chart]")) draw(e); };
const again = () => { for (const known of charts.values()) { known.stale = true; known.text = ""; } all(); };
all();
addEventListener("resize", all);
document.addEventListener("refreshed", all);
document.addEventListener("themechange", again);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
