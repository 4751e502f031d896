// Claude Code. Messages of the system come in the middle of its conversations, so that rules look at the last turn.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { abandoned, answering, occupied } from "./busy.mjs";
import { call, calls, endless, lastOfEndless } from "./calls.mjs";
import { picture } from "./picture.mjs";

const messages = "/v1/messages";

// Runs it without a terminal; its answer is one JSON object.
async function ask(bench, args, options) {
  const { code, out, err } = await bench.run("claude",
    ["--print", ...args, "--output-format", "json", "--allowedTools", "Bash,Read,Edit,Agent"], options);
  assert.equal(code, 0, out + err);
  const answer = JSON.parse(out);
  assert.equal(answer.is_error, false, out);
  return answer;
}

// Every request but the probe of the address succeeded.
async function allSucceeded(server, atLeast) {
  const statuses = await server.statuses(messages);
  assert.deepEqual([...new Set(statuses)], [200]);
  assert.ok(statuses.length >= atLeast, `${statuses.length} requests`);
}

// A session of some turns, which Claude Code compacts only then, and what follows its summary.
const compactionRules = [
  { last: ["summary of the conversation"], say: "<summary>Nora gave her name.</summary>" },
  { when: ["Nora gave her name."], unless: ["second-step"], say: "Going on from the summary." },
  { last: ["second-step"], say: "Hello Nora." },
  { last: ["first-step"], say: call("Bash", { command: "echo second-step", description: "Say it" }) },
  { last: ["My name is Nora"], say: call("Bash", { command: "seq 3000; echo first-step", description: "Say it" }) },
];

export const claudeCases = {
  async ClaudeCodeEditsAFile(bench) {
    bench.write("notes.txt", "hello\n");
    const server = await bench.serve({ rules: [
      { last: ["has been updated"], think: "All is done.", say: "The greeting is French now." },
      { last: ["1\thello"], say: "I will edit it.\n\n" + call("Edit",
        { file_path: bench.path("notes.txt"), old_string: "hello", new_string: "bonjour", replace_all: false }) },
      { last: ["<tool_response>\nnotes.txt"], say: call("Read", { file_path: bench.path("notes.txt") }) },
      { last: ["make it French"], think: "I look at the folder first.",
        say: call("Bash", { command: "ls", description: "List the files" }) },
    ] });
    const answer = await ask(bench, ["Read the notes and make it French"]);
    assert.equal(answer.result, "The greeting is French now.");
    assert.equal(answer.num_turns, 4);
    assert.equal(readFileSync(bench.path("notes.txt"), "utf8"), "bonjour\n");
    await allSucceeded(server, 4);
  },

  async ClaudeCodeReadsTwoFilesAndAPictureAtOnce(bench) {
    bench.write("one.txt", "alpha\n");
    bench.write("two.txt", "omega\n");
    bench.write("dot.png", picture);
    const server = await bench.serve({ rules: [
      { last: ["1\talpha", "1\tomega", "[image omitted"], say: "From alpha to omega." },
      { last: ["Read all"], say: calls(...["one.txt", "two.txt", "dot.png"].map((name) =>
        ["Read", { file_path: bench.path(name) }])) },
    ] });
    assert.equal((await ask(bench, ["Read all"])).result, "From alpha to omega.");
    await allSucceeded(server, 2);
  },

  async ClaudeCodeContinuesASession(bench) {
    await bench.serve({ rules: [
      { when: ["My name is Nora", "Hello Nora."], last: ["What is my name"], say: "You are Nora." },
      { last: ["My name is Nora"], say: "Hello Nora." },
    ] });
    assert.equal((await ask(bench, ["My name is Nora"])).result, "Hello Nora.");
    assert.equal((await ask(bench, ["--continue", "What is my name?"])).result, "You are Nora.");
  },

  async ClaudeCodeAsksASubAgent(bench) {
    const server = await bench.serve({ rules: [
      { last: ["Count the planets"], unless: ["Ask a helper"], say: "There are eight planets." },
      { last: ["There are eight planets."], say: "The helper says eight." },
      { last: ["Ask a helper"], say: call("Agent", { description: "Count planets", prompt: "Count the planets",
        subagent_type: "general-purpose", run_in_background: false }) },
    ] });
    assert.equal((await ask(bench, ["Ask a helper"])).result, "The helper says eight.");
    await allSucceeded(server, 3);
  },

  async ClaudeCodeCompactsWhatIsTooLong(bench) {
    // Its own instructions and tools are about 32,000 tokens of the scripted model, the first step's output 14,000 and
    // the long text 16,000.
    const server = await bench.serve({ context: 57_000, rules: compactionRules });
    await ask(bench, ["My name is Nora"]);
    const answer = await ask(bench, ["--continue", `Read this. ${"A long text. ".repeat(4000)}`]);
    assert.equal(answer.result, "Going on from the summary.");
    assert.ok((await server.statuses(messages)).includes(400), "nothing was too long");
  },

  async ClaudeCodeCompactsWhereAsked(bench) {
    const server = await bench.serve({ rules: compactionRules });
    await ask(bench, ["My name is Nora"]);
    await ask(bench, ["--continue", "/compact"]);
    assert.equal((await ask(bench, ["--continue", "Go on"])).result, "Going on from the summary.");
    await allSucceeded(server, 5);
  },

  async ClaudeCodeIsInterrupted(bench) {
    const server = await bench.serve({ rules: [{ say: endless, token_ms: 50 }] });
    const { out } = await bench.run("claude", ["--print", "Speak"], { interrupt: answering(server) });
    assert.doesNotMatch(out, lastOfEndless);
    await abandoned(server);
  },

  async ClaudeCodeWaitsForABusyServer(bench) {
    const server = await bench.serve({ rules: [occupied.rule, { say: "At last." }], ...occupied.limits });
    const answer = await occupied.during(server, messages, 529, () =>
      ask(bench, ["Hello"]));
    assert.equal(answer.result, "At last.");
  },

  async ClaudeCodeTriesAgainAfterAFault(bench) {
    await bench.serve({ rules: [{ fail_after: 0, times: 1 }, { say: "Now it works." }] });
    assert.equal((await ask(bench, ["Hello"])).result, "Now it works.");
  },

  async ClaudeCodeGetsAnAnswerByItsSchema(bench) {
    await bench.serve({ rules: [
      { last: ["Structured output provided"], say: "Done." },
      { say: call("StructuredOutput", { colour: "teal", count: 2 }) },
    ] });
    const schema = JSON.stringify({
      type: "object", required: ["colour", "count"], additionalProperties: false,
      properties: { colour: { enum: ["teal", "red"] }, count: { type: "integer" } },
    });
    const answer = await ask(bench, ["--json-schema", schema, "Which colour, and how many?"]);
    assert.deepEqual(answer.structured_output, { colour: "teal", count: 2 });
  },
};
