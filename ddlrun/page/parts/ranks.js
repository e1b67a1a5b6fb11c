// -- the data of ranks and hosts --------------------------------------------------------------------
const MOST_POINTS = 600, MOST_ROWS = 200, LOG_MS = 2000, NEAR_SECONDS = 60;
const METRICS = {
  cpu: {title: "CPU", unit: "%", floor: 100, value: (sample) => 100 * sample.cpu},
  gpu: {title: "GPU", unit: "%", floor: 100, value: (sample) => sample.gpu === null ? null : 100 * sample.gpu},
  rss: {title: "memory", unit: "B", floor: 1000, value: (sample) => sample.rss},
  read: {title: "read from storage", unit: "B/s", floor: 1000, value: (sample) => sample.read},
  written: {title: "written to storage", unit: "B/s", floor: 1000, value: (sample) => sample.written},
  queue: {title: "waiting for a CPU", unit: "%", floor: 100, value: (sample) => 100 * sample.queue},
};
// The samples by the names of ranks and hosts, and the names in samples of hosts by those of the plan.
const ranks = new Map(), hosts = new Map(), measured = new Map();
const cellOf = new Map(), boxOf = new Map(), rowOf = new Map();
let latest = null, content = null, chosen = null, metric = METRICS.cpu, titles = "";

function addSample(series, key, sample) {
  const name = sample[key], points = kept(series, name, () => []);
  points.push(sample);
  if (key === "ranks" && content?.places[name]) measured.set(content.places[name].host, sample.host);
  if (points.length > MOST_POINTS) series.set(name, points.filter((_, index) => index % 2 || index > MOST_POINTS / 2));
}

function numbers(text) {
  const found = new Set();
  for (const part of text.split(",")) {
    const [first, last = first] = part.split("-").map(Number);
    for (let rank = first; rank <= Math.min(last, first + 1e5); rank++) found.add(String(rank));
  }
  return found;
}

function filtered(names) {
  const text = byId("filter").value.trim().toLowerCase();
  if (!text) return names;
  if (/^[\d,-]+$/.test(text)) {
    const wanted = numbers(text);
    return names.filter((name) => [...numbers(name)].some((rank) => wanted.has(rank)));
  }
  return names.filter((name) => hostOf(name).toLowerCase().includes(text));
}

const last = (name) => ranks.has(name) ? ranks.get(name).at(-1) : null;
const hostOf = (name) => last(name)?.host ?? measured.get(content.places[name]?.host) ?? content.places[name]?.host ?? "";
const hostNames = () => [...new Set([...content.hosts.map((host) => measured.get(host) ?? host), ...hosts.keys()])];
const byNumber = (names) => [...names].sort((a, b) => parseInt(a) - parseInt(b));
const running = () => ["running", "starting", "unknown"].includes(latest.state);

// What a rank uses: now, or on average after the end of the run.
function usage(name, {value}) {
  const samples = ranks.get(name) ?? [];
  const found = (running() ? samples.slice(-1) : samples).map(value).filter((number) => number !== null);
  return found.length ? found.reduce((sum, number) => sum + number, 0) / found.length : null;
}

// The names of samples, or of ranks: with many ranks, samples are those of all ranks of a host.
function allNames() {
  const places = content.places.map(({rank}) => String(rank));
  const all = new Set([...latest.order, ...ranks.keys()]);
  return [...(all.size && !places.some((name) => all.has(name)) ? all : new Set([...all, ...places]))];
}

// The names, those in trouble first: as the server orders them, and after the end failures before causes of slowness.
function ordered(names, causes) {
  if (running()) return names;
  const failed = new Set(content.columns.flatMap(({failures}) => failures.map(String)));
  const trouble = (name) => failed.has(name) ? 0 : causes.has(name) ? 1 : 2;
  return byNumber(names).sort((a, b) => trouble(a) - trouble(b));
}

// -- placement ------------------------------------------------------------------------------------

function showPlacement(names, causes) {
  const values = names.map((name) => usage(name, metric)).filter((value) => value !== null);
  const top = Math.max(metric.floor, ...values), cells = new Map();
  for (const name of byNumber(names)) {
    kept(cells, hostOf(name), () => []).push(updateCell(kept(cellOf, name, makeCell), name, top, causes));
  }
  arrange(byId("hosts"), hostNames().filter((host) => cells.has(host)).map((host) => {
    const box = kept(boxOf, host, makeBox);
    arrange(box.lastChild, cells.get(host));
    return box;
  }));
  const what = `${metric.title}${running() ? "" : ", on average"}; the strongest is ${render(top, metric.unit)}`;
  put(byId("legend"), values.length ? `Each box is a rank. The stronger its colour, the more ${what}.` : "");
  byId("placement").hidden = names.length < 2;
}

function makeBox(host) {
  const box = make("div", "", "box");
  box.append(make("h3", host), make("div", "", "cells"));
  return box;
}

function makeCell(name) {
  const button = make("button", name, `cell ${styleOf(parseInt(name))}`);
  button.type = "button";
  button.dataset.rank = name;
  button.addEventListener("click", () => choose(name));
  return button;
}

function updateCell(button, name, top, causes) {
  const value = usage(name, metric);
  button.title = `rank ${name} on ${hostOf(name)}${value === null ? "" : `; ${metric.title} ${render(value, metric.unit)}`}`;
  button.setAttribute("aria-pressed", String(name === chosen));
  button.style.setProperty("--share", `${Math.round(100 * (value ?? 0) / top)}%`);
  button.classList.toggle("trouble", causes.has(name));
  return button;
}

// -- the table of ranks ---------------------------------------------------------------------------

function columns(causes) {
  const used = (title, key, unit, width) => {
    const idle = key !== "cpu" && !allNames().some((name) => usage(name, METRICS[key]) > 0);
    return {title, width, number: true, text: (name) => {
      const value = idle ? null : usage(name, METRICS[key]);
      return value === null ? "" : render(unit ? value : Math.round(value), unit);
    }};
  };
  const several = hostNames().length > 1;
  const peak = content.columns.some(({title}) => title === "most memory");
  const all = [
    {title: "host", width: "always", text: (name) => several ? hostOf(name) : ""},
    used("CPU %", "cpu", "", "always"), used("GPU %", "gpu", "", "always"),
    ...(peak ? [] : [used("memory", "rss", "B", "always")]),
    {title: "state", width: "always", text: (name) => running() && last(name) ? last(name).state : ""},
    used("read/s", "read", "B", "wide"), used("written/s", "written", "B", "chosen"), used("queue %", "queue", "", "wide"),
    ...content.columns.map(({title, number, width, texts, failures}) => ({
      title, number, width, words: title === "end",
      text: (name) => texts[name] ?? "", failed: (name) => failures.includes(Number(name)),
    })),
    {title: "cause of slowness", width: "always", text: (name) => causes.get(name) ?? "", failed: () => true},
  ];
  return all.filter(({text}) => allNames().some((name) => text(name)));
}

function showRows(names, causes) {
  const all = columns(causes), shown = all.filter(({width}) => width !== "chosen");
  const now = shown.map(({title}) => title).join();
  if (now !== titles) {
    titles = now;
    rowOf.clear();
    byId("titles").replaceChildren(...[{title: "rank"}, ...shown].map((column) => make("th", column.title, kindOf(column))));
    for (const head of byId("titles").children) head.scope = "col";
  }
  const rows = names.slice(0, MOST_ROWS);
  arrange(byId("rows"), rows.map((name) => updateRow(kept(rowOf, name, () => makeRow(name, shown)), name, shown)));
  const use = ranks.size && (running() ? "Use in the latest samples" : "Average use");
  put(byId("caption"), [use, causes.size && "ranks in trouble first"].filter(Boolean).join("; "));
  put(byId("left-out"), names.length > rows.length ? `${names.length - rows.length} more ranks; filter them above.` : "");
  byId("ranks").hidden = !rows.length;
  showChosen(all);
}

const kindOf = ({number, width, words}) =>
  [number && "number", width === "wide" && "wide", words && "words"].filter(Boolean).join(" ");

function makeRow(name, shown) {
  const row = make("tr"), head = make("th"), button = make("button", name);
  row.dataset.rank = name;
  head.scope = "row";
  button.type = "button";
  button.addEventListener("click", () => choose(name));
  head.append(swatch(styleOf(parseInt(name))), button);
  row.append(head, ...shown.map((column) => make("td", "", kindOf(column))));
  return row;
}

function updateRow(row, name, shown) {
  row.firstChild.lastChild.setAttribute("aria-pressed", String(name === chosen));
  shown.forEach((column, index) => {
    const cell = row.children[index + 1];
    put(cell, column.text(name));
    if (column.words) cell.title = column.text(name);
    cell.classList.toggle("failure", Boolean(column.failed?.(name)));
  });
  return row;
}

// -- the chosen rank ------------------------------------------------------------------------------

function choose(name) {
  chosen = chosen === name ? null : name;
  byId("log").textContent = "";
  show();
  readLog();
}

function showChosen(all) {
  byId("rank").hidden = byId("chosen").hidden = chosen === null;
  if (chosen === null) return;
  put(byId("rank-title"), `Rank ${chosen} on ${hostOf(chosen)}`);
  put(byId("chosen").firstChild, `rank ${chosen} and its log`);
  const pairs = all.map(({title, text}) => [title, text(chosen)]).filter(([title, text]) => text && title !== "host");
  byId("facts").replaceChildren(...facts(pairs).children);
}

async function readLog() {
  const name = chosen;
  if (name === null) return;
  const rank = parseInt(name), pre = byId("log");
  try {
    const text = (await logOf(rank)).replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "");
    if (name !== chosen) return;
    const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
    put(pre, text || "This rank has printed nothing, or the run has no logs of single ranks.");
    if (atEnd) pre.scrollTop = pre.scrollHeight;
  } catch {
    return;  // the line under the title tells it
  }
}
