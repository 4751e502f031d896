// Markdown to DOM nodes. What the model writes becomes text nodes and a fixed set of elements, never HTML; addresses
// of links are http or https. Time is linear in the text's length, times a bound on nesting.
import { copyButton, element } from "./dom.js";
import { inline } from "./markdown_inline.js";

const deepest = 12;  // nested lists and quotes; what is deeper stays text

const fenceOpening = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const heading = /^ {0,3}(#{1,6})(?:\s(.*))?$/;
const rule = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const quote = /^ {0,3}> ?/;
const listItem = /^( {0,3})([-*+]|\d{1,9}[.)])(?:\s+|$)/;

const blank = (line) => line.trim() === "";
const startsTable = (lines, at) => {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return false;
  const sides = cells(lines[at + 1]);
  return sides.every((cell) => /^:?-+:?$/.test(cell)) && sides.length === cells(lines[at]).length;
};
const startsBlock = (lines, at) =>
  fenceOpening.test(lines[at]) || heading.test(lines[at]) || rule.test(lines[at]) || quote.test(lines[at]) ||
  /^ {0,3}(?:[-*+]|1[.)])\s+\S/.test(lines[at]) || startsTable(lines, at);

// The blocks of some lines: {kind, begin, end} with the lines [begin, end).
function splitBlocks(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (blank(lines[at])) {
      at++;
      continue;
    }
    const begin = at;
    const kind = kindAt(lines, at);
    at = blockEnd[kind](lines, at);
    blocks.push({ kind, begin, end: at });
  }
  return blocks;
}

function kindAt(lines, at) {
  const line = lines[at];
  if (fenceOpening.test(line)) return "fence";
  if (heading.test(line)) return "heading";
  if (rule.test(line)) return "rule";
  if (quote.test(line)) return "quote";
  if (listItem.test(line)) return "list";
  return startsTable(lines, at) ? "table" : "paragraph";
}

const blockEnd = {
  heading: (lines, at) => at + 1,
  rule: (lines, at) => at + 1,
  fence(lines, at) {
    const [, , mark] = fenceOpening.exec(lines[at]);
    const closing = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}\\s*$`);
    for (at++; at < lines.length; at++) if (closing.test(lines[at])) return at + 1;
    return at;
  },
  quote(lines, at) {
    while (at < lines.length && quote.test(lines[at])) at++;
    return at;
  },
  // To a line that neither belongs to an item nor is an item of the same kind of list.
  list(lines, at) {
    const kind = itemKind(lines[at]);
    let inner = contentColumn(lines[at]);
    for (at++; at < lines.length; at++) {
      const line = lines[at];
      if (blank(line)) continue;
      if (indent(line) >= inner) continue;
      if (listItem.test(line) && !rule.test(line) && itemKind(line) === kind) inner = contentColumn(line);
      else if (blank(lines[at - 1]) || startsBlock(lines, at)) break;
    }
    while (blank(lines[at - 1])) at--;
    return at;
  },
  table(lines, at) {
    for (at += 2; at < lines.length && lines[at].includes("|");) at++;
    return at;
  },
  paragraph(lines, at) {
    for (at++; at < lines.length && !blank(lines[at]) && !startsBlock(lines, at);) at++;
    return at;
  },
};

const indent = (line) => spaced(line).length - line.trimStart().length;
// Tabs in front of a line, which an author meant as indentation, as spaces.
const spaced = (line) => line.replace(/^\t+/, (tabs) => "    ".repeat(tabs.length));
const itemKind = (line) => listItem.exec(line)[2].slice(-1);
function contentColumn(line) {
  const [marker, before, sign] = listItem.exec(line);
  // An item that begins with indented text keeps one space for itself.
  return marker.length - before.length - sign.length > 4 ? before.length + sign.length + 1 : Math.max(marker.length, 2);
}

const render = {
  paragraph: (lines) => element("p", {}, ...inline(lines.map((line) => line.trimStart()).join("\n"))),
  rule: () => element("hr"),
  heading(lines) {
    const [, signs, text = ""] = heading.exec(lines[0]);
    // The page's own headings are of the first two levels.
    return element(`h${Math.min(signs.length + 2, 6)}`, {}, ...inline(withoutClosingSigns(text.trim())));
  },
  fence(lines) {
    const [, , , info] = fenceOpening.exec(lines[0]);
    const name = info.trim().split(/\s/)[0] || "code";
    const code = element("code", {}, fenced(lines));
    return element("div", { class: "code" },
      element("div", { class: "code-head" },
        element("span", {}, name), copyButton(`Copy ${name}`, () => code.textContent)),
      element("pre", { tabindex: "0", role: "group", "aria-label": name }, code));
  },
  quote: (lines, depth) =>
    element("blockquote", {}, ...renderLines(lines.map((line) => line.replace(quote, "")), depth + 1)),
  list(lines, depth) {
    const number = parseInt(lines[0].trimStart(), 10);
    const list = Number.isNaN(number) ? element("ul") : element("ol", { start: number === 1 ? null : number });
    for (const item of itemsOf(lines)) list.append(element("li", {}, ...unwrap(renderLines(item, depth + 1), item)));
    return list;
  },
  table(lines) {
    const align = cells(lines[1]).map((cell) =>
      cell.endsWith(":") ? (cell.startsWith(":") ? "centre" : "right") : null);
    const row = (tag, line) => {
      const found = cells(line);
      return element("tr", {}, ...align.map((side, i) => element(tag, { class: side }, ...inline(found[i] ?? ""))));
    };
    const table = element("table", {}, element("thead", {}, row("th", lines[0])),
      element("tbody", {}, ...lines.slice(2).map((line) => row("td", line))));
    return element("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, table);
  },
};

// The lines of each item, without its marker and indentation.
function itemsOf(lines) {
  const items = [];
  let inner = 0;
  for (const line of lines.map(spaced)) {
    if (items.length === 0 || (listItem.test(line) && indent(line) < inner)) {
      inner = contentColumn(line);
      items.push([line.slice(Math.min(inner, line.length))]);
    } else {
      items.at(-1).push(line.slice(Math.min(indent(line), inner)));
    }
  }
  return items;
}

// An item of one paragraph has no space around it.
function unwrap(nodes, lines) {
  if (nodes[0]?.tagName !== "P" || lines.some(blank)) return nodes;
  return [...nodes[0].childNodes, ...nodes.slice(1)];
}

// "Title ##" is "Title".
function withoutClosingSigns(text) {
  let end = text.length;
  while (text[end - 1] === "#") end--;
  return end === 0 || text[end - 1] === " " ? text.slice(0, end).trimEnd() : text;
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// The code between the fences, of which the closing one may not have come yet.
function fenced(lines) {
  const [, before, mark] = fenceOpening.exec(lines[0]);
  const last = lines.at(-1).trim();
  const closed = lines.length > 1 && last.length >= mark.length && last === mark[0].repeat(last.length);
  const indentation = new RegExp(`^ {0,${before.length}}`);
  return lines.slice(1, closed ? -1 : undefined).map((line) => line.replace(indentation, "")).join("\n");
}

function renderBlock({ kind, begin, end }, lines, depth) {
  return render[kind](lines.slice(begin, end), depth);
}

function renderLines(lines, depth) {
  if (depth > deepest) return [element("p", {}, lines.join("\n"))];
  return splitBlocks(lines).map((block) => renderBlock(block, lines, depth));
}

// Shows a text that grows: blocks that are as they were keep their nodes, so that a selection or an opened part of
// the page survives the next token.
export class MarkdownView {
  #node;
  #shown = [];  // the source of each block in #node

  constructor(node) {
    this.#node = node;
  }

  show(text) {
    const lines = text.replaceAll("\r\n", "\n").split("\n");
    const blocks = splitBlocks(lines);
    const sources = blocks.map((block) => lines.slice(block.begin, block.end).join("\n"));
    let same = 0;
    while (same < sources.length && sources[same] === this.#shown[same]) same++;
    if (this.#growCode(blocks[same], lines, this.#shown[same], this.#node.childNodes[same])) same++;
    while (this.#node.childNodes.length > same) this.#node.lastChild.remove();
    this.#node.append(...blocks.slice(same).map((block) => renderBlock(block, lines, 0)));
    this.#shown = sources;
  }

  // Code that has grown keeps its node, and with it the focus and how far it was scrolled.
  #growCode(block, lines, shown, node) {
    if (block?.kind !== "fence" || shown?.split("\n", 1)[0] !== lines[block.begin]) return false;
    node.querySelector("code").textContent = fenced(lines.slice(block.begin, block.end));
    return true;
  }
}
