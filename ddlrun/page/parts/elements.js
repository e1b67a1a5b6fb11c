"use strict";
// The page of a run, live or as a file. What hosts and ranks have said reaches the document only as text, never as HTML.
const COLOURS = 5, DASHES = 4;
const byId = (id) => document.getElementById(id);

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
  const same = children.every((child, index) => child === parent.children[index]);
  if (same && children.length === parent.children.length) return;
  const focus = document.activeElement;
  parent.replaceChildren(...children);
  if (parent.contains(focus)) focus.focus({preventScroll: true});
}

function kept(elements, name, create) {
  if (!elements.has(name)) elements.set(name, create(name));
  return elements.get(name);
}

function render(number, unit) {
  if (!unit.startsWith("B")) return `${Number(number.toPrecision(3))}${unit && " "}${unit}`;
  const power = Math.min(5, Math.max(0, Math.floor(Math.log10(Math.max(1, number)) / 3)));
  const value = number / 1000 ** power;
  return `${value.toFixed(power && value < 10 ? 1 : 0)} ${["", "k", "M", "G", "T", "P"][power]}${unit}`;
}

function elapsed(seconds) {
  const whole = Math.round(seconds), pad = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${pad(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h${pad(Math.floor(whole / 60) % 60)}m`;
}

// The colour and dashes of a rank or host: the same in each chart, box and row.
const styleOf = (number) => `s${number % COLOURS} d${Math.floor(number / COLOURS) % DASHES}`;

function swatch(style) {
  const svg = draw("svg", {class: "swatch", viewBox: "0 0 20 10", "aria-hidden": "true"});
  const line = {class: style, x1: 1, x2: 19, y1: 5, y2: 5}, area = {class: style, width: 20, height: 10};
  svg.append(style === "band" ? draw("rect", area) : draw("line", line));
  return svg;
}

// A table of texts; on a narrow screen, each row is a paragraph with the titles.
function table(caption, titles, rows) {
  const grid = make("table", "", "stacked"), top = make("thead"), head = make("tr"), body = make("tbody");
  const kinds = titles.map((_, column) => rows.every((row) => /^[\d.]*$/.test(row[column])) ? "number" : "words");
  titles.forEach((title, column) => { head.append(make("th", title, kinds[column])); head.lastChild.scope = "col"; });
  for (const row of rows) {
    body.append(make("tr"));
    row.forEach((text, column) => {
      const cell = make("td", text, `${kinds[column]} ${["warning", "failure"].includes(text) ? text : ""}`);
      cell.dataset.title = titles[column];
      body.lastChild.append(cell);
    });
  }
  top.append(head);
  grid.append(make("caption", caption), top, body);
  const scroll = make("div", "", "scroll");
  scroll.append(grid);
  scroll.tabIndex = 0;
  scroll.role = "region";
  scroll.ariaLabel = caption;
  return scroll;
}

function facts(pairs) {
  const list = make("dl");
  for (const [name, text] of pairs) list.append(make("dt", name), make("dd", text));
  return list;
}
