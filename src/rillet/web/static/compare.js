// Several mechanisms on the same public data, beside the truth: one chart that moves.

const $ = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);
const whole = new Intl.NumberFormat("en");
const dark = matchMedia("(prefers-color-scheme: dark)");
// Colours that everybody can tell apart, in the order of the mechanisms.
const INKS = () => (dark.matches ? ["#ff9a4d", "#62b5ff", "#4fd6a5", "#e39cc4"] : ["#c25400", "#0067a3", "#007a58", "#a8487f"]);
let about = null, points = [], chart = null;

const money = (value, digits = 2) => `${about.unit}${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;

function columns() {
  const made = [points.map((point) => point.t)];
  about.labels.forEach((_, i) => {
    for (const side of ["high", "low", "value"]) made.push(points.map((point) => point[side][i]));
  });
  made.push(points.map((point) => point.truth));
  return made;
}

// As wide as the widest interval that is still useful: the plain tree's, at the last point.
function range() {
  const last = points.at(-1);
  const widths = last.high.map((high, i) => (high === null ? 0 : high - last.low[i]));
  const spread = Math.min(Math.max(...widths, 0.02 * last.truth) * 0.7, 1.5 * last.truth);
  return [last.truth - spread, last.truth + spread];
}

function draw() {
  chart?.destroy();
  const font = `${Math.round(0.8 * rem())}px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: colour("muted"), font, grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 } };
  const series = [{}], bands = [];
  about.labels.forEach((_, i) => {
    const ink = INKS()[i % 4], first = series.length;
    series.push({ stroke: "transparent", width: 0, points: { show: false } }, { stroke: "transparent", width: 0, points: { show: false } }, { stroke: ink, width: 2, points: { show: false } });
    bands.push({ series: [first, first + 1], fill: `${ink}2e` });
  });
  series.push({ stroke: colour("ink"), width: 2, dash: [8, 6], points: { show: false } });
  const box = $("chart");
  chart = new uPlot({
    width: box.clientWidth, height: box.clientHeight, padding: [0.7 * rem(), 1.5 * rem(), 0, 0], legend: { show: false }, series, bands,
    cursor: { y: false },
    axes: [{ ...axis, size: 2.2 * rem(), space: 6 * rem(), values: (_, ticks) => ticks.map((tick) => whole.format(tick)) }, { ...axis, size: 4.5 * rem(), values: (_, ticks) => ticks.map((tick) => money(tick, tick % 1 ? 2 : 0)) }],
    scales: { x: { time: false, range: () => [0, about.length] }, y: { range } },
  }, columns(), box);
}

function show() {
  const last = points.at(-1);
  $("truth").textContent = money(last.truth);
  $("state").dataset.state = last.t < about.length ? "live" : "ended";
  $("state").textContent = last.t < about.length ? `${whole.format(last.t)} of ${whole.format(about.length)}` : "complete";
  $("standing").replaceChildren(...about.labels.map((label, i) => {
    const box = document.createElement("div"), term = document.createElement("dt"), said = document.createElement("dd");
    term.textContent = label;
    said.style.color = INKS()[i % 4];
    said.textContent = last.value[i] === null ? `learning, ${whole.format(Math.max(0, about.lags[i] - last.t))} to go` : `${money(last.value[i])} ± ${money((last.high[i] - last.low[i]) / 2)}, off by ${money(Math.abs(last.value[i] - last.truth), 3)}`;
    box.append(term, said);
    return box;
  }));
  if (chart) chart.setData(columns());
  else draw();
}

const source = new EventSource("api/race");
source.addEventListener("about", (event) => {
  about = JSON.parse(event.data);
  points = [];
  $("title").textContent = about.title;
  $("question").textContent = about.question;
  $("promise").textContent = about.promise;
});
source.addEventListener("points", (event) => { points.push(...JSON.parse(event.data)); show(); });
source.addEventListener("end", () => source.close());
dark.addEventListener("change", () => points.length && draw());
new ResizeObserver(() => chart?.setSize({ width: $("chart").clientWidth, height: $("chart").clientHeight })).observe($("chart"));
