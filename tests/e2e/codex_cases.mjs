// Codex.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { abandoned, answering, occupied } from "./busy.mjs";
import { call, calls, endless, lastOfEndless } from "./calls.mjs";
import { picture } from "./picture.mjs";

const responses = "/v1/responses";
const shell = (cmd) => ["exec_command", { cmd }];

// What it says at last. Options stand behind the subcommand that they belong to.
async function ask(bench, args, options) {
  const { code, out, err } = await bench.run("codex",
    ["--skip-git-repo-check", "--sandbox", "danger-full-access", "--json", ...args], options);
  assert.equal(code, 0, out + err);
  const items = out.trim().split("\n").map((line) => JSON.parse(line)).filter(({ type }) => type === "item.completed");
  return items.map(({ item }) => item).filter(({ type }) => type === "agent_message").at(-1)?.text;
}

async function allSucceeded(server, number) {
  assert.deepEqual(await server.statuses(responses), Array(number).fill(200));
}

export const codexCases = {
  async CodexEditsAFile(bench) {
    bench.write("notes.txt", "hello\n");
    const server = await bench.serve({ rules: [
      { last: ["Success. Updated"], think: "All is done.", say: "The greeting is French now." },
      { last: ["Output:\nhello\n"], say: "I will edit it.\n\n" + call(...shell("apply_patch <<'EOF'\n*** Begin Patch\n" +
        "*** Update File: notes.txt\n@@\n-hello\n+bonjour\n*** End Patch\nEOF")) },
      { last: ["Output:\nnotes.txt\n"], say: call(...shell("cat notes.txt")) },
      { last: ["make it French"], think: "I look at the folder first.", say: call(...shell("ls")) },
    ] });
    assert.equal(await ask(bench, ["Read the notes and make it French"]), "The greeting is French now.");
    assert.equal(readFileSync(bench.path("notes.txt"), "utf8"), "bonjour\n");
    await allSucceeded(server, 4);
  },

  async CodexReadsTwoFilesAndAPictureAtOnce(bench) {
    bench.write("one.txt", "alpha\n");
    bench.write("two.txt", "omega\n");
    bench.write("dot.png", picture);
    const server = await bench.serve({ rules: [
      { last: ["Output:\nalpha", "Output:\nomega", "[image omitted"], say: "From alpha to omega." },
      { last: ["Read all"], say: calls(shell("cat one.txt"), shell("cat two.txt"),
        ["view_image", { path: bench.path("dot.png") }]) },
    ] });
    assert.equal(await ask(bench, ["Read all"]), "From alpha to omega.");
    await allSucceeded(server, 2);
  },

  async CodexResumesASession(bench) {
    await bench.serve({ rules: [
      { when: ["My name is Nora", "Hello Nora."], last: ["What is my name"], say: "You are Nora." },
      { last: ["My name is Nora"], say: "Hello Nora." },
    ] });
    assert.equal(await ask(bench, ["My name is Nora"]), "Hello Nora.");
    assert.equal(await ask(bench, ["resume", "--last", "What is my name?"]), "You are Nora.");
  },

  async CodexIsInterrupted(bench) {
    const server = await bench.serve({ rules: [{ say: endless, token_ms: 50 }] });
    const { out } = await bench.run("codex", ["--skip-git-repo-check", "Speak"], { interrupt: answering(server) });
    assert.doesNotMatch(out, lastOfEndless);
    await abandoned(server);
  },

  async CodexWaitsForABusyServer(bench) {
    const server = await bench.serve({ rules: [occupied.rule, { say: "At last." }], ...occupied.limits });
    const answer = await occupied.during(server, responses, 429, () =>
      ask(bench, ["Hello"]));
    assert.equal(answer, "At last.");
  },

  async CodexTriesAgainAfterAFault(bench) {
    await bench.serve({ rules: [{ fail_after: 0, times: 1 }, { say: "Now it works." }] });
    assert.equal(await ask(bench, ["Hello"]), "Now it works.");
  },

  // The script breaks the schema, so that the answer can keep it by the grammar alone.
  async CodexGetsAnAnswerByItsSchema(bench) {
    await bench.serve({ rules: [{ say: '{"colour": "green", "count": "many"}' }] });
    bench.write("schema.json", JSON.stringify({
      type: "object", required: ["colour", "count"], additionalProperties: false,
      properties: { colour: { type: "string", enum: ["teal", "red"] }, count: { type: "integer", enum: [1, 2] } },
    }));
    const { colour, count } = JSON.parse(await ask(bench, ["--output-schema", "schema.json", "Which colour?"]));
    assert.ok(["teal", "red"].includes(colour) && [1, 2].includes(count), `${colour} ${count}`);
  },
};
