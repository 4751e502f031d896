// Conversations: streaming, stopping, failing, keeping.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { answers, ask, eventually, lastAnswer, prompt, send, settled } from "./steps.mjs";

const notice = (page) => page.getByRole("alert").locator("visible=true");

export const chatCases = {
  async TheModelsAnswerAppearsAndIsKept({ servers, open }) {
    const page = await open(await servers.origin("demo"));
    const text = await (await ask(page, "Hello, who are you?")).innerText();
    assert.match(text, /\w{2}/);
    const figures = await answers(page).last().locator("footer").innerText();
    assert.match(figures, /\d+ tokens · [\d,.]+\/s · first after [\d.]+ m?s · prompt \d+/);
    await page.reload();
    assert.equal(await lastAnswer(page).innerText(), text);
  },

  async TextComesWhileItIsWritten({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await page.evaluate(() => {
      window.seen = new Set();
      window.spoken = [];
      const watch = (node, take) =>
        new MutationObserver(take).observe(node, { childList: true, subtree: true, characterData: true });
      watch(document.querySelector("#messages"), () =>
        window.seen.add(document.querySelector(".answer:last-child .content")?.innerText.length));
      const announcer = document.querySelector("#announcer");
      watch(announcer, () => window.spoken.push(announcer.textContent));
    });
    await ask(page, "slowly: one two three four five six");
    const { seen, spoken } = await page.evaluate(() => ({ seen: [...window.seen], spoken: window.spoken }));
    assert.ok(seen.length >= 5, `lengths seen: ${seen}`);
    // A screen reader hears the finished answer, once.
    assert.deepEqual(spoken, ["Answer: one two three four five six"]);
  },

  async StopFreesTheServer({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await send(page, `slowly: ${"word ".repeat(400)}`);
    await eventually(() => lastAnswer(page).innerText(), (text) => text.includes("word"), "the answer begins");
    await page.getByRole("button", { name: "Stop" }).click();
    await settled(page);
    const text = await lastAnswer(page).innerText();
    assert.match(await answers(page).last().innerText(), /stopped/);
    // The server answers one request at a time, and the first would have taken 20 s.
    const begin = Date.now();
    assert.equal(await (await ask(page, "next")).innerText(), "next");
    assert.ok(Date.now() - begin < 5000, `${Date.now() - begin} ms`);
    assert.equal(await answers(page).first().locator(".content").innerText(), text);
  },

  async ThoughtsAreFolded({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    const bodies = [];
    page.on("request", (request) => request.method() === "POST" && bodies.push(request.postDataJSON()));
    const content = await ask(page, "think: first this, then that || The answer.");
    assert.equal(await content.innerText(), "The answer.");
    const thoughts = answers(page).last().locator(".thoughts");
    assert.equal(await thoughts.isVisible(), false);
    await answers(page).last().getByText("Thoughts").click();
    assert.equal(await thoughts.innerText(), "first this, then that");
    await ask(page, "next");
    assert.equal(bodies[1].messages[1].reasoning_content.trim(), "first this, then that");
  },

  async AnErrorInTheStreamIsALineWithARetry({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await send(page, "break: one two three four five six seven eight nine ten eleven twelve thirteen");
    await notice(page).getByText("layer 7").waitFor();
    assert.match(await lastAnswer(page).innerText(), /^one two/, "what came stays");
    assert.match(await answers(page).last().innerText(), /incomplete/);
    await page.getByRole("button", { name: "Try again" }).click();
    await eventually(() => answers(page).count(), (count) => count === 1, "the retry takes the answer's place");
    await notice(page).getByText("layer 7").waitFor();
  },

  async ALostConnectionIsToldAndTheServersReturnIsFound({ servers, open }) {
    const server = await servers.start("echo");
    const page = await open(server.origin);
    await send(page, `slowly: ${"word ".repeat(400)}`);
    await eventually(() => lastAnswer(page).innerText(), (text) => text.includes("word"), "the answer begins");
    server.kill();
    await notice(page).getByText("The connection was lost before the answer was complete.").waitFor();
    await page.getByRole("button", { name: "Try again" }).click();
    await notice(page).getByText("The server can’t be reached.").waitFor();
    assert.equal(await answers(page).count(), 0);
    assert.equal(await page.getByRole("article", { name: "You" }).count(), 1, "the question stays");
  },

  async ARefusedRequestShowsTheServersReason({ servers, open }) {
    const page = await open(await servers.origin("demo"));
    await send(page, "many words ".repeat(40_000));
    await notice(page).getByText(/prompt is .* tokens/).waitFor();
  },

  async TheLastQuestionCanBeEditedAndAnsweredAgain({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await ask(page, "one");
    await ask(page, "two");
    await page.getByRole("button", { name: "Edit your message" }).click();
    assert.equal(await prompt(page).inputValue(), "two");
    await page.keyboard.press("Escape");
    assert.equal(await prompt(page).inputValue(), "");
    await page.getByRole("button", { name: "Edit your message" }).click();
    await prompt(page).fill("three");
    await page.keyboard.press("Enter");
    await eventually(() => lastAnswer(page).innerText(), (text) => text === "three", "the new answer");
    await settled(page);
    assert.deepEqual(await page.locator(".bubble").allInnerTexts(), ["one", "three"]);
    await page.getByRole("button", { name: "Answer again" }).click();
    await settled(page);
    await eventually(() => lastAnswer(page).innerText(), (text) => text === "three", "the answer once more");
    assert.equal(await answers(page).count(), 2);
  },

  async ANewChatCanBeUndone({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await ask(page, "one");
    await page.getByRole("button", { name: "New chat" }).click();
    assert.equal(await answers(page).count(), 0);
    await page.getByRole("button", { name: "Undo" }).click();
    assert.equal(await lastAnswer(page).innerText(), "one");
    await page.getByRole("button", { name: "Edit your message" }).click();
    await page.getByRole("button", { name: "New chat" }).click();
    assert.equal(await prompt(page).inputValue(), "", "an edit ends with its conversation");
    await page.reload();
    assert.equal(await answers(page).count(), 0);
  },

  async AnInterruptedAnswerSurvivesAReload({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await send(page, `slowly: ${"word ".repeat(400)}`);
    await eventually(() => lastAnswer(page).innerText(), (text) => text.includes("word word"), "the answer begins");
    await page.reload();
    assert.match(await answers(page).last().innerText(), /word word[^]*(stopped|incomplete)/);
    await page.getByRole("button", { name: "Answer again" }).waitFor();
  },

  async TheConversationCanBeExported({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await ask(page, "think: hm || yes");
    await page.getByRole("button", { name: "Settings" }).click();
    const coming = page.waitForEvent("download");
    await page.getByRole("button", { name: "Export" }).click();
    const download = await coming;
    assert.match(download.suggestedFilename(), /^tandem-[\dT-]+\.json$/);
    const { messages } = JSON.parse(readFileSync(await download.path(), "utf8"));
    assert.deepEqual(messages.map(({ role, content }) => [role, content]),
      [["user", "think: hm || yes"], ["assistant", "yes"]]);
    assert.match(messages[1].reasoning_content, /hm/);
  },

  async WhatTheBrowserKeptMayBeAnything({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    const fine = { role: "user", content: "kept" };
    const kept = {
      conversation: [null, 1, { role: "system", content: "x" }, { role: "assistant", content: 5 }, fine],
      settings: [{ temperature: "hot" }], key: { a: 1 },
    };
    for (const broken of [kept, { conversation: "x", settings: 3, key: 7 }]) {
      await page.evaluate((values) => {
        for (const [name, value] of Object.entries(values)) {
          localStorage.setItem(`tandem.${name}`, JSON.stringify(value));
        }
      }, broken);
      await page.reload();
      assert.deepEqual(await page.locator(".bubble").allInnerTexts(), broken === kept ? ["kept"] : []);
      assert.equal(await (await ask(page, "hello")).innerText(), "hello");
    }
    await page.evaluate(() => localStorage.setItem("tandem.settings", "{not json"));
    await page.reload();
    assert.equal(await (await ask(page, "again")).innerText(), "again");
  },

  async ABrowserThatKeepsNothingStillConverses({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await page.addInitScript(() => {
      Object.defineProperty(window, "localStorage", { get() { throw new DOMException("refused", "SecurityError"); } });
    });
    await page.reload();
    assert.equal(await (await ask(page, "hello")).innerText(), "hello");
    await page.getByText("no room to keep the conversation").first().waitFor();
  },
};
