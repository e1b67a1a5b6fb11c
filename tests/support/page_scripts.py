"""JavaScript that a browser evaluates on the page of a run: what is empty, and what is hard to see."""

# The number of texts and of lines, and the lowest contrast of each with what is behind them.
CONTRASTS = """
(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((v) => v / (colour.startsWith("color") ? 1 : 255)).map(
      (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = (e) => getComputedStyle(e);
  const behind = (e) => {
    while (/, 0\\)$/.test(style(e).backgroundColor)) e = e.parentElement;
    return style(e).backgroundColor;
  };
  const contrast = (ink, e) => {
    const [low, high] = [light(ink), light(behind(e))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const seen = [...document.body.querySelectorAll("*")].filter((e) => e.getClientRects().length);
  const texts = seen.filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()));
  const inks = texts.map((e) => contrast(e instanceof SVGElement ? style(e).fill : style(e).color, e));
  const lines = seen.filter((e) => e.matches("polyline")).map((e) => contrast(style(e).stroke, e));
  return [inks.length, Math.min(...inks), lines.length, Math.min(...lines)];
})()
"""

# What is shown and has no content: sections, charts without lines, columns of tables, texts.
EMPTY = """
(() => {
  const all = (part, selector) => [...part.querySelectorAll(selector)];
  const shown = (selector) => all(document, selector).filter((part) => part.getClientRects().length);
  const isBare = (part) => [...part.children].every((it) => it.matches("h2, summary") || !it.textContent.trim());
  const isEmpty = (grid, index) => all(grid, "tbody tr").every((row) => !row.children[index].textContent);
  for (const part of all(document, "details")) part.open = true;
  return [
    ...shown("section, details").filter(isBare).map((part) => part.id),
    ...shown("figure").filter((figure) => !figure.querySelector("polyline")).map((figure) => figure.textContent),
    ...shown("table").flatMap((grid) => all(grid, "thead th").filter((_, index) => isEmpty(grid, index)))
      .map((head) => head.textContent),
    ...shown("p, li, dd, caption, pre").filter((part) => !part.textContent.trim()).map((part) => part.outerHTML),
  ];
})()
"""

# Each rank -> the styles of its lines, of their keys, of its box and of its row.
STYLES = """
(() => {
  const found = {};
  const all = (selector) => [...document.querySelectorAll(selector)];
  const add = (name, style) => { (found[name] ??= new Set()).add(style.match(/s\\d d\\d/)[0]); };
  const style = (element) => element.querySelector("line").getAttribute("class");
  const ofRanks = (selector) => all(selector).filter((part) => part.textContent.startsWith("rank "));
  for (const line of ofRanks("polyline")) add(line.textContent, line.getAttribute("class"));
  for (const key of ofRanks(".keys li")) add(key.textContent, style(key));
  for (const cell of all(".cell")) add(`rank ${cell.dataset.rank}`, cell.className);
  for (const row of all("#rows tr")) add(`rank ${row.dataset.rank}`, style(row));
  return Object.fromEntries(Object.entries(found).map(([name, styles]) => [name, [...styles]]));
})()
"""
