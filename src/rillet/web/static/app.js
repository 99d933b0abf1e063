// The live page: asks the server for public releases, draws them with uPlot, follows the news.
// Everything that is shown has been published; nothing is loaded from anywhere else.

const MOST = 20000; // points kept of one key while the page stays open
const QUIET = 20; // seconds without a sign of life after which a run counts as stalled

const $ = (id) => document.getElementById(id);
const el = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
};

const now = {
  token: sessionStorage.getItem("token"),
  about: null, progress: null, heard: 0, rollup: [],
  names: [], keys: new Map(), learning: [], look: 0,
  key: null, data: null, views: [], view: 0, range: "all", along: null, index: null,
  connected: false, wasConnected: false, chart: null, zoomed: false, stop: null,
};

// --- words and numbers ---------------------------------------------------------------------------

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const whole = new Intl.NumberFormat("en");
const dayAndTime = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const time = (ms) => dayAndTime.format(ms);

// As many digits as the uncertainty leaves: two of it, and the value to the same place.
function places(reach, value) {
  const scale = reach > 0 && isFinite(reach) ? reach : Math.abs(value) / 100 || 1;
  return Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(scale))));
}
function number(value, reach = 0) {
  if (value === null || value === undefined || !isFinite(value)) return "no value yet";
  const digits = places(reach, value);
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
const half = (row, i = 0) => (row.high[i] === null || row.low[i] === null ? NaN : (row.high[i] - row.low[i]) / 2);
const reachText = (reach) =>
  isFinite(reach) ? `± ${number(reach, reach)}` : "";
const keyText = (key) => {
  if (typeof key === "string" && key.startsWith("[")) {
    try { return JSON.parse(key).join(" · ") || "all keys"; } catch { return key; }
  }
  return String(key);
};
const every = (seconds) => `every ${duration(seconds).replace(/^1 /, "")}`;
const bound = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
function duration(seconds) {
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (seconds >= size) {
      const count = Math.round((seconds / size) * 10) / 10;
      return `${count} ${unit}${count === 1 ? "" : "s"}`;
    }
  }
  const count = Math.round(seconds);
  return `${count} second${count === 1 ? "" : "s"}`;
}
const title = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// --- the server ----------------------------------------------------------------------------------

async function ask(path, signal) {
  const headers = now.token ? { authorization: `Bearer ${now.token}` } : {};
  const response = await fetch(path, { headers, signal, cache: "no-store" });
  if (response.status === 401) { askForToken(); throw new Error("token"); }
  return response;
}
const askJson = async (path) => {
  const response = await ask(path);
  return response.ok ? response.json() : null;
};

function askForToken() {
  if (now.token) $("login-error").textContent = "This token may not read.";
  now.token = null;
  sessionStorage.removeItem("token");
  $("login").hidden = false;
  $("layout").hidden = true;
  setState("loading", "locked");
  $("token").focus();
}
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  now.token = $("token").value.trim();
  sessionStorage.setItem("token", now.token);
  $("login").hidden = true;
  start();
});

// Server-sent events over fetch, which can carry a token.
async function follow() {
  const stop = new AbortController();
  now.stop?.abort();
  now.stop = stop;
  for (let failures = 0; !stop.signal.aborted; failures++) {
    try {
      const last = now.data?.t.at(-1);
      const query = new URLSearchParams();
      if (now.key !== null) query.set("key", now.key);
      if (last !== undefined) query.set("after", last);
      query.set("look", now.look);
      const response = await ask(`api/live?${query}`, stop.signal);
      if (!response.ok) throw new Error(response.status);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      failures = 0;
      if (!now.connected && now.wasConnected) { await refresh(); show(); }
      now.connected = now.wasConnected = true;
      tell();
      let text = "";
      for (;;) {
        const { value, done } = await withPatience(reader.read(), 25000);
        if (done) throw new Error("ended");
        text += value;
        const parts = text.split("\n\n");
        text = parts.pop();
        parts.forEach(take);
      }
    } catch (error) {
      if (stop.signal.aborted || error.message === "token") return;
      now.connected = false;
      tell();
      await new Promise((wake) => setTimeout(wake, Math.min(8000, 500 * 2 ** Math.min(failures, 4))));
    }
  }
}
const withPatience = (promise, ms) =>
  Promise.race([promise, new Promise((_, fail) => setTimeout(() => fail(new Error("silent")), ms))]);

function take(block) {
  let event = "", data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (event === "latest") takeLatest(JSON.parse(data));
  else if (event === "releases") takeReleases(JSON.parse(data));
  else if (event === "progress") {
    takeProgress(JSON.parse(data));
    if (now.about) { tell(); now.learning.forEach(updateItem); }
    else refresh().then(() => { listKeys(); now.key === null ? select(chosen()) : show(); }); // a run has begun
  }
}

function takeProgress(progress) {
  now.progress = progress;
  now.heard = Date.now() - 1000 * (progress?.age ?? 0);
}

function takeLatest({ names, rows }) {
  now.names = names;
  let fresh = false;
  for (const row of rows) {
    const known = now.keys.get(row.key);
    fresh ||= !known;
    const spark = [...(known?.spark ?? []), row.value[0]].slice(-48);
    now.keys.set(row.key, { ...row, spark });
    now.learning = now.learning.filter((key) => key !== row.key);
    if (known) updateItem(row.key);
  }
  if (now.key === null && now.keys.size) { select(chosen()); return; }
  if (fresh) { listKeys(); show(false); }
  tell();
}

function takeReleases(more) {
  const data = now.data;
  if (!data || !data.t.length || data.names.join() !== more.names.join()) now.data = more;
  else {
    const first = more.t.findIndex((t) => t > data.t.at(-1));
    if (first < 0) return;
    const add = (list, extra) => {
      list.push(...extra.slice(first));
      if (list.length > MOST) list.splice(0, list.length - MOST);
    };
    for (const name of ["t", "at", "clip_lower", "clip_upper"]) add(data[name], more[name]);
    for (const name of ["value", "low", "high"]) data[name].forEach((list, i) => add(list, more[name][i]));
  }
  now.index = null;
  prepareViews();
  show(false);
}

// --- loading -------------------------------------------------------------------------------------

async function start() {
  setState("loading", "loading");
  try {
    await refresh();
  } catch (error) {
    if (error.message !== "token") { now.wasConnected = true; tell(); setTimeout(start, 2000); }
    return;
  }
  $("layout").hidden = false;
  listKeys();
  await select(chosen());
}

// The key that the address names, or the first one.
function chosen() {
  const wanted = decodeURIComponent(location.hash.slice(1));
  const known = [...now.keys.keys(), ...now.learning];
  return known.find((each) => String(each) === wanted) ?? known[0] ?? null;
}

async function refresh() {
  const [facts, keys] = await Promise.all([askJson("api/about"), askJson("api/keys")]);
  now.about = facts.about;
  now.rollup = facts.rollup;
  takeProgress(facts.progress);
  now.names = keys.names;
  now.keys = new Map(keys.keys.map((row) => [row.key, row]));
  now.learning = keys.learning;
  now.look = keys.look;
  showPlan();
  showTotal();
  if (now.key !== null) { listKeys(); if (now.keys.has(now.key)) await load(); }
}

async function select(key) {
  now.key = key;
  now.data = null;
  now.index = null;
  if (key !== null && (now.keys.size > 1 || now.learning.length)) history.replaceState(null, "", `#${encodeURIComponent(key)}`);
  for (const button of $("keys").querySelectorAll("button")) {
    button.setAttribute("aria-current", String(button.dataset.key === String(key)));
  }
  if (key !== null && now.keys.has(key)) await load();
  prepareViews();
  show();
  follow();
}

async function load() {
  // More points than pixels show nothing more.
  const most = Math.max(300, Math.min(3000, $("stream").clientWidth));
  const query = new URLSearchParams({ format: "columns", key: now.key, most, thin: 1 });
  if (now.range.startsWith("s")) {
    const last = now.keys.get(now.key)?.at ?? Date.now();
    query.set("since", new Date(last - 1000 * Number(now.range.slice(1))).toISOString());
  } else if (now.range.startsWith("n")) {
    query.set("most", now.range.slice(1));
    query.delete("thin");
  }
  const key = now.key;
  const found = await askJson(`api/releases?${query}`);
  if (found && key === now.key) now.data = found;
  prepareViews();
}

// --- which numbers belong together ---------------------------------------------------------------

// The names of numbers say what they are, as rillet.sink.names has it.
const NUMBER = "([-+]?\\d+(?:\\.\\d*)?(?:e[-+]?\\d+)?)";
function edges(name, r = -1) {
  const between = name.match(new RegExp(`^${NUMBER} to ${NUMBER}$`));
  if (between) return [Number(between[1]), Number(between[2])];
  const beyond = name.match(new RegExp(`^(up to|above) ${NUMBER}$`));
  if (beyond) return beyond[1] === "up to" ? [-Infinity, Number(beyond[2])] : [Number(beyond[2]), Infinity];
  const part = name.match(/^(\d+)\/(\d+)$/);
  if (!part) return null;
  const [lower, upper] = [now.data?.clip_lower.at(r) ?? 0, now.data?.clip_upper.at(r) ?? 1];
  const width = (upper - lower) / part[2];
  return [lower + (part[1] - 1) * width, lower + part[1] * width];
}
const share = (name) => (/^(0|1|0?\.\d+|\d(\.\d+)?e-\d+)$/.test(name) ? Number(name) : null);
const binText = (name) => {
  const [from, to] = edges(name);
  return from === -Infinity ? `≤ ${bound(to)}` : to === Infinity ? `> ${bound(from)}` : `${bound(from)} – ${bound(to)}`;
};

function prepareViews() {
  const names = now.data?.names ?? now.names;
  const groups = new Map();
  names.forEach((name, i) => {
    const kind = share(name) !== null ? "quantiles" : edges(name) ? "histogram" : "line";
    const id = kind === "line" ? name : kind;
    if (!groups.has(id)) groups.set(id, { kind, title: kind === "line" ? title(name.replaceAll("_", " ")) : title(kind), of: [] });
    groups.get(id).of.push(i);
  });
  now.views = [...groups.values()];
  now.view = Math.min(now.view, Math.max(0, now.views.length - 1));
  // Time, unless most releases came in the same instant, as from a finished file.
  const at = now.data?.at ?? [];
  const distinct = new Set(at).size;
  now.along ??= at.length ? (now.about?.every_seconds || distinct > at.length / 2 ? "at" : "t") : null;
}

// --- state of the run ----------------------------------------------------------------------------

function setState(state, words, notice = "") {
  const pill = $("state");
  if (pill.dataset.state !== state || pill.textContent !== words) { pill.dataset.state = state; pill.textContent = words; }
  $("notice").hidden = !notice;
  $("notice").dataset.state = state;
  if ($("notice").textContent !== notice) $("notice").textContent = notice;
}

function tell() {
  const last = now.keys.get(now.key)?.at;
  const ago = last ? duration(Math.max(0, (Date.now() - last) / 1000)) : "";
  if (now.wasConnected && !now.connected) {
    setState("lost", "connection lost", `The connection to the server is lost. Trying again.${last ? ` What is shown was released ${ago} ago.` : ""}`);
    return;
  }
  const period = now.about?.every_seconds;
  const silent = now.progress ? (Date.now() - now.heard) / 1000 : 0;
  const total = now.about?.length;
  if (now.progress && !now.progress.running) {
    const done = total && now.keys.size && [...now.keys.values()].every((row) => row.t >= total);
    setState("ended", done ? "complete" : "not running", done ? "" : `The run has stopped.${last ? ` The last release came ${ago} ago, at ${time(last)}.` : " Nothing was released."} Start it again with the same command.`);
  } else if (silent > QUIET) {
    setState("stalled", "stalled", `The run has not been heard of for ${duration(silent)}. It may have crashed; the same command goes on where it stopped.`);
  } else if (last && period && Date.now() - last > 2000 * period + 10000) {
    setState("stalled", "stalled", `No release for ${ago}, although one is due ${every(period)}.`);
  } else if (!now.keys.size && !now.about) {
    setState("empty", "waiting", "Nothing has been released yet, and no run has begun here. This page shows the first release when it comes.");
  } else if (!now.keys.has(now.key)) {
    setState("learning", "learning");
  } else if (now.data) {
    setState("live", "live");
  }
  showLearning();
}
setInterval(() => { if (!$("layout").hidden) tell(); }, 1000);

// How many observations a key has that has released nothing; null where the run does not say.
const learned = (key) => now.progress?.learning?.[key] ?? null;

function showLearning() {
  const about = now.about, learning = !now.keys.has(now.key) && Boolean(about);
  $("learning").hidden = !learning;
  $("figure").hidden = learning || !now.data?.t.length;
  document.querySelector("details.table").hidden = $("figure").hidden;
  if (!learning) return;
  const bar = $("learning-bar");
  bar.hidden = false;
  const needed = about.first_release, many = about.keys.length > 1;
  const absorbed = now.progress?.absorbed ?? 0;
  $("learning-title").textContent = about.lag ? "Learning how large values are" : "Waiting for the first release";
  if (about.every_seconds) {
    const left = (Date.parse(about.first_release_at) - Date.now()) / 1000;
    bar.value = Math.min(1, absorbed / needed);
    $("learning-words").textContent = `The first ${whole.format(needed)} ticks of ${duration(about.every_seconds)} teach the range; ${whole.format(Math.min(absorbed, needed))} are over. ${left > 0 ? `The first release comes at ${time(Date.parse(about.first_release_at))}, in ${duration(left)}.` : "The first release is due."}`;
  } else if (about.learned_together && absorbed < about.learned_together) {
    bar.value = absorbed / about.learned_together;
    $("learning-words").textContent = `All keys learn together, from the first ${whole.format(about.learned_together)} observations of any of them; ${whole.format(absorbed)} have come.`;
  } else if (many) {
    const count = learned(now.key);
    bar.hidden = count === null;
    bar.value = Math.min(1, (count ?? 0) / needed);
    const come = count === null ? "" : ` ${whole.format(count)} have come.`;
    $("learning-words").textContent = `The first release of this key comes after ${whole.format(needed)} ${needed === 1 ? "observation" : "observations"} of it.${come} ${now.keys.size} of ${about.keys.length} keys release already.`;
  } else {
    bar.value = Math.min(1, absorbed / needed);
    $("learning-words").textContent = `${whole.format(Math.min(absorbed, needed))} of ${whole.format(needed)} observations have come; ${whole.format(Math.max(0, needed - absorbed))} are still needed before the first release. Nothing is released of a single observation until then.`;
  }
}

// --- the stream ----------------------------------------------------------------------------------

function show(fresh = true) {
  const about = now.about, data = now.data, view = now.views[now.view];
  const statistic = [about?.statistic].flat()[0];
  const what = view?.title ?? title(statistic?.kind ?? "Releases");
  const keyed = now.keys.size + now.learning.length > 1;
  $("title").textContent = keyed ? `${whole.format(now.keys.size + now.learning.length)} streams` : `${what}, live and private`;
  document.title = `${keyed ? keyText(now.key) : what} · rillet`;
  $("name").textContent = keyed ? `${what} of ${keyText(now.key)}` : what;
  const row = now.keys.get(now.key);
  const last = data?.t.length ? data.t.length - 1 : -1;
  if (row && last >= 0 && view) {
    const i = view.of[view.kind === "quantiles" ? Math.floor(view.of.length / 2) : 0];
    const value = data.value[i][last], reach = (data.high[i][last] - data.low[i][last]) / 2;
    const most = view.of.reduce((best, each) => (data.value[each][last] > data.value[best][last] ? each : best));
    $("value").textContent = view.kind === "histogram" ? binText(data.names[most]) : number(value, reach);
    $("reach").textContent = view.kind === "histogram" ? `most frequent of ${view.of.length} bins` : `${reachText(reach)}  (95 %)${view.kind === "quantiles" ? (share(data.names[i]) === 0.5 ? ", median" : `, quantile ${data.names[i]}`) : ""}`;
    $("when").textContent = `${time(data.at[last])} · ${about?.every_seconds ? "tick" : "observation"} ${whole.format(data.t[last])}`;
  } else {
    $("value").textContent = row ? "" : now.key === null ? "" : "…";
    $("reach").textContent = "";
    $("when").textContent = "";
  }
  showFacts(last);
  tell();
  showChoices();
  draw(fresh);
  showTable();
}

function showFacts(last) {
  const facts = [];
  const data = now.data;
  if (last >= 0 && data.clip_upper[last] !== null) {
    facts.push(["Clipping range", `${bound(data.clip_lower[last])} to ${bound(data.clip_upper[last])}`]);
  }
  if (now.about) {
    facts.push(["A release", now.about.every_seconds ? every(now.about.every_seconds) : now.about.every === 1 ? "each observation" : `every ${whole.format(now.about.every)}`]);
    facts.push(["Protects", `one ${now.about.unit}`]);
    facts.push(["ε", String(now.about.promise.epsilon)]);
  }
  $("facts").replaceChildren(...facts.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text))));
}

function showChoices() {
  const choose = (id, options, chosen, pick) => {
    const group = $(id), focused = group.contains(document.activeElement) ? document.activeElement.textContent : null;
    group.hidden = options.length < 2;
    group.replaceChildren(...options.map(([value, text]) => {
      const button = el("button", { type: "button", "aria-pressed": String(value === chosen) }, text);
      button.addEventListener("click", () => pick(value));
      return button;
    }));
    if (focused) [...group.children].find((button) => button.textContent === focused)?.focus();
  };
  choose("views", now.views.map((view, i) => [i, view.title]), now.view, (i) => { now.view = i; show(); });
  const histogram = now.views[now.view]?.kind === "histogram";
  choose("along", histogram ? [] : [["at", "Time"], ["t", now.about?.every_seconds ? "Ticks" : "Observations"]], now.along, (along) => { now.along = along; now.range = "all"; load().then(show); });
  const first = now.data?.at[0], span = first ? (now.keys.get(now.key)?.at - first) / 1000 : 0;
  const ranges = [["all", "All"]];
  if (now.along === "at") {
    for (const [seconds, text] of [[2592000, "30 d"], [604800, "7 d"], [86400, "1 d"], [3600, "1 h"], [600, "10 min"]]) {
      if (span > seconds || now.range === `s${seconds}`) ranges.push([`s${seconds}`, text]);
    }
  } else {
    const releases = now.data?.t.length ?? 0;
    for (const count of [1000, 100]) if (releases > count || now.range !== "all") ranges.push([`n${count}`, `Last ${whole.format(count)}`]);
  }
  choose("ranges", histogram ? [] : ranges, now.range, (range) => { now.range = range; load().then(show); });
}

function showTable() {
  const data = now.data;
  if (!data?.t.length || !document.querySelector("details.table").open) { $("table-body").replaceChildren(); return; }
  const cell = (text, kind = "td") => el(kind, { class: "number" }, text);
  $("table-head").replaceChildren(el("tr", {}, el("th", { scope: "col" }, "Released"), cell("t", "th"), el("th", { scope: "col" }, "Number"), cell("Value", "th"), cell("From", "th"), cell("To (95 %)", "th")));
  const rows = [];
  for (let r = data.t.length - 1; r >= 0 && rows.length < 60; r--) {
    data.names.forEach((name, i) => {
      const [value, low, high] = [data.value[i][r], data.low[i][r], data.high[i][r]];
      const reach = (high - low) / 2;
      rows.push(el("tr", {}, el("td", {}, time(data.at[r])), cell(whole.format(data.t[r])), el("td", {}, name), cell(number(value, reach)), cell(number(low, reach)), cell(number(high, reach))));
    });
  }
  $("table-body").replaceChildren(...rows);
}
document.querySelector("details.table").addEventListener("toggle", showTable);

// --- charts --------------------------------------------------------------------------------------

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);
const size = () => ({ width: $("chart").clientWidth || 600, height: $("chart").clientHeight || 300 });

// From a step of the axis on: how a tick is written, and what is added where the year or day changes.
const TIMES = [
  [31536000, "{YYYY}", null, null, null, null, null, null, 1],
  [2419200, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [86400, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
  [0.001, "{HH}:{mm}:{ss}.{fff}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
];

function axes(xValues) {
  const font = `${Math.round(0.8 * rem())}px ${getComputedStyle(document.body).fontFamily}`;
  const common = { stroke: colour("muted"), font, grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 } };
  return [
    { ...common, size: (xValues ? 2.2 : 3.4) * rem(), space: 5 * rem(), values: xValues ?? TIMES },
    { ...common, space: 2.6 * rem(), size: (u, values) => Math.max(2.4 * rem(), (values ?? []).reduce((most, text) => Math.max(most, String(text).length), 0) * 0.55 * rem() + 1.2 * rem()), values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en", { maximumFractionDigits: 8 })) },
  ];
}

function draw(fresh = true) {
  const view = now.views[now.view], data = now.data;
  const shown = view && data?.t.length && !$("figure").hidden;
  if (!fresh && shown && now.chart && view.kind !== "histogram") {
    now.chart.setData(lines(view, data)[1], !now.zoomed); // keeps the cursor, and a part that was chosen
    describe(view, data);
    return;
  }
  now.chart?.destroy();
  now.chart = null;
  now.zoomed = false;
  if (!shown) return;
  const [options, columns] = view.kind === "histogram" ? histogram(view, data) : lines(view, data);
  const hooks = { setCursor: [(u) => read(u)], setSelect: [(u) => { now.zoomed = u.select.width > 0; }] };
  const padding = [0.7 * rem(), 1.2 * rem(), 0, 0];
  now.chart = new uPlot({ ...size(), padding, legend: { show: false }, hooks, ...options }, columns, $("chart"));
  performance.mark("chart");
  now.chart.over.addEventListener("dblclick", () => { now.zoomed = false; });
  describe(view, data);
}

function lines(view, data) {
  const x = now.along === "at" ? data.at.map((ms) => ms / 1000) : data.t;
  const columns = [x], series = [{}], bands = [];
  const middle = Math.floor(view.of.length / 2);
  const add = (column, options) => { columns.push(column); series.push({ points: { show: false }, spanGaps: false, ...options }); return columns.length - 1; };
  if (view.kind === "line") {
    const [i] = view.of;
    const high = add(data.high[i], { stroke: "transparent", width: 0 });
    const low = add(data.low[i], { stroke: "transparent", width: 0 });
    bands.push({ series: [high, low], fill: colour("band") });
    add(data.value[i], { stroke: colour("accent"), width: 2, points: { show: data.t.length < 40, size: 6, fill: colour("accent") } });
  } else {
    const ordered = [...view.of].sort((a, b) => share(data.names[a]) - share(data.names[b]));
    const at = ordered.map((i, rank) => add(data.value[i], { stroke: colour(rank === middle ? "accent" : "muted"), width: rank === middle ? 2.5 : 1.2 }));
    for (let k = 0; k < Math.floor(at.length / 2); k++) bands.push({ series: [at[at.length - 1 - k], at[k]], fill: colour("band") });
  }
  // The first releases may be far off: the scale follows the later ones, mostly.
  const range = (u, low, high) => {
    const half = u.data[0].length >> 1;
    let [from, to] = [Infinity, -Infinity];
    u.data.slice(1).forEach((column) => column.slice(half).forEach((value) => { if (value !== null) { from = Math.min(from, value); to = Math.max(to, value); } }));
    if (!(from < to)) [from, to] = [low ?? 0, high ?? 1];
    if (from === to) [from, to] = [from - 1, to + 1];
    const pad = 0.35 * (to - from);
    return [Math.max(low ?? from, from - pad), Math.min(high ?? to, to + pad)].map((edge, k) => edge + (k ? 1 : -1) * 0.04 * (to - from));
  };
  const xValues = now.along === "at" ? undefined : (_, ticks) => ticks.map((tick) => whole.format(tick));
  const options = {
    series, bands, axes: axes(xValues),
    scales: { x: { time: now.along === "at", range: (u, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: { range } },
    cursor: { drag: { x: true, y: false }, points: { size: 8 }, y: false },
  };
  return [options, columns];
}

function histogram(view, data) {
  const r = now.index ?? data.t.length - 1;
  const x = view.of.map((_, k) => k);
  const columns = [x, view.of.map((i) => data.value[i][r])];
  const [low, high] = [view.of.map((i) => data.low[i][r]), view.of.map((i) => data.high[i][r])];
  const labels = view.of.map((i) => binText(data.names[i]));
  const whiskers = (u) => {
    const { ctx } = u;
    ctx.save();
    ctx.strokeStyle = colour("ink");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.beginPath();
    x.forEach((each) => {
      if (low[each] === null) return;
      const px = u.valToPos(each, "x", true), [from, to] = [u.valToPos(low[each], "y", true), u.valToPos(high[each], "y", true)];
      const cap = 4 * devicePixelRatio;
      ctx.moveTo(px, from); ctx.lineTo(px, to);
      ctx.moveTo(px - cap, from); ctx.lineTo(px + cap, from);
      ctx.moveTo(px - cap, to); ctx.lineTo(px + cap, to);
    });
    ctx.stroke();
    ctx.restore();
  };
  const [bottom, top] = [Math.min(0, ...low.filter((v) => v !== null)), Math.max(0, ...high.filter((v) => v !== null))];
  const [along, up] = axes((_, ticks) => ticks.map((tick) => labels[tick] ?? ""));
  const room = Math.max(1, Math.ceil((labels.reduce((most, text) => Math.max(most, text.length), 0) * 0.5 * rem() + rem()) / (size().width / x.length)));
  along.splits = () => x.filter((each) => each % room === 0);
  along.grid = { show: false };
  const options = {
    axes: [along, up],
    series: [{}, { fill: colour("band"), stroke: colour("accent"), width: 1.5, paths: uPlot.paths.bars({ size: [0.86, Infinity] }), points: { show: false } }],
    scales: { x: { time: false, range: [-0.6, x.length - 0.4] }, y: { range: [bottom * 1.05, top * 1.05 || 1] } },
    cursor: { drag: { x: false, y: false }, y: false, points: { show: false } },
    hooks: { setCursor: [(u) => read(u, labels)], draw: [whiskers] },
  };
  return [options, columns];
}

function read(u, labels = null) {
  const index = u.cursor.idx, data = now.data, view = now.views[now.view];
  if (index === null || index === undefined || !data) { $("readout").textContent = ""; return; }
  const said = (i, r) => `${number(data.value[i][r], (data.high[i][r] - data.low[i][r]) / 2)} (${number(data.low[i][r], (data.high[i][r] - data.low[i][r]) / 2)} to ${number(data.high[i][r], (data.high[i][r] - data.low[i][r]) / 2)})`;
  if (labels) {
    const r = now.index ?? data.t.length - 1;
    $("readout").textContent = `${labels[index]}: ${said(view.of[index], r)}`;
    return;
  }
  const named = view.of.map((i) => (view.of.length > 1 ? `${data.names[i]}: ` : "") + said(i, index));
  $("readout").textContent = `${time(data.at[index])} · ${whole.format(data.t[index])} · ${named.join(" · ")}`;
}

function describe(view, data) {
  const last = data.t.length - 1, i = view.of[0];
  const words = view.kind === "histogram"
    ? `Histogram of ${view.of.length} bins with 95 % intervals at ${time(data.at[last])}.`
    : `${view.title}: ${number(data.value[i][last], (data.high[i][last] - data.low[i][last]) / 2)}, 95 % interval ${number(data.low[i][last], (data.high[i][last] - data.low[i][last]) / 2)} to ${number(data.high[i][last], (data.high[i][last] - data.low[i][last]) / 2)}. ${whole.format(data.t.length)} releases from ${time(data.at[0])} to ${time(data.at[last])}.`;
  $("chart").setAttribute("aria-label", words);
  // Not each release to a screen reader: at most one in ten seconds.
  if (Date.now() - (describe.spoken ?? 0) > 10000) { describe.spoken = Date.now(); $("spoken").textContent = words; }
}

$("chart").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  const u = now.chart;
  if (step === undefined || !u) return;
  event.preventDefault();
  const most = u.data[0].length - 1;
  const index = Math.max(0, Math.min(most, (u.cursor.idx ?? most + (step < 0 ? 1 : 0)) + step));
  u.setCursor({ left: u.valToPos(u.data[0][index], "x"), top: u.bbox.height / 2 / devicePixelRatio });
});
new ResizeObserver(() => now.chart?.setSize(size())).observe($("chart"));

// --- keys ----------------------------------------------------------------------------------------

const item = new Map();
function listKeys() {
  const total = now.keys.size + now.learning.length;
  const keyed = total > 1;
  $("side").hidden = !keyed;
  if (keyed) $("layout").dataset.keys = ""; else delete $("layout").dataset.keys;
  if (!keyed) return;
  const wanted = $("search").value.trim().toLowerCase();
  const all = [...now.keys.keys(), ...now.learning].map((key) => [key, keyText(key)]);
  all.sort(([, a], [, b]) => a.localeCompare(b, "en", { numeric: true }));
  const found = all.filter(([, text]) => text.toLowerCase().includes(wanted));
  $("found").textContent = `${whole.format(found.length)} of ${whole.format(total)} keys${now.learning.length ? `, ${whole.format(now.learning.length)} still learning` : ""}`;
  // A total is a key as others: that of all keys stands first, that of a level under its name.
  const levels = new Set(all.filter(([, text]) => text.includes(" · ")).map(([, text]) => text.split(" · ")[0]));
  found.sort(([a], [b]) => (b === "[]") - (a === "[]"));
  const children = [];
  let level = null;
  for (const [key, text] of found) {
    const [above, below] = text.split(" · ");
    if (levels.has(above) && above !== level) { level = above; children.push(el("li", { class: "level" }, above)); }
    if (!item.has(key)) item.set(key, makeItem(key, below !== undefined ? text.slice(above.length + 3) : levels.has(above) ? "total" : text));
    children.push(item.get(key));
  }
  $("keys").replaceChildren(...children);
  found.forEach(([key]) => updateItem(key));
}

function makeItem(key, text) {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  const button = el("button", { type: "button", "data-key": key }, el("span", { class: "key" }, text), el("span", { class: "now" }));
  button.append(svg);
  button.addEventListener("click", () => { now.range = "all"; select(key); });
  return el("li", {}, button);
}

function updateItem(key) {
  const li = item.get(key);
  if (!li) return;
  const row = now.keys.get(key), button = li.firstChild;
  button.setAttribute("aria-current", String(key === now.key));
  const count = learned(key), needed = now.about?.first_release;
  const words = row ? `${number(row.value[0], half(row))} ${reachText(half(row))}` : count === null ? "learning" : `learning, ${whole.format(count)} of ${whole.format(needed)}`;
  if (button.children[1].textContent !== words) button.children[1].textContent = words;
  if (!row) return;
  const spark = (row?.spark ?? []).filter((value) => value !== null);
  const [low, high] = [Math.min(...spark), Math.max(...spark)];
  const points = spark.map((value, k) => `${(100 * k) / Math.max(1, spark.length - 1)},${high > low ? 90 - (80 * (value - low)) / (high - low) : 50}`);
  button.children[2].firstChild.setAttribute("points", points.join(" "));
}

function showTotal() {
  const [all] = now.rollup;
  $("total").hidden = !all || all.keys < 2 || now.keys.has("[]");
  if ($("total").hidden) return;
  const reach = 1.96 * all.mean_noise_std;
  const [value, name] = all.name === "sum" ? [all.sum, "Sum"] : [all.mean, title(all.name)];
  const off = all.name === "sum" ? 1.96 * all.sum_noise_std : reach;
  $("total").replaceChildren(el("div", { class: "small muted" }, `${name} of all ${whole.format(all.keys)} keys`), el("b", {}, number(value, off)), ` ${reachText(off)}`);
}

$("search").addEventListener("input", listKeys);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement.tagName !== "INPUT" && !$("side").hidden) { event.preventDefault(); $("search").focus(); }
  const inList = $("keys").contains(document.activeElement) || document.activeElement === $("search");
  if (inList && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    event.preventDefault();
    const buttons = [...$("keys").querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    (at < 0 ? $("search") : buttons[Math.min(at, buttons.length - 1)])?.focus();
  }
});

// --- the plan ------------------------------------------------------------------------------------

function showPlan() {
  const about = now.about;
  document.querySelector(".cards").hidden = !about;
  $("zone").textContent = `Times are those of ${zone}.`;
  if (!about) return;
  const { epsilon, delta, protects } = about.promise;
  const odds = Math.exp(epsilon) < 1e6 ? `${Math.exp(epsilon).toLocaleString("en", { maximumSignificantDigits: 3 })} times` : "without a useful bound";
  const exponent = delta ? Math.log2(delta) : 0;
  const shown = delta && Math.abs(exponent - Math.round(exponent)) < 1e-9 ? `2${[...String(Math.round(exponent))].map((digit) => (digit === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit])).join("")}` : delta.toLocaleString("en", { maximumSignificantDigits: 3 });
  $("protects").replaceChildren(
    el("div", { class: "epsilon" }, el("div", {}, el("b", {}, String(epsilon)), "ε"), el("div", {}, el("b", {}, shown), "δ")),
    el("p", {}, `This protects ${protects}.`),
    el("p", {}, `Whoever sees every number on this page, and knows everything about everybody else, can still be hardly more certain about ${about.unit === "person" ? "one person" : "one observation"}: the odds of any guess change by at most ${odds}${delta ? `, but for a chance of ${shown}` : ""}.`),
    el("p", { class: "muted small" }, "Numbers of many observations stay useful: the band holds what they are without noise and clipping, in 95 of 100 cases, if large values thin out as the tail in their record says; where that is unknown, it is the band of the noise alone."),
  );
  const made = [
    ["Cadence", about.every_seconds ? `a release ${every(about.every_seconds)}, whether anything came or not` : about.every === 1 ? "a release for each observation" : `a release for every ${whole.format(about.every)} observations`],
    ["Learned from", about.lag ? `the first ${whole.format(about.lag)} ${about.every_seconds ? "ticks" : "observations"}` : "nothing: the clipping range is declared"],
    ["Planned for", about.length ? `${whole.format(about.length)} ${about.every_seconds ? "ticks" : "observations"}${about.keys.length > 1 ? " of each key" : ""}` : "no known end"],
  ];
  $("made").replaceChildren(...made.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text))));
  $("plan").replaceChildren(...about.description.map((line) => el("li", {}, line)));
  const reached = Math.max(0, ...[...now.keys.values()].map((row) => row.t));
  const rows = about.charges.map((charge) => {
    const due = charge.due <= Math.max(reached, now.progress?.absorbed && about.keys.length < 2 ? now.progress.absorbed : 0);
    return el("tr", { class: due ? null : "muted" }, el("td", {}, charge.label), el("td", { class: "number" }, `${whole.format(charge.first)} – ${charge.last === null ? "" : whole.format(charge.last)}`), el("td", {}, charge.cost), el("td", {}, due ? "charged" : "planned"));
  });
  $("charges").replaceChildren(el("thead", {}, el("tr", {}, ...["For", title(about.charged_to), "Cost", ""].map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows));
}

// --- taking it along -----------------------------------------------------------------------------

function save(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
const fileName = (end) => `${($("name").textContent || "releases").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-")}.${end}`;

function shownRows() {
  const u = now.chart, data = now.data;
  if (now.views[now.view].kind === "histogram" || !u) return [now.index ?? data.t.length - 1];
  const { min, max } = u.scales.x;
  return u.data[0].map((_, k) => k).filter((k) => u.data[0][k] >= min && u.data[0][k] <= max);
}

$("csv").addEventListener("click", () => {
  const data = now.data, cell = (text) => (/[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : text);
  const lines = ["key,t,at,name,value,low,high"];
  for (const r of shownRows()) {
    for (const i of now.views[now.view].of) {
      lines.push([now.key, data.t[r], new Date(data.at[r]).toISOString(), data.names[i], data.value[i][r], data.low[i][r], data.high[i][r]].map((each) => cell(each ?? "")).join(","));
    }
  }
  save(new Blob([lines.join("\r\n") + "\r\n"], { type: "text/csv" }), fileName("csv"));
});

$("png").addEventListener("click", () => {
  const drawn = now.chart.ctx.canvas, unit = rem() * devicePixelRatio, head = 5.6 * unit;
  const canvas = el("canvas");
  canvas.width = drawn.width + 2 * unit;
  canvas.height = drawn.height + head + 2.4 * unit;
  const ctx = canvas.getContext("2d");
  const family = getComputedStyle(document.body).fontFamily;
  const write = (text, x, y, height, weight, ink) => { ctx.fillStyle = colour(ink); ctx.font = `${weight} ${height * unit}px ${family}`; ctx.fillText(text, x, y); };
  ctx.fillStyle = colour("card");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  write($("name").textContent, unit, 1.6 * unit, 1, 600, "ink");
  write(`${$("value").textContent}  ${$("reach").textContent}`, unit, 3.6 * unit, 1.7, 650, "ink");
  write(`${$("when").textContent}${now.about ? `   ε = ${now.about.promise.epsilon}, protects one ${now.about.unit}` : ""}`, unit, 5 * unit, 0.8, 400, "muted");
  ctx.drawImage(drawn, unit, head);
  write("Released with differential privacy by rillet", unit, canvas.height - 0.8 * unit, 0.75, 400, "muted");
  canvas.toBlob((blob) => save(blob, fileName("png")), "image/png");
});

// --- colours -------------------------------------------------------------------------------------

const themes = ["auto", "light", "dark"];
function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
  $("theme").setAttribute("aria-label", `Colours: ${theme === "auto" ? "as the system has them" : theme}`);
  draw();
}
$("theme").addEventListener("click", () => {
  const next = themes[(themes.indexOf(localStorage.getItem("theme") ?? "auto") + 1) % 3];
  localStorage.setItem("theme", next);
  applyTheme(next);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
applyTheme(localStorage.getItem("theme") ?? "auto");

start();
