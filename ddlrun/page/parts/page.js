// -- the parts of the page ------------------------------------------------------------------------
const RETRY_MS = 2000;
let drawn = null;
const LEVELS = {failed: "failure", lost: "failure", succeeded: "ok", running: "ok"};

function receive(message) {
  if (message.first) [ranks, hosts, measured].forEach((map) => map.clear());
  content = message.content ?? content;
  const named = (fields, values) => Object.fromEntries(fields.map((field, index) => [field, values[index]]));
  for (const values of message.samples) addSample(ranks, "ranks", named(message.rank_fields, values));
  for (const values of message.hosts) addSample(hosts, "host", named(message.host_fields, values));
  latest = message;
  show();
}

function show() {
  if (!latest) return;
  const causes = new Map();
  for (const {samples, cause} of latest.findings) for (const name of samples) if (!causes.has(name)) causes.set(name, cause);
  const names = ordered(filtered(allNames()), causes);
  showHead();
  showPlacement(names, causes);
  showCharts(names, causes);
  showRows(names, causes);
  showSections();
  byId("controls").hidden = allNames().length < 2;
  showLinks();
}

function showLinks() {
  const parts = [...document.querySelectorAll("section:not([hidden]), details")];
  const titles = parts.map((part) => part.querySelector("h2").textContent);
  if (byId("links").dataset.titles === titles.join()) return;
  byId("links").dataset.titles = titles.join();
  byId("links").replaceChildren(...parts.map((part, index) => {
    const item = make("li"), link = make("a", titles[index]);
    link.href = `#${part.id}`;
    link.addEventListener("click", () => { if (part.tagName === "DETAILS") part.open = true; });
    item.append(link);
    return item;
  }));
}

function showHead() {
  document.title = `${latest.script}, ${latest.run}: ${latest.state}`;
  put(byId("script"), latest.script);
  const started = latest.started ? new Date(1000 * latest.started).toLocaleString("sv") : "";
  put(byId("job"), [latest.run, content.job, started].filter(Boolean).join(" · "));
  put(byId("state"), latest.status);
  byId("state").className = `status ${LEVELS[latest.state] ?? "warning"}`;
  byId("notes").replaceChildren(...content.notes.map((note) => make("li", `Note: ${note}.`)));
  put(byId("limit"), latest.limit && `Limit: ${latest.limit}`);
  byId("findings").replaceChildren(...latest.findings.slice(1, 6).map(({text}) => make("li", text)));
  put(byId("verdict"), latest.verdict);
  put(byId("reason"), content.failure);
  byId("failure").hidden = !content.failure;
}

function makeLine(name, style, samples, value, back = false) {
  const points = (samples ?? []).map((sample) => [sample.time, value(sample)]).filter(([, y]) => y !== null);
  return {name, style, points, back};
}

function rankLines(names) {
  return byNumber(names).map((name) => {
    const back = chosen !== null && name !== chosen;
    return makeLine(`rank ${name}`, styleOf(parseInt(name)), ranks.get(name), metric.value, back);
  });
}

function hostLines(names, value) {
  const shown = new Set(names.map(hostOf));
  const lines = hostNames().map((host, index) => makeLine(host, styleOf(index), hosts.get(host), value));
  return lines.filter(({name}) => shown.has(name));
}

function showCharts(names, causes) {
  const firsts = [...ranks.values(), ...hosts.values()].map(([sample]) => sample.time);
  const begin = latest.started || Math.min(...firsts), label = (time) => elapsed(Math.max(0, time - begin));
  const marks = latest.events.map((event, index) => ({...event, number: index + 1}));
  const important = new Set([...causes.keys(), chosen].map((name) => `rank ${name}`));
  const share = ({cpu, cores}) => Math.min(100, 100 * cpu / Math.max(1, cores));
  const charts = [
    [`Ranks: ${metric.title}`, metric.unit, rankLines(names)],
    ["Hosts: CPU", "%", hostLines(names, share)],
    ["Hosts: memory in use", "B", hostLines(names, ({memory, available}) => memory - available)],
    ["Hosts: network, both directions", "B/s", hostLines(names, ({received, sent}) => received + sent)],
    ["Hosts: temperature of the hottest GPU", "°C", hostLines(names, ({temperature}) => temperature)],
  ].map(([title, unit, lines]) => [title, unit, lines.filter(({points}) => points.length)]);
  const used = charts.filter(([, unit, lines]) => lines.some(({points}) => unit === "%" || points.some(([, y]) => y > 0)));
  byId("charts").replaceChildren(...used.map(([title, unit, lines]) =>
    chart({title, unit, label, begin, marks, ...summarize(lines, ({name}) => important.has(name))})));
  byId("events").replaceChildren(...latest.events.map(({time, text}) => make("li", `${label(time)}: ${text}`)));
  byId("time").hidden = !used.length && !latest.events.length;
  byId("choice").hidden = !ranks.size;
  const gpus = [...ranks.values()].some((samples) => samples.at(-1).gpu !== null);
  document.querySelector("option[value=gpu]").hidden = !gpus;
}

function showSections() {
  if (drawn !== content) {
    drawn = content;
    byId("unfolded").replaceChildren(...content.sections.filter(({unfolded}) => unfolded).map(makeSection));
    byId("folded").replaceChildren(...content.sections.filter(({unfolded}) => !unfolded).map(makeSection));
  }
  content.sections.forEach(({title, charts}) => {
    const label = (iteration) => String(iteration);
    byId(idOf(title)).querySelector(".charts")?.replaceChildren(...charts.map(({title, unit, iterations, lines}) => chart({
      title, unit, label, lines: lines.map(({name, rank, values}, number) => ({
        name, style: styleOf(rank ?? number), back: chosen !== null && rank !== null && String(rank) !== chosen,
        points: values.map((value, at) => [iterations[at], value]).filter(([, value]) => value !== null),
      })),
    })));
  });
}

const idOf = (title) => title.toLowerCase().replaceAll(" ", "-");

function makeSection({title, unfolded, charts, facts: pairs, tables}) {
  const part = make(unfolded ? "section" : "details"), head = make("h2", title);
  part.id = idOf(title);
  part.append(unfolded ? head : make("summary"));
  if (!unfolded) part.firstChild.append(head);
  if (charts.length) part.append(make("div", "", "charts"));
  if (pairs.length) part.append(facts(pairs));
  part.append(...tables.map(({caption, columns: names, rows}) => table(caption, names, rows)));
  return part;
}

// -- the source: data in the file, or a server ----------------------------------------------------

let logOf = async (rank) => {
  const reply = await fetch(`log?rank=${rank}`);
  return reply.ok ? reply.text() : "";
};

function connect() {
  const source = new EventSource("events");
  source.onopen = () => { byId("link").textContent = "connected"; };
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => {
    byId("link").textContent = "no connection: ddlrun has ended, or the network is cut; trying again";
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
  };
}

function start() {
  for (const [name, {title}] of Object.entries(METRICS)) {
    byId("metric").append(make("option", title));
    byId("metric").lastChild.value = name;
  }
  byId("metric").addEventListener("change", (event) => { metric = METRICS[event.target.value]; show(); });
  byId("filter").addEventListener("input", show);
  byId("all").addEventListener("click", () => choose(chosen));
  const data = byId("data").textContent;
  if (!data) {
    setInterval(() => { if (latest?.state === "running") readLog(); }, LOG_MS);
    connect();
    return;
  }
  const {logs, ...message} = JSON.parse(data);
  logOf = async (rank) => logs[rank] ?? "";
  receive(message);
}

start();
