// The inside of a paragraph: code, emphasis, links, text. Returns nodes; see markdown.js.
import { element } from "./dom.js";

const deepest = 8;  // nested emphasis and links; what is deeper stays text
const longestAddress = 2000;
const marks = { "**": "strong", "__": "strong", "~~": "del", "*": "em", "_": "em" };

// An address that a link may have; null for any other scheme.
function safeAddress(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

const link = (address, children) =>
  element("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);

export function inline(text, depth = 0) {
  return depth > deepest ? [text] : new Inline(text, depth).nodes();
}

class Inline {
  #text;
  #depth;
  #at = 0;
  #plain = "";
  #nodes = [];
  #brackets;              // the closing bracket of each opening one
  #codes = new Map();     // the end of each code span, by its start
  #unclosed = new Set();  // marks that no later place closes

  constructor(text, depth) {
    this.#text = text;
    this.#depth = depth;
    this.#findCodes();
    this.#brackets = this.#matchBrackets();
  }

  nodes() {
    while (this.#at < this.#text.length) {
      if (!this.#special()) this.#plain += this.#text[this.#at++];
    }
    this.#flush();
    return this.#nodes;
  }

  #flush() {
    if (this.#plain !== "") this.#nodes.push(this.#plain);
    this.#plain = "";
  }

  #add(node, end) {
    this.#flush();
    this.#nodes.push(node);
    this.#at = end;
    return true;
  }

  // Takes what stands at #at where it is more than a character.
  #special() {
    const text = this.#text;
    const at = this.#at;
    switch (text[at]) {
      case "\\": return this.#escape();
      case "`": return this.#code();
      case "\n": return this.#lineBreak();
      case "<": return this.#angle();
      case "!": return text[at + 1] === "[" && this.#link(at + 1);
      case "[": return this.#link(at);
      case "*": case "_": case "~": return this.#emphasis();
      case "h": case "H": return this.#bareAddress();
      default: return false;
    }
  }

  #escape() {
    const next = this.#text[this.#at + 1];
    if (next === undefined || !/[!-/:-@[-`{-~]/.test(next)) return false;
    this.#plain += next;
    this.#at += 2;
    return true;
  }

  #lineBreak() {
    if (!this.#plain.endsWith("  ")) return false;
    this.#plain = this.#plain.trimEnd();
    return this.#add(element("br"), this.#at + 1);
  }

  // Pairs runs of backticks of equal length, each with the next one.
  #findCodes() {
    const runs = [...this.#text.matchAll(/\\`|`+/g)].filter(([run]) => run[0] === "`");
    const next = new Map();  // of runs of a length, the nearest behind
    const partner = new Array(runs.length);
    for (let i = runs.length - 1; i >= 0; i--) {
      partner[i] = next.get(runs[i][0].length);
      next.set(runs[i][0].length, i);
    }
    for (let i = 0; i < runs.length; i++) {
      if (partner[i] === undefined) continue;
      const closing = runs[partner[i]];
      this.#codes.set(runs[i].index, { end: closing.index + closing[0].length, ticks: closing[0].length });
      i = partner[i];
    }
  }

  #code() {
    const code = this.#codes.get(this.#at);
    if (code) {
      let body = this.#text.slice(this.#at + code.ticks, code.end - code.ticks).replaceAll("\n", " ");
      if (body.trim() !== "" && body.startsWith(" ") && body.endsWith(" ")) body = body.slice(1, -1);
      return this.#add(element("code", {}, body), code.end);
    }
    while (this.#text[this.#at] === "`") this.#plain += this.#text[this.#at++];
    return true;
  }

  #matchBrackets() {
    const closing = new Map();
    const open = [];
    for (let i = 0; i < this.#text.length; i++) {
      const character = this.#text[i];
      if (character === "\\") i++;
      else if (this.#codes.has(i)) i = this.#codes.get(i).end - 1;
      else if (character === "[") open.push(i);
      else if (character === "]" && open.length > 0) closing.set(open.pop(), i);
    }
    return closing;
  }

  // [text](address "title") with its bracket at `open`; a picture becomes a link to it.
  #link(open) {
    const close = this.#brackets.get(open);
    if (close === undefined || this.#text[close + 1] !== "(") return false;
    const target = /^\(\s*<?([^\s<>]*?)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)$/.exec(this.#target(close + 1));
    const address = target && safeAddress(target[1]);
    if (!address) return false;
    const label = this.#text.slice(open + 1, close);
    const children = label === "" ? [address] : inline(label, this.#depth + 1);
    // A link in a link's text stays text.
    const flat = children.map((node) => (node.tagName === "A" ? node.textContent : node));
    return this.#add(link(address, flat), close + 1 + target[0].length);
  }

  // From the opening parenthesis at `begin` to the one that closes it.
  #target(begin) {
    const end = Math.min(this.#text.length, begin + longestAddress);
    for (let i = begin, depth = 0; i < end; i++) {
      if (this.#text[i] === "(") depth++;
      else if (this.#text[i] === ")" && --depth === 0) return this.#text.slice(begin, i + 1);
    }
    return "";
  }

  // <https://…>; anything else in angle brackets is text.
  #angle() {
    const found = /^<(https?:\/\/[^\s<>]+)>/i.exec(this.#text.slice(this.#at, this.#at + longestAddress));
    const address = found && safeAddress(found[1]);
    return address ? this.#add(link(address, [found[1]]), this.#at + found[0].length) : false;
  }

  #bareAddress() {
    if (/\w/.test(this.#text[this.#at - 1] ?? "")) return false;
    const rest = this.#text.slice(this.#at, this.#at + longestAddress);
    let [found] = /^https?:\/\/[^\s<>"'`*|\\]+/i.exec(rest) ?? [];
    if (!found) return false;
    found = found.replace(/[.,:;!?_~]{1,20}$/, "");
    // A parenthesis that was opened before the address is not part of it.
    while (found.endsWith(")") && found.split(")").length > found.split("(").length) found = found.slice(0, -1);
    const address = safeAddress(found);
    return address ? this.#add(link(address, [found]), this.#at + found.length) : false;
  }

  #emphasis() {
    const text = this.#text;
    const at = this.#at;
    const sign = text[at];
    let run = 1;
    while (text[at + run] === sign) run++;
    const mark = sign.repeat(run >= 2 ? 2 : 1);
    const opens = marks[mark] && run <= 3 && !/^(?:\s|$)/.test(text.slice(at + run, at + run + 1)) &&
      !(sign === "_" && /[\p{L}\p{N}]/u.test(text[at - 1] ?? ""));
    const close = opens ? this.#closing(mark, at + mark.length) : -1;
    if (close < 0) {
      this.#plain += text.slice(at, at + run);
      this.#at += run;
      return true;
    }
    const children = inline(text.slice(at + mark.length, close), this.#depth + 1);
    return this.#add(element(marks[mark], {}, ...children), close + mark.length);
  }

  // Where the mark that was opened before `from` is closed; -1 where it is not.
  #closing(mark, from) {
    const text = this.#text;
    if (this.#unclosed.has(mark)) return -1;
    for (let i = from; i < text.length;) {
      if (text[i] === "\\") {
        i += 2;
      } else if (this.#codes.has(i)) {
        i = this.#codes.get(i).end;
      } else if (text[i] !== mark[0]) {
        i++;
      } else {
        let run = 1;
        while (text[i + run] === mark[0]) run++;
        const fits = mark.length === 2 ? run >= 2 : run !== 2;
        const closes = i > from && !/\s/.test(text[i - 1]) &&
          !(mark[0] === "_" && /[\p{L}\p{N}]/u.test(text[i + run] ?? ""));
        // Of three signs the outer mark takes the last.
        if (fits && closes) return i + (mark.length === 2 ? run - 2 : 0);
        i += run;
      }
    }
    this.#unclosed.add(mark);
    return -1;
  }
}
