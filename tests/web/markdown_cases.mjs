// What the model writes, as the page shows it.
import assert from "node:assert/strict";
import { ask } from "./steps.mjs";

// Shows a text in one go and returns the HTML, in the page.
const render = (page, text) => page.evaluate(async (source) => {
  const { MarkdownView } = await import("/web/markdown.js");
  const node = document.createElement("div");
  new MarkdownView(node).show(source);
  for (const view of node.querySelectorAll("button")) view.remove();
  return node.innerHTML;
}, text);

const link = (address, text) => `<a href="${address}" target="_blank" rel="noopener noreferrer nofollow">${text}</a>`;
const code = (language, text) => `<div class="code"><div class="code-head"><span>${language}</span></div>` +
  `<pre tabindex="0" role="group" aria-label="${language}"><code>${text}</code></pre></div>`;

const expected = [
  ["a\nb\n\nc", "<p>a\nb</p><p>c</p>"],
  ["a  \nb", "<p>a<br>b</p>"],
  ["# One\n###### Six ##\n#none", "<h3>One</h3><h6>Six</h6><p>#none</p>"],
  ["**b** *i* ***bi*** __b__ _i_ ~~d~~", "<p><strong>b</strong> <em>i</em> <strong><em>bi</em></strong> " +
    "<strong>b</strong> <em>i</em> <del>d</del></p>"],
  ["*a **b** c* **a *b* c**", "<p><em>a <strong>b</strong> c</em> <strong>a <em>b</em> c</strong></p>"],
  ["2 * 3 * 4, snake_case_name, **open, a*", "<p>2 * 3 * 4, snake_case_name, **open, a*</p>"],
  ["`a*b*` ``x ` y`` `open", "<p><code>a*b*</code> <code>x ` y</code> `open</p>"],
  ["\\*no\\* \\`no\\`", "<p>*no* `no`</p>"],
  ["[t](https://a.b/c_(d) \"x\") ![p](http://a.b/p.png)",
    `<p>${link("https://a.b/c_(d)", "t")} ${link("http://a.b/p.png", "p")}</p>`],
  ["see https://a.b/c?d=e. (https://a.b/f) <https://g.h>",
    `<p>see ${link("https://a.b/c?d=e", "https://a.b/c?d=e")}. (${link("https://a.b/f", "https://a.b/f")}) ` +
    `${link("https://g.h/", "https://g.h")}</p>`],
  ["- a\n- b\n  - c\n  - d\n- e", "<ul><li>a</li><li>b<ul><li>c</li><li>d</li></ul></li><li>e</li></ul>"],
  ["3. a\n4. b\n\n   more", '<ol start="3"><li>a</li><li><p>b</p><p>more</p></li></ol>'],
  ["1. a\n   ```\n   x\n     y\n   ```\n2. b", `<ol><li>a${code("code", "x\n  y")}</li><li>b</li></ol>`],
  ["```c++ title\n<b> && \"q\"\n\tindented\n```\nafter",
    `${code("c++", "&lt;b&gt; &amp;&amp; \"q\"\n\tindented")}<p>after</p>`],
  ["````\n```\ninner\n```\n````", code("code", "```\ninner\n```")],
  ["```js\nopen", code("js", "open")],
  ["> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"],
  ["a | b\n--|:-:\n1 | `x\\|y`\n3",
    '<div class="table" tabindex="0" role="group" aria-label="Table"><table>' +
    '<thead><tr><th>a</th><th class="centre">b</th></tr></thead>' +
    '<tbody><tr><td>1</td><td class="centre"><code>x|y</code></td></tr></tbody></table></div><p>3</p>'],
  ["a\n***\nb", "<p>a</p><hr><p>b</p>"],
];

const attacks = [
  "<img src=x onerror=\"window.hit=1\">",
  "</script><script>window.hit=1</script>",
  "[click](javascript:window.hit=1) [click](JaVaScRiPt:window.hit=1) [c](java\nscript:window.hit=1)",
  "[click](data:text/html;base64,PHNjcmlwdD4=) [click](vbscript:x) [click](//example.org) [click](file:///etc/passwd)",
  "[x](https://a.b\"onmouseover=\"window.hit=1) <https://a.b/\" onclick=window.hit=1>",
  "![x](x\" onerror=\"window.hit=1) <javascript:window.hit=1> <svg/onload=window.hit=1>",
  "```\"><img src=x onerror=window.hit=1>\n</code></pre><iframe src=javascript:window.hit=1>\n```",
  "| <img src=x onerror=window.hit=1> | b |\n|--|--|\n" +
    "| </td><script>window.hit=1</script> | `<b onclick=window.hit=1>` |",
  "# <a href=javascript:window.hit=1>x</a>\n\n- <details ontoggle=window.hit=1 open>",
];

// Texts made of what Markdown gives a meaning to.
function randomTexts(seed, number) {
  const pieces = ["a", "b", " ", " ", "\n", "\n", "\n\n", "*", "**", "_", "__", "~~", "`", "``", "```", "\n```\n",
    "[", "]", "(", ")", "](https://a.b)", "<", ">", "> ", "- ", "1. ", "  ", "    ", "\t", "|", "\n|--|--|\n", "# ",
    "---", "\\", "!", "https://x.y/z", "javascript:", "<img onerror=x>", "é", "😀"];
  let state = seed;
  const below = (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
  return Array.from({ length: number }, () =>
    Array.from({ length: below(60) }, () => pieces[below(pieces.length)]).join(""));
}

export const markdownCases = {
  async BecomesTheElementsThatItMeans({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    for (const [source, html] of expected) assert.equal(await render(page, source), html, JSON.stringify(source));
  },

  async MarkupOfTheModelIsText({ servers, open, screenshot }) {
    const page = await open(await servers.origin("echo"));
    for (const attack of attacks) {
      const content = await ask(page, `think: ${attack} || ${attack}`);
      // Nothing is dropped but Markdown's own signs, addresses of links and what follows a fence.
      const letters = (text) => text.replace(/```.*|[^a-z]/gi, "");
      const shown = letters(await content.evaluate((node) => {
        const copy = node.cloneNode(true);
        for (const head of copy.querySelectorAll(".code-head")) head.remove();
        return copy.textContent;
      }));
      if (!attack.includes("](https")) assert.equal(shown, letters(attack));
    }
    const found = await page.evaluate(() => {
      const made = [...document.querySelectorAll("#messages *")];
      return {
        hit: window.hit ?? null,
        tags: [...new Set(made.map((node) => node.localName))].filter((tag) =>
          ["img", "script", "iframe", "svg", "b", "object", "style", "form", "input", "link", "base"].includes(tag)),
        handlers: made.flatMap((node) => node.getAttributeNames()).filter((name) => name.startsWith("on")),
        schemes: [...new Set([...document.querySelectorAll("#messages a")].map((node) => node.protocol))],
      };
    });
    assert.deepEqual(found, { hit: null, tags: [], handlers: [], schemes: ["https:"] });
    await screenshot(page, "markup-is-text");
  },

  async RandomTextsAreShownAlikeInOneGoAndPieceByPiece({ servers, open, print }) {
    const page = await open(await servers.origin("echo"));
    const seed = Number(process.env.TANDEM_WEB_SEED ?? Date.now() % 2 ** 32);
    print(`seed ${seed}: TANDEM_WEB_SEED repeats it`);
    const fault = await page.evaluate(async (texts) => {
      const { MarkdownView } = await import("/web/markdown.js");
      const tags = new Set(("p h3 h4 h5 h6 strong em del code a br ul ol li blockquote hr pre div span button " +
        "table thead tbody tr th td").split(" "));
      for (const text of texts) {
        const whole = document.createElement("div");
        new MarkdownView(whole).show(text);
        const grown = document.createElement("div");
        const view = new MarkdownView(grown);
        for (let end = 0; end <= text.length; end += 3) view.show(text.slice(0, end));
        view.show(text);
        if (whole.innerHTML !== grown.innerHTML) return `differs: ${JSON.stringify(text)}`;
        for (const node of whole.querySelectorAll("*")) {
          if (!tags.has(node.localName)) return `${node.localName}: ${JSON.stringify(text)}`;
          const fit = node.localName !== "a" || /^https?:$/.test(node.protocol);
          if (!fit) return `${node.href}: ${JSON.stringify(text)}`;
        }
        const letters = (source) => source.replace(/[^abé😀]/gu, "");
        for (const head of whole.querySelectorAll(".code-head")) head.remove();
        const shown = letters(whole.textContent);
        const written = letters(text.replaceAll("](https://a.b)", "]"));
        // Links hide their addresses, and a fence its language: nothing is shown that was not written.
        if (shown.length > letters(text).length) return `more than was written: ${JSON.stringify(text)}`;
        if (!/`|~|\(|\|/.test(text) && shown !== written) return `lost: ${JSON.stringify(text)} as ${shown}`;
      }
      return null;
    }, randomTexts(seed, 3000));
    assert.equal(fault, null);
  },

  async HostileTextsTakeLinearTime({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    const times = await page.evaluate(async () => {
      const { MarkdownView } = await import("/web/markdown.js");
      const size = 100_000;
      const units = ["[", "![", "](", "[](", "[a](<", "*", "* ", "*a ", "**a ", "_a", "`", "` `` ", "<", "<https://",
        "> ", "- ", "  - ", "1. ", "|", "|a\n", "-|", "#", "# ", "\\", "\t", " ", "```\n", "~~~~ ", "(", ")",
        "https://a.b/)", "a*_~`["];
      const texts = units.map((unit) => unit.repeat(size / unit.length));
      const space = " ".repeat(size);
      texts.push(`-${space}x`, `a|b\n-${space}x|`, `\`\`\`${space}\``, `# a${space}#b`, `[a](${"(".repeat(size)}`,
        `${"> ".repeat(2000)}a`, Array.from({ length: 400 }, (_, i) => `${" ".repeat(2 * i)}- a`).join("\n"));
      return texts.map((text) => {
        const begin = performance.now();
        new MarkdownView(document.createElement("div")).show(text);
        return [text.slice(0, 12), Math.round(performance.now() - begin)];
      });
    });
    for (const [text, milliseconds] of times) {
      assert.ok(milliseconds < 3000, `${JSON.stringify(text)}… of 100,000 characters took ${milliseconds} ms`);
    }
  },
};
