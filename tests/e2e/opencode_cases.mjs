// OpenCode. Its session takes a title from a request of its own, beside the first answer.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { abandoned, answering, occupied } from "./busy.mjs";
import { call, calls, endless, lastOfEndless } from "./calls.mjs";
import { picture } from "./picture.mjs";

const titleRule = { when: ["You are a title generator"], say: "A title" };
const chat = "/v1/chat/completions";

function succeeded({ code, out, err }, expected) {
  assert.equal(code, 0, out + err);
  assert.match(out, expected);
}

// Lists, reads and edits notes.txt, then says so.
const editRules = (bench) => [
  titleRule,
  { last: ["Edit applied successfully"], think: "All is done.", say: "The greeting is French now." },
  { last: ["1: hello"], say: "I will edit it.\n\n" + call("edit",
    { filePath: bench.path("notes.txt"), oldString: "hello", newString: "bonjour" }) },
  { last: ["notes.txt\n"], say: call("read", { filePath: bench.path("notes.txt") }) },
  { last: ["make it French"], think: "I look at the folder first.",
    say: call("bash", { command: "ls", description: "List the files" }) },
];

async function editsAFile(bench, path, provider) {
  bench.write("notes.txt", "hello\n");
  const server = await bench.serve({ rules: editRules(bench) });
  succeeded(await bench.run("opencode", ["Read the notes and make it French"], { provider }), /French now/);
  assert.equal(readFileSync(bench.path("notes.txt"), "utf8"), "bonjour\n");
  const requests = await server.summary();
  assert.equal(requests.filter((line) => line === `POST ${path} 200`).length, requests.length, requests.join());
  assert.ok(requests.length >= 4);
}

export const opencodeCases = {
  OpenCodeEditsAFile: (bench) => editsAFile(bench, chat),

  async OpenCodeReadsTwoFilesAtOnce(bench) {
    bench.write("one.txt", "alpha\n");
    bench.write("two.txt", "omega\n");
    const server = await bench.serve({ rules: [
      titleRule,
      { last: ["1: alpha", "1: omega"], say: "From alpha to omega." },
      { last: ["Read both"], say: calls(["read", { filePath: bench.path("one.txt") }],
        ["read", { filePath: bench.path("two.txt") }]) },
    ] });
    succeeded(await bench.run("opencode", ["Read both"]), /From alpha to omega/);
    assert.deepEqual(await server.summary(), Array(3).fill(`POST ${chat} 200`));
  },

  async OpenCodeShowsAPicture(bench) {
    bench.write("dot.png", picture);
    await bench.serve({ rules: [
      titleRule,
      { when: ["[image omitted"], say: "I cannot see pictures." },
      { last: ["Look"], say: call("read", { filePath: bench.path("dot.png") }) },
    ] });
    succeeded(await bench.run("opencode", ["Look at dot.png"]), /I cannot see pictures/);
  },

  async OpenCodeContinuesASession(bench) {
    await bench.serve({ rules: [
      titleRule,
      { when: ["My name is Nora", "Hello Nora."], last: ["What is my name"], say: "You are Nora." },
      { last: ["My name is Nora"], say: "Hello Nora." },
    ] });
    succeeded(await bench.run("opencode", ["My name is Nora"]), /Hello Nora/);
    succeeded(await bench.run("opencode", ["--continue", "What is my name?"]), /You are Nora/);
  },

  async OpenCodeAsksASubAgent(bench) {
    await bench.serve({ rules: [
      titleRule,
      { last: ["Count the planets"], say: "There are eight planets." },
      { last: ["There are eight planets."], say: "The helper says eight." },
      { last: ["Ask a helper"], say: call("task",
        { description: "Count planets", prompt: "Count the planets", subagent_type: "general" }) },
    ] });
    succeeded(await bench.run("opencode", ["Ask a helper"]), /The helper says eight/);
  },

  async OpenCodeIsInterrupted(bench) {
    const server = await bench.serve({ rules: [titleRule, { say: endless, token_ms: 50 }] });
    const { out } = await bench.run("opencode", ["Speak"], { interrupt: answering(server) });
    assert.doesNotMatch(out, lastOfEndless);
    await abandoned(server);
  },

  async OpenCodeWaitsForABusyServer(bench) {
    const server = await bench.serve({ rules: [occupied.rule, titleRule, { say: "At last." }], ...occupied.limits });
    const result = await occupied.during(server, chat, 429, () =>
      bench.run("opencode", ["Hello"]));
    succeeded(result, /At last/);
  },

  async OpenCodeTriesAgainAfterAFault(bench) {
    await bench.serve({ rules: [titleRule, { fail_after: 0, times: 1 }, { say: "Now it works." }] });
    succeeded(await bench.run("opencode", ["Hello"]), /Now it works/);
  },
};
