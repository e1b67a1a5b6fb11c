// -- charts ---------------------------------------------------------------------------------------
// A line is {name, style, points: [[x, y], ...], back}; a band is {points: [[x, low, high], ...]}.
const WIDTH = 480, HEIGHT = 200, LEFT = 80, BOTTOM = 26, TOP = 8;
const STEPS = [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10];
const MOST_KEYS = 8, MOST_LINES = 16;
// A busy CPU is measured as up to so many %: no reason for an axis beyond 100 %.
const SLACK = 1.05;

// The end of an axis: its half is round, too.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * STEPS.find((step) => step * power >= value);
}

function axisEnd(unit, values) {
  const most = Math.max(0, ...values), least = {"%": 100, "°C": 100, "ms": 0.001}[unit] ?? 1000;
  return unit === "%" && most <= 100 * SLACK ? 100 : roundUp(Math.max(least, most));
}

function chart({title, unit, lines, band = null, label, begin = Infinity, marks = []}) {
  const xs = lines.flatMap(({points}) => [points[0][0], points.at(-1)[0]]);
  const first = Math.min(...xs), end = Math.max(...xs);
  const near = marks.filter(({time}) => time > first - NEAR_SECONDS && time < end + NEAR_SECONDS);
  const from = Math.min(first, begin, ...near.map(({time}) => time)), to = Math.max(end, ...near.map(({time}) => time));
  const highs = [...lines.flatMap(({points}) => points.map(([, y]) => y)), ...(band ?? []).map(([, , high]) => high)];
  const top = axisEnd(unit, highs);
  const x = (at) => LEFT + (WIDTH - LEFT - 4) * (to > from ? (at - from) / (to - from) : 0.5);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(1, value / top));
  const place = ([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`;
  const svg = draw("svg", {class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title});
  for (const share of [0, 0.5, 1]) {
    svg.append(draw("line", {class: "grid", x1: LEFT, x2: WIDTH, y1: y(share * top), y2: y(share * top)}));
    svg.append(draw("text", {x: LEFT - 6, y: y(share * top) + 5, "text-anchor": "end"}, render(share * top, unit)));
  }
  svg.append(draw("text", {x: LEFT, y: HEIGHT - 6}, label(from)));
  if (to > from) svg.append(draw("text", {x: WIDTH - 4, y: HEIGHT - 6, "text-anchor": "end"}, label(to)));
  if (band) {
    const outline = [...band.map(([at, low]) => [at, low]), ...band.map(([at, , high]) => [at, high]).reverse()];
    svg.append(draw("polygon", {class: "band", points: outline.map(place).join(" ")}));
  }
  for (const {name, style, points, back} of lines) {
    const drawn = points.length > 1 ? points : [...points, ...points];  // a line of one point would be invisible
    svg.append(draw("polyline", {class: `${style}${back ? " back" : ""}`, points: drawn.map(place).join(" ")}));
    svg.lastChild.append(draw("title", {}, name));
  }
  for (const {time, text, number} of near) {
    const mark = draw("g", {class: "mark"});
    mark.append(draw("title", {}, text), draw("line", {x1: x(time), x2: x(time), y1: TOP, y2: HEIGHT - BOTTOM}),
                draw("text", {x: x(time) - 3, y: TOP + 12, "text-anchor": "end"}, String(number)));
    svg.append(mark);
  }
  const figure = make("figure");
  figure.append(make("h3", title), svg, keys(lines, band));
  return figure;
}

function keys(lines, band) {
  const list = make("ul", "", "keys");
  const range = band ? [{name: "lowest to highest", style: "band"}] : [];
  for (const {name, style} of [...range, ...lines.slice(0, MOST_KEYS)]) {
    list.append(make("li", name));
    list.lastChild.prepend(swatch(style));
  }
  if (lines.length > MOST_KEYS) list.append(make("li", `and ${lines.length - MOST_KEYS} more`, "dim"));
  return list;
}

// The lines of a chart; of many, the range and the median of all, and the lines of those that matter.
function summarize(lines, matters) {
  if (lines.length <= MOST_LINES) return {lines};
  const at = new Map();
  for (const {points} of lines) for (const [x, y] of points) kept(at, x, () => []).push(y);
  const band = [], median = [];
  for (const x of [...at.keys()].sort((a, b) => a - b)) {
    const values = at.get(x).sort((a, b) => a - b);
    band.push([x, values[0], values.at(-1)]);
    median.push([x, values[Math.floor((values.length - 1) / 2)]]);
  }
  const middle = {name: `median of ${lines.length}`, style: "median", points: median, back: false};
  return {band, lines: [middle, ...lines.filter(matters).slice(0, MOST_LINES)]};
}
