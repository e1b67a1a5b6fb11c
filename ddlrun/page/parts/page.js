"use strict";
// The page of a run. What hosts and ranks have said reaches the document only as text, never as HTML.
const MOST_POINTS = 600, MOST_LINES = 30, MOST_ROWS = 200, MOST_KEYS = 8, COLOURS = 5;
const WIDTH = 480, HEIGHT = 200, LEFT = 80, BOTTOM = 26, TOP = 8;
const NEAR_SECONDS = 60, STEPS = [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10];
const RETRY_MS = 2000, LOG_MS = 2000;
const STATES = {R: "runs", S: "waits", D: "blocked", T: "stopped", t: "debugged", Z: "ended", I: "idle"};
const METRICS = {
  cpu: {title: "CPU", unit: "%", floor: 100, value: (sample) => 100 * sample.cpu},
  gpu: {title: "GPU", unit: "%", floor: 100, value: (sample) => 100 * (sample.gpu ?? 0)},
  rss: {title: "memory", unit: "B", floor: 1000, value: (sample) => sample.rss},
  read: {title: "read from storage", unit: "B/s", floor: 1000, value: (sample) => sample.read},
  written: {title: "written to storage", unit: "B/s", floor: 1000, value: (sample) => sample.written},
  queue: {title: "waiting for a CPU", unit: "%", floor: 100, value: (sample) => 100 * sample.queue},
};
const byId = (id) => document.getElementById(id);
const places = new Map(), ranks = new Map(), hosts = new Map();
const cellOf = new Map(), boxOf = new Map(), rowOf = new Map();
let latest = null, chosen = null, metric = METRICS.cpu;

function make(tag, words = "", name = "") {
  const element = document.createElement(tag);
  element.textContent = words;
  element.className = name;
  return element;
}

function draw(tag, attributes, words = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = words;
  return element;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Elements stay where they are as long as their order does, so that a click, a focus or a selection is not lost.
function arrange(parent, children) {
  if (children.length === parent.children.length && children.every((child, index) => child === parent.children[index])) return;
  const focus = document.activeElement;
  parent.replaceChildren(...children);
  if (parent.contains(focus)) focus.focus({preventScroll: true});
}

function kept(elements, name, create) {
  if (!elements.has(name)) elements.set(name, create(name));
  return elements.get(name);
}

function render(number, unit) {
  if (!unit.startsWith("B")) return `${Math.round(number)}${unit && " "}${unit}`;
  const power = Math.min(5, Math.max(0, Math.floor(Math.log10(Math.max(1, number)) / 3)));
  const value = number / 1000 ** power;
  return `${value.toFixed(power && value < 10 ? 1 : 0)} ${["", "k", "M", "G", "T", "P"][power]}${unit}`;
}

// -- the data -------------------------------------------------------------------------------------

function add(series, name, sample) {
  if (!series.has(name)) series.set(name, []);
  const points = series.get(name);
  points.push(sample);
  if (points.length > MOST_POINTS) series.set(name, points.filter((_, index) => index % 2 || index > MOST_POINTS / 2));
}

function receive(message) {
  if (message.first) [places, ranks, hosts].forEach((map) => map.clear());
  for (const place of message.ranks) places.set(String(place.rank), place);
  for (const sample of message.samples) add(ranks, sample.ranks, sample);
  for (const sample of message.hosts) add(hosts, sample.host, sample);
  latest = message;
  if (message.first) document.body.classList.remove("gpus");
  if (message.samples.some((sample) => sample.gpu !== null)) document.body.classList.add("gpus");
  show();
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
const hostOf = (name) => String((last(name) ?? places.get(name))?.host ?? "");

function allNames() {
  const order = latest.order;
  const known = new Set(order);
  const others = [...ranks.keys(), ...places.keys()].filter((name) => !known.has(name) && known.add(name));
  return [...order, ...(ranks.size && ![...ranks.keys()].some((name) => places.has(name)) ? [] : others)];
}

// -- the parts of the page ------------------------------------------------------------------------

function show() {
  if (!latest) return;
  const causes = new Map();
  for (const [names, text] of latest.findings) for (const name of names) if (!causes.has(name)) causes.set(name, text);
  const names = filtered(allNames());
  showHead();
  showPlacement(names, causes);
  showCharts(names);
  showEvents();
  showRows(names, causes);
}

function showHead() {
  document.title = `${latest.run}: ${latest.state}`;
  byId("run").textContent = latest.run;
  byId("state").textContent = latest.state + (latest.seconds ? `, ${Math.round(latest.seconds)} s after its start` : "");
  byId("state").className = `status ${{failed: "failure", lost: "failure", succeeded: "ok", running: "ok"}[latest.state] ?? ""}`;
  byId("limit").textContent = latest.limit;
  byId("findings").replaceChildren(...latest.findings.slice(1, 6).map(([, text]) => make("li", text)));
  byId("doctor").textContent = latest.doctor;
  byId("doctor").hidden = !latest.doctor;
}

function showPlacement(names, causes) {
  const values = names.filter(last).map((name) => metric.value(last(name)));
  const top = Math.max(metric.floor, ...values);
  const cells = new Map();
  for (const name of [...names].sort((a, b) => parseInt(a) - parseInt(b))) {
    const host = hostOf(name);
    if (!cells.has(host)) cells.set(host, []);
    cells.get(host).push(updateCell(kept(cellOf, name, makeCell), name, top, causes));
  }
  arrange(byId("placement"), [...cells].map(([host, buttons]) => {
    const box = kept(boxOf, host, makeBox);
    arrange(box.lastChild, buttons);
    return box;
  }));
  put(byId("legend"), `Each box is a rank. The stronger its colour, the more ${metric.title}; the strongest is ${render(top, metric.unit)}.`);
}

function makeBox(host) {
  const box = make("div", "", "host");
  box.append(make("h3", host), make("div", "", "cells"));
  return box;
}

function makeCell(name) {
  const button = make("button", name, "cell");
  button.type = "button";
  button.dataset.rank = name;
  button.addEventListener("click", () => choose(name));
  return button;
}

function updateCell(button, name, top, causes) {
  const sample = last(name), place = places.get(name), value = sample ? metric.value(sample) : 0;
  const where = place ? `; package ${place.packages}, cores ${place.cores}` : "";
  const gpu = place && place.gpu !== null ? `, GPU ${place.gpu}` : "";
  button.title = `rank ${name} on ${hostOf(name)}${where}${gpu}; ${metric.title} ${render(value, metric.unit)}`;
  button.setAttribute("aria-pressed", String(name === chosen));
  button.style.setProperty("--share", `${Math.round(100 * value / top)}%`);
  button.classList.toggle("trouble", causes.has(name));
  return button;
}

function showCharts(names) {
  const shown = names.filter((name) => ranks.has(name)).slice(0, MOST_LINES);
  if (chosen !== null && ranks.has(chosen) && !shown.includes(chosen)) shown.push(chosen);
  const lines = shown.map((name) => [`rank ${name}`, ranks.get(name), metric.value, rankColour(name), chosen !== null && name !== chosen]);
  chart(byId("rank-chart"), `Ranks: ${metric.title}`, metric.unit, lines);
  const series = [...new Set(names.map(hostOf))].filter((host) => hosts.has(host)).slice(0, MOST_LINES).map((host) => [host, hosts.get(host)]);
  const each = (value) => series.map(([host, points]) => [host, points, value, hostColour(host), false]);
  chart(byId("cpu-chart"), "Hosts: CPU", "%", each((sample) => 100 * sample.cpu / Math.max(1, sample.cores)));
  chart(byId("memory-chart"), "Hosts: memory in use", "B", each((sample) => sample.memory - sample.available));
  const hot = series.map(([host, points]) => [host, points.filter((sample) => sample.temperature !== null)]).filter(([, points]) => points.length);
  chart(byId("gpu-chart"), "Hosts: temperature of the hottest GPU", "°C", hot.map(([host, points]) => [host, points, (sample) => sample.temperature, hostColour(host), false]));
  chart(byId("network-chart"), "Hosts: network, both directions", "B/s", each((sample) => sample.received + sample.sent));
}

// The end of an axis: its half is round, too.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * STEPS.find((step) => step * power >= value);
}

// The colour of a rank or host stays the same in whatever order the lines come.
const rankColour = (name) => parseInt(name) % COLOURS;
const hostColour = (host) => [...hosts.keys()].indexOf(host) % COLOURS;

function chart(figure, title, unit, lines) {
  const points = lines.flatMap(([, samples]) => [samples[0], samples.at(-1)]);
  const [first, end] = [Math.min(...points.map((sample) => sample.time)), Math.max(...points.map((sample) => sample.time))];
  const marks = latest.events.map((event, index) => [event, index + 1]).filter(([{time}]) => time > first - NEAR_SECONDS && time < end + NEAR_SECONDS);
  const from = Math.min(first, ...marks.map(([{time}]) => time)), to = Math.max(end, ...marks.map(([{time}]) => time));
  const top = roundUp(Math.max(unit.startsWith("B") ? 1000 : 100, ...lines.flatMap(([, samples, value]) => samples.map(value))));
  const x = (time) => LEFT + (WIDTH - LEFT - 4) * (to > from ? (time - from) / (to - from) : 1);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  const svg = draw("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title});
  for (const share of [0, 0.5, 1]) {
    svg.append(draw("line", {class: "grid", x1: LEFT, x2: WIDTH, y1: y(share * top), y2: y(share * top)}));
    svg.append(draw("text", {x: LEFT - 6, y: y(share * top) + 4, "text-anchor": "end"}, render(share * top, unit)));
  }
  if (lines.length) {
    svg.append(draw("text", {x: LEFT, y: HEIGHT - 6}, `-${Math.round(to - from)} s`));
    svg.append(draw("text", {x: WIDTH - 4, y: HEIGHT - 6, "text-anchor": "end"}, new Date(1000 * to).toLocaleTimeString()));
  }
  lines.forEach(([name, samples, value, colour, back]) => {
    const line = draw("polyline", {
      class: `s${colour}${back ? " back" : ""}`,
      points: samples.map((sample) => `${x(sample.time).toFixed(1)},${y(value(sample)).toFixed(1)}`).join(" "),
    });
    line.append(draw("title", {}, name));
    svg.append(line);
  });
  for (const [event, number] of marks) {
    const mark = draw("g", {class: "mark"});
    mark.append(
      draw("title", {}, event.text), draw("line", {x1: x(event.time), x2: x(event.time), y1: TOP, y2: HEIGHT - BOTTOM}),
      draw("text", {x: x(event.time) - 3, y: TOP + 12, "text-anchor": "end"}, String(number)),
    );
    svg.append(mark);
  }
  const keys = make("ul", "", "keys");
  keys.append(...lines.slice(0, MOST_KEYS).map(([name, , , colour]) => make("li", name, `s${colour}`)));
  if (lines.length > MOST_KEYS) keys.append(make("span", `and ${lines.length - MOST_KEYS} more`));
  figure.replaceChildren(make("h3", title), svg, lines.length ? keys : make("p", "no samples", "dim"));
}

function showEvents() {
  byId("events").replaceChildren(...latest.events.map(({time, text}) => make("li", `${new Date(1000 * time).toLocaleTimeString()}: ${text}`)));
}

function showRows(names, causes) {
  const shown = names.slice(0, MOST_ROWS);
  arrange(byId("rows"), shown.map((name) => updateRow(kept(rowOf, name, makeRow), name, causes.get(name) ?? "")));
  const left = names.length - shown.length;
  put(byId("left-out"), left > 0 ? `${left} more ranks; filter them above.` : "");
}

function makeRow(name) {
  const row = make("tr"), head = make("th"), button = make("button", name);
  row.dataset.rank = name;
  head.scope = "row";
  button.type = "button";
  button.addEventListener("click", () => choose(name));
  head.append(button);
  row.append(head, ...["", "number", "gpu number", "number", "", "number", "number", "words failure"].map((kind) => make("td", "", kind)));
  return row;
}

function updateRow(row, name, cause) {
  const sample = last(name);
  const texts = !sample ? ["", "", "", "", "", ""] : [
    render(100 * sample.cpu, ""), sample.gpu === null ? "" : render(100 * sample.gpu, ""), render(sample.rss, "B"),
    sample.function === "-" ? STATES[sample.state] ?? sample.state : sample.function,
    render(sample.read, "B"), render(100 * sample.queue, ""),
  ];
  row.firstChild.firstChild.setAttribute("aria-pressed", String(name === chosen));
  [hostOf(name), ...texts, cause].forEach((text, index) => put(row.children[index + 1], text));
  return row;
}

// -- logs -----------------------------------------------------------------------------------------

function choose(name) {
  chosen = chosen === name ? null : name;
  byId("log-section").hidden = chosen === null;
  byId("log").textContent = "";
  show();
  readLog();
}

async function readLog() {
  const name = chosen;
  if (name === null) return;
  const rank = parseInt(name), pre = byId("log");
  byId("log-title").textContent = `Log of rank ${rank}`;
  try {
    const reply = await fetch(`log?rank=${rank}`);
    const text = (reply.ok ? await reply.text() : "").replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "");
    if (name !== chosen) return;
    const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
    const words = text || "This rank has printed nothing, or the run has no logs of single ranks.";
    if (pre.textContent !== words) pre.textContent = words;
    if (atEnd) pre.scrollTop = pre.scrollHeight;
  } catch {
    return;  // the line under the title tells it
  }
}

// -- the connection -------------------------------------------------------------------------------

function connect() {
  const source = new EventSource("events");
  source.onopen = () => { byId("link").textContent = "connected"; };
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => {
    byId("link").textContent = "no connection: ddlrun has ended, or the network is cut; trying again";
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
  };
}

for (const [name, {title}] of Object.entries(METRICS)) {
  const option = make("option", title);
  option.value = name;
  if (name === "gpu") option.className = "gpu";
  byId("metric").append(option);
}
byId("metric").addEventListener("change", (event) => { metric = METRICS[event.target.value]; show(); });
byId("filter").addEventListener("input", show);
setInterval(() => { if (latest?.state === "running") readLog(); }, LOG_MS);
connect();
