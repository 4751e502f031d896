// The page as a whole: where it comes from, its widths and colours, the keyboard, names, settings, keys.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { key } from "./servers.mjs";
import { answers, ask, eventually, expectNoSidewaysScroll, lastAnswer, settled } from "./steps.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

// No violation of WCAG 2.2 A and AA, of any impact.
async function expectAccessible(page, where) {
  await page.evaluate(`${axe}; undefined`);
  const { violations } = await page.evaluate(() => axe.run(document, {
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
  }));
  const lines = violations.map(({ id, impact, nodes }) =>
    `${id} (${impact}): ${nodes.map((node) => `${node.target} ${node.any[0]?.message ?? ""}`).join(", ")}`);
  assert.deepEqual(lines, [], where);
}

const showcase = `Both numbers are *close*, but **not equal**. In short:

1. Add the parts with \`sum()\`.
2. Compare them
   - exactly, or
   - within a bound.

\`\`\`python
def close(a, b, bound=1e-3):
    """Whether two numbers differ by no more than the bound, relative to the larger one."""
    return abs(a - b) <= bound * max(abs(a), abs(b))
\`\`\`

| method | error | time |
|:--|--:|--:|
| exact | 0 | 12 ms |
| bounded | 0.001 | 3 ms |

> The bound is a choice, see [the notes](https://example.org/notes).`;

async function converse(page) {
  await ask(page, "Hello!");
  await page.evaluate((text) => localStorage.setItem("tandem.settings", JSON.stringify({ system: text })),
    `instead: think: The person wants a comparison. I should give code and a table. || ${showcase}`);
  await ask(page, "When are two numbers equal?");
  await page.evaluate(() => localStorage.removeItem("tandem.settings"));
}

const openSettings = (page) => page.getByRole("button", { name: "Settings" }).click();
const done = (page) => page.getByRole("button", { name: "Done" }).click();

export const pageCases = {
  async LoadsFromItsOriginAloneUnderAStrictPolicy({ servers, open }) {
    const origin = await servers.origin("demo");
    const page = await open(origin, { expected: /policy|Trusted|127\.0\.0\.2/i });
    const headers = page.response.headers();
    assert.equal(headers["content-type"], "text/html; charset=utf-8");
    assert.equal(headers["cache-control"], "no-cache");
    assert.match(headers["content-security-policy"], /default-src 'none'; script-src 'self'; style-src 'self'/);
    assert.doesNotMatch(headers["content-security-policy"], /unsafe/);
    await page.getByText("demo", { exact: true }).waitFor();
    assert.equal(await page.title(), "demo · Tandem");
    // The policy is in force: neither an inline script nor another origin gets through.
    const outcome = await page.evaluate(async () => {
      const elsewhere = await fetch("http://127.0.0.2:9/").then(() => "sent", () => "refused");
      const script = document.createElement("script");
      let assigned = "assigned";
      try {
        script.text = "window.ran = true";
      } catch {
        assigned = "refused";
      }
      return { elsewhere, assigned, ran: window.ran === true };
    }).catch((error) => error.message);
    assert.deepEqual(outcome, { elsewhere: "refused", assigned: "refused", ran: false });
  },

  async OtherClientsGetTheNameAndVersion({ servers }) {
    const origin = await servers.origin("demo");
    for (const method of ["GET", "HEAD"]) {
      const response = await fetch(origin, { method, headers: { accept: "*/*" } });
      assert.equal(response.status, 200);
      assert.equal(response.headers.get("content-type"), "text/plain");
      if (method === "GET") assert.match(await response.text(), /^tandem \d+\.\d+/);
    }
    const head = await fetch(origin, { method: "HEAD", headers: { accept: "text/html" } });
    assert.equal(head.headers.get("content-type"), "text/html; charset=utf-8");
  },

  async CanBeSwitchedOff({ servers }) {
    const origin = await servers.origin("pageless");
    const root = await fetch(origin, { headers: { accept: "text/html" } });
    assert.equal(root.headers.get("content-type"), "text/plain");
    assert.equal((await fetch(`${origin}/web/main.js`)).status, 404);
  },

  async FitsADesktopAndAPhone({ servers, open, screenshot }) {
    const origin = await servers.origin("echo");
    const desktop = await open(origin);
    await desktop.getByText("echo", { exact: true }).waitFor();
    await screenshot(desktop, "desktop-empty");
    await converse(desktop);
    await screenshot(desktop, "desktop");
    await openSettings(desktop);
    await screenshot(desktop, "desktop-settings");

    const phone = await open(origin,
      { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 });
    await expectNoSidewaysScroll(phone, "empty");
    await converse(phone);
    await ask(phone, `${"unbroken".repeat(30)} \`${"code".repeat(40)}\` https://example.org/${"long/".repeat(40)}`);
    await expectNoSidewaysScroll(phone, "conversation");
    await screenshot(phone, "phone-long-words");
    await phone.locator("#scroller").evaluate((node) => node.scrollTo(0, 0));
    await screenshot(phone, "phone");
    await openSettings(phone);
    await expectNoSidewaysScroll(phone, "settings");
    await screenshot(phone, "phone-settings");
    await done(phone);
    await phone.getByRole("link", { name: "Server" }).click();
    await expectNoSidewaysScroll(phone, "server");
  },

  async HasNoAccessibilityFaultsInEitherColour({ servers, open, screenshot }) {
    const origin = await servers.origin("echo");
    for (const colorScheme of ["light", "dark"]) {
      const page = await open(origin, { colorScheme, reducedMotion: "reduce" });
      await expectAccessible(page, `${colorScheme}, empty`);
      await converse(page);
      await answers(page).last().locator("summary").click();
      await expectAccessible(page, `${colorScheme}, conversation`);
      if (colorScheme === "dark") await screenshot(page, "dark");
      await ask(page, "break: one two three four five six seven eight nine ten eleven twelve");
      await page.getByRole("alert").waitFor();
      await expectAccessible(page, `${colorScheme}, failed answer`);
      await openSettings(page);
      await page.getByLabel("Temperature").fill("-1");
      await expectAccessible(page, `${colorScheme}, settings`);
      await done(page);
      await page.getByRole("link", { name: "Server" }).click();
      await expectAccessible(page, `${colorScheme}, server`);
    }
    const locked = await open(await servers.origin("locked"));
    await locked.getByRole("dialog", { name: "This server asks for an API key" }).waitFor();
    await expectAccessible(locked, "key");
  },

  async NamesItsControls({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await converse(page);
    const names = ["New chat", "Settings", "Send", "Edit your message", "Copy answer", "Copy python", "Answer again"];
    for (const name of names) {
      assert.ok(await page.getByRole("button", { name }).last().isVisible(), name);
    }
    for (const role of ["banner", "navigation", "main"]) assert.equal(await page.getByRole(role).count(), 1, role);
    await openSettings(page);
    for (const label of ["System prompt", "Temperature", "Top p", "Tokens at most", "Thinking", "API key"]) {
      assert.ok(await page.getByRole("dialog").getByLabel(label, { exact: true }).isVisible(), label);
    }
  },

  async CanBeUsedByKeyboardAlone({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    const { keyboard } = page;
    const focused = () => page.evaluate(() => {
      const node = document.activeElement;
      return node.getAttribute("aria-label") ?? node.labels?.[0]?.textContent ?? node.textContent;
    });
    assert.equal(await focused(), "Your message", "a desktop begins in the field");
    await keyboard.type("first line");
    await keyboard.press("Shift+Enter");
    await keyboard.type("second line");
    await keyboard.press("Enter");
    await lastAnswer(page).getByText("second line").waitFor();
    await settled(page);
    assert.equal(await lastAnswer(page).innerText(), "first line\nsecond line");
    assert.equal(await focused(), "Your message");

    await keyboard.insertText(`slowly: ${"word ".repeat(300)}`);
    await keyboard.press("Enter");
    await page.getByRole("button", { name: "Stop" }).waitFor();
    await keyboard.press("Escape");
    await settled(page);
    assert.match(await answers(page).last().innerText(), /stopped/);

    // Backwards from the field, in the order of the page, each with a visible ring.
    const order = [];
    for (let i = 0; i < 12; i++) {
      await keyboard.press("Shift+Tab");
      order.unshift(await focused());
      const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
      assert.notEqual(ring, "none", order[0]);
      if (order[0] === "Chat") break;
    }
    assert.deepEqual(order, ["Chat", "Server", "New chat", "Settings", "Copy your message", "Copy answer",
      "Copy your message", "Edit your message", "Copy answer", "Answer again"]);
    for (let i = 0; i < 3; i++) await keyboard.press("Tab");
    await keyboard.press("Enter");
    await page.getByRole("dialog", { name: "Settings" }).waitFor();
    await keyboard.press("Escape");
    assert.equal(await focused(), "Settings", "a closed dialog gives the focus back");
  },

  async KeepsAndSendsItsSettings({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    const bodies = [];
    page.on("request", (request) => request.method() === "POST" && bodies.push(request.postDataJSON()));
    await ask(page, "plain");
    assert.deepEqual(Object.keys(bodies[0]).sort(), ["messages", "stream", "stream_options"]);

    await openSettings(page);
    await page.getByLabel("System prompt").fill("Be brief.");
    await page.getByLabel("Temperature").fill("0.25");
    await page.getByLabel("Top p").fill("0.9");
    await page.getByLabel("Tokens at most").fill("3");
    await page.getByLabel("Thinking").selectOption("low");
    await done(page);
    await page.reload();
    await ask(page, "one two three four five six");
    const { messages, ...rest } = bodies[1];
    assert.deepEqual(rest, { temperature: 0.25, top_p: 0.9, max_tokens: 3, reasoning_effort: "low", stream: true,
      stream_options: { include_usage: true } });
    assert.deepEqual(messages.map(({ role, content }) => [role, content]), [["system", "Be brief."], ["user", "plain"],
      ["assistant", "plain"], ["user", "one two three four five six"]]);
    assert.match(await answers(page).last().innerText(), /limit of tokens/);

    await openSettings(page);
    await page.getByLabel("Temperature").fill("101");
    await page.getByText("From 0 to 100.").waitFor();
    await page.getByLabel("Tokens at most").fill("");
    await done(page);
    await ask(page, "once more");
    assert.equal(bodies[2].temperature, undefined, "a value that is out of range is not sent");
    assert.equal(bodies[2].max_tokens, undefined);
  },

  async AsksForTheKeyThatTheServerWants({ servers, open }) {
    const origin = await servers.origin("locked");
    const page = await open(origin);
    const dialog = page.getByRole("dialog", { name: "This server asks for an API key" });
    await dialog.getByLabel("API key").fill("wrong");
    await dialog.getByRole("button", { name: "Use this key" }).click();
    await dialog.getByText("does not accept the key").waitFor();
    await dialog.getByLabel("API key").fill(` ${key}\u2028é`);
    await page.keyboard.press("Enter");
    await page.getByText("demo", { exact: true }).waitFor();
    assert.notEqual(await (await ask(page, "Hello, who are you?")).innerText(), "");
    assert.equal(await page.evaluate(() => localStorage.getItem("tandem.key")), null, "kept on wish only");

    await page.reload();
    await dialog.getByLabel("API key").fill(key);
    await dialog.getByLabel("Keep the key").check();
    await dialog.getByRole("button", { name: "Use this key" }).click();
    await page.getByText("demo", { exact: true }).waitFor();
    await page.reload();
    await page.getByText("demo", { exact: true }).waitFor();
    assert.equal(await dialog.isVisible(), false);
  },

  async ClearForgetsEverything({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await ask(page, "a secret");
    await openSettings(page);
    await page.getByLabel("System prompt").fill("Be brief.");
    await page.getByRole("textbox", { name: "API key" }).fill("a-key");
    await page.getByRole("checkbox", { name: "Keep the key" }).check();
    assert.ok((await page.evaluate(() => localStorage.length)) >= 3);
    await page.getByRole("button", { name: "Clear everything" }).click();
    assert.equal(await page.evaluate(() => localStorage.length), 0);
    await page.reload();
    assert.equal(await answers(page).count(), 0);
    assert.equal(await page.evaluate(() => localStorage.length), 0);
  },
};
