// Codex.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { abandoned, answering, occupied } from "./busy.mjs";
import { call, calls, endless, lastOfEndless } from "./calls.mjs";
import { afterCompaction, compactionRules, wasCompacted } from "./compaction.mjs";
import { picture } from "./picture.mjs";

const responses = "/v1/responses";
// Longer than a case may take: waiting ends with what is waited for.
const waitMilliseconds = 3_600_000;
const shell = (cmd) => ["exec_command", { cmd }];

// What it says at last. Options stand behind the subcommand that they belong to.
async function ask(bench, args, options) {
  const { code, out, err } = await bench.run("codex",
    ["--skip-git-repo-check", "--sandbox", "danger-full-access", "--json", ...args], options);
  assert.equal(code, 0, out + err);
  const items = out.trim().split("\n").map((line) => JSON.parse(line)).filter(({ type }) => type === "item.completed");
  return items.map(({ item }) => item).filter(({ type }) => type === "agent_message").at(-1)?.text;
}

// Threads of its server, which editors and its own screen use.
class AppServer {
  #program;
  #thread;

  async begin(program) {
    this.#program = program;
    await program.request("initialize", { clientInfo: { name: "test", version: "1" } });
    program.notify("initialized");
    const { thread } = await program.request("thread/start", { approvalPolicy: "never", sandbox: "danger-full-access" });
    this.#thread = { threadId: thread.id };
    return this;
  }

  // What it says at last.
  async ask(text) {
    const input = [{ type: "text", text }];
    const { turn: { id } } = await this.#program.request("turn/start", { ...this.#thread, input });
    await this.#program.notification("turn/completed", ({ turn }) => turn.id === id);
    return this.#program.notifications("item/completed").filter(({ turnId }) => turnId === id)
      .map(({ item }) => item).filter(({ type }) => type === "agentMessage").at(-1)?.text;
  }

  async compact() {
    await this.#program.request("thread/compact/start", this.#thread);
    const { turnId } = await this.#program.notification("item/completed", ({ item }) => item.type === "contextCompaction");
    await this.#program.notification("turn/completed", ({ turn }) => turn.id === turnId);
  }
}

const codexCompactionRules = compactionRules("You are performing a CONTEXT CHECKPOINT COMPACTION");

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

  async CodexAsksASubAgent(bench) {
    const server = await bench.serve({ rules: [
      { name: "helper", last: ["Count the planets"], unless: ["Ask a helper"], say: "There are eight planets." },
      { name: "result", last: ["timed_out", "There are eight planets."], say: "The helper says eight." },
      { name: "spawned", last: ['{"agent_id":"'], copied: ['{"agent_id":"', '"'],
        say: call("multi_agent_v1__wait_agent", { targets: ["{copied}"], timeout_ms: waitMilliseconds }) },
      { name: "task", last: ["Ask a helper"],
        say: call("multi_agent_v1__spawn_agent", { message: "Count the planets" }) },
    ] });
    assert.equal(await ask(bench, ["Ask a helper"]), "The helper says eight.");
    assert.deepEqual(server.prompts().map(({ rule }) => rule).sort(), ["helper", "result", "spawned", "task"]);
    await allSucceeded(server, 4);
  },

  // Its newer tools, off unless asked for, whose agents have the conversation so far and talk by items of their own. The
  // helper may be done before it is waited for.
  async CodexAsksASubAgentThatKnowsTheConversation(bench) {
    const server = await bench.serve({ rules: [
      { name: "helper", when: ["Ask a helper"], last: ["Payload:\nCount the planets"], say: "There are eight planets." },
      { name: "result", last: ["Payload:\nThere are eight planets."], say: "The helper says eight." },
      { name: "spawned", last: ['"task_name":"/root/count"'],
        say: call("collaboration__wait_agent", { timeout_ms: waitMilliseconds }) },
      { name: "task", last: ["Ask a helper"],
        say: call("collaboration__spawn_agent", { task_name: "count", message: "Count the planets" }) },
    ] });
    assert.equal(await ask(bench, ["--enable", "multi_agent_v2", "Ask a helper"]), "The helper says eight.");
    const rules = server.prompts().map(({ rule }) => rule).filter((rule) => rule !== "spawned");
    assert.deepEqual(rules.sort(), ["helper", "result", "task"]);
  },

  // Its own instructions and tools are about 14,000 tokens of the scripted model, each step's output 5,500. It compacts
  // at nine tenths of its window, in the middle of a turn.
  async CodexCompactsByItsLimit(bench) {
    const server = await bench.serve({ rules: [
      ...codexCompactionRules,
      { name: "third", last: ["second-step"], say: call(...shell("echo third-step")) },
      { name: "second", last: ["first-step"], say: call(...shell("seq 1300; echo second-step")) },
      { name: "first", last: ["My name is Nora"], say: call(...shell("seq 1300; echo first-step")) },
    ] });
    assert.equal(await ask(bench, ["My name is Nora"], { settings: ["model_context_window = 25000"] }), afterCompaction);
    wasCompacted(server, ["first", "second", "third", "summary", "after"], "first-step");
    await allSucceeded(server, 5);
  },

  async CodexCompactsWhereAsked(bench) {
    const server = await bench.serve({ rules: [
      ...codexCompactionRules,
      { name: "second", last: ["first-step"], say: "Hello Nora." },
      { name: "first", last: ["My name is Nora"], say: call(...shell("echo first-step")) },
    ] });
    await bench.talk("codex", "app-server", async (program) => {
      const codex = await new AppServer().begin(program);
      assert.equal(await codex.ask("My name is Nora"), "Hello Nora.");
      await codex.compact();
      assert.equal(await codex.ask("Go on"), afterCompaction);
    });
    wasCompacted(server, ["first", "second", "summary", "after"], "first-step");
    await allSucceeded(server, 4);
  },

  // The turn fails; the next one begins with the summary, whose request has no tools and so has room.
  async CodexCompactsAfterAPromptThatIsTooLong(bench) {
    const server = await bench.serve({ context: 21_000, rules: [
      ...codexCompactionRules,
      { name: "first", last: ["My name is Nora"], say: call(...shell("seq 3000; echo first-step")) },
    ] });
    const { code, out } = await bench.run("codex",
      ["--skip-git-repo-check", "--sandbox", "danger-full-access", "My name is Nora"]);
    assert.equal(code, 1, out);
    assert.equal(await ask(bench, ["resume", "--last", "Go on"]), afterCompaction);
    wasCompacted(server, ["first", "summary", "after"], "first-step");
    assert.deepEqual(await server.statuses(responses), [200, 400, 200, 200]);
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
