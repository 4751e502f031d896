// OpenCode. Its session takes a title from a request of its own, beside the first answer.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { abandoned, answering, occupied } from "./busy.mjs";
import { call, calls, endless, lastOfEndless } from "./calls.mjs";
import { afterCompaction, compactionRules, wasCompacted } from "./compaction.mjs";
import { picture } from "./picture.mjs";

const titleRule = { name: "title", when: ["You are a title generator"], say: "A title" };
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

// Its own instructions and tools are about 11,000 tokens of the scripted model, the first step's output 10,000.
const compactionScript = [
  titleRule,
  ...compactionRules("Create a new anchored summary"),
  { name: "second", last: ["first-step"], say: "Hello Nora." },
  { name: "first", last: ["My name is Nora"], say: call("bash",
    { command: "seq 9000; echo first-step", description: "Say it" }) },
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

  // It compacts where no answer of the length that it is told of has room in the context that it is told of.
  async OpenCodeCompactsByItsLimit(bench) {
    const server = await bench.serve({ rules: compactionScript });
    succeeded(await bench.run("opencode", ["My name is Nora"], { limit: { context: 25_000 } }),
      new RegExp(afterCompaction));
    wasCompacted(server, ["first", "second", "summary", "after"], "first-step");
  },

  async OpenCodeCompactsWhereAsked(bench) {
    const server = await bench.serve({ rules: compactionScript });
    await bench.talk("opencode", "acp", async (program) => {
      await program.request("initialize", { protocolVersion: 1, clientCapabilities: {} });
      const { sessionId } = await program.request("session/new", { cwd: bench.places.project, mcpServers: [] });
      for (const text of ["My name is Nora", "/compact", "Go on"]) {
        await program.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
      }
      const said = program.notifications("session/update").map(({ update }) => update)
        .filter(({ sessionUpdate }) => sessionUpdate === "agent_message_chunk").map(({ content }) => content.text);
      assert.ok(said.join("").endsWith(afterCompaction), said.join(""));
    });
    wasCompacted(server, ["first", "second", "summary", "after"], "first-step");
  },

  // The long text is 8,000 tokens of the scripted model, for which there is room beside the summary. `run` ends as failed
  // because of the refusal that it saw, but not before the answer.
  async OpenCodeCompactsAfterAPromptThatIsTooLong(bench) {
    const server = await bench.serve({ context: 25_500, rules: compactionScript });
    succeeded(await bench.run("opencode", ["My name is Nora"]), /Hello Nora/);
    const { out } = await bench.run("opencode", ["--continue", `Read this. ${"A long text. ".repeat(2000)}`]);
    assert.match(out, new RegExp(afterCompaction));
    wasCompacted(server, ["first", "second", "summary", "after"], "first-step");
    assert.ok((await server.statuses(chat)).includes(400), "nothing was too long");
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
