// The SDKs of OpenAI and Anthropic, in this process.
import assert from "node:assert/strict";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { abandoned, occupied } from "./busy.mjs";
import { call, calls, endless } from "./calls.mjs";

const chat = "/v1/chat/completions", messages = "/v1/messages";

// The tools that a program would offer, on the case's folder: {name: [description, properties, function]}.
const tools = (bench) => ({
  list_files: ["Lists the files.", {}, () => readdirSync(bench.places.project).join("\n")],
  read_file: ["Reads a file.", { name: { type: "string" } }, ({ name }) => readFileSync(bench.path(name), "utf8")],
  write_file: ["Writes a file.", { name: { type: "string" }, text: { type: "string" } }, ({ name, text }) => {
    writeFileSync(bench.path(name), text);
    return "written";
  }],
});

const schema = (properties) => ({
  type: "object", properties, required: Object.keys(properties), additionalProperties: false,
});

// Lists, reads two files at once, writes one.
const editRules = [
  { last: ["written"], think: "All is done.", say: "The greeting is French now." },
  { last: ["hello", "Keep it short."], say: call("write_file", { name: "notes.txt", text: "bonjour\n" }) },
  { last: ["notes.txt", "rules.txt"], say: "I read both.\n\n" +
    calls(["read_file", { name: "notes.txt" }], ["read_file", { name: "rules.txt" }]) },
  { last: ["make it French"], think: "I look at the folder first.", say: call("list_files") },
];

// `refused` is how many requests are refused before.
async function editsAFile(bench, path, converse, refused = 0) {
  bench.write("notes.txt", "hello\n");
  bench.write("rules.txt", "Keep it short.\n");
  const server = await bench.serve({ rules: editRules, key: "secret" });
  assert.match(await converse(server, "Read the notes and make it French."), /^The greeting is French now\.$/);
  assert.equal(readFileSync(bench.path("notes.txt"), "utf8"), "bonjour\n");
  assert.deepEqual(await server.statuses(path), [...Array(refused).fill(400), ...Array(4).fill(200)]);
}

const openai = (server, options = {}) => new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "secret", ...options });
const question = (content) => ({ model: "tandem", messages: [{ role: "user", content }] });

function runOpenAiTools(bench, server, content, stream) {
  return openai(server).chat.completions.runTools({
    ...question(content),
    stream,
    tools: Object.entries(tools(bench)).map(([name, [description, properties, run]]) => ({
      type: "function",
      function: { name, description, parameters: schema(properties), function: run, parse: JSON.parse },
    })),
  }).finalContent();
}

const anthropic = (server, options = {}) => new Anthropic({ baseURL: server.url, apiKey: "secret", ...options });
const message = (content) => ({ model: "tandem", max_tokens: 2000, messages: [{ role: "user", content }] });

// The tool runner first asks for a conversation that the server holds, and goes on without.
async function runAnthropicTools(bench, server, content, stream) {
  const runner = anthropic(server).beta.messages.toolRunner({
    ...message(content),
    stream,
    thinking: { type: "enabled", budget_tokens: 1024 },
    tools: Object.entries(tools(bench)).map(([name, [description, properties, run]]) => ({
      type: "custom", name, description, input_schema: schema(properties), run, parse: (input) => input,
    })),
  });
  return (await runner.runUntilDone()).content.filter(({ type }) => type === "text").map(({ text }) => text).join("");
}

// The loop that programs write themselves over the Responses API.
async function runResponses(bench, server, content) {
  const own = tools(bench);
  let input = [{ role: "user", content }];
  for (;;) {
    const answer = await openai(server).responses.create({
      model: "tandem",
      input,
      tools: Object.entries(own).map(([name, [description, properties]]) =>
        ({ type: "function", name, description, parameters: schema(properties), strict: false })),
    });
    const wanted = answer.output.filter(({ type }) => type === "function_call");
    if (wanted.length === 0) return answer.output_text;
    input = [...input, ...answer.output, ...wanted.map((one) => ({
      type: "function_call_output", call_id: one.call_id, output: own[one.name][2](JSON.parse(one.arguments)),
    }))];
  }
}

export const sdkCases = {
  OpenAiSdkEditsAFile: (bench) =>
    editsAFile(bench, chat, (server, content) => runOpenAiTools(bench, server, content, false)),
  OpenAiSdkEditsAFileStreaming: (bench) =>
    editsAFile(bench, chat, (server, content) => runOpenAiTools(bench, server, content, true)),

  OpenAiSdkEditsAFileByResponses: (bench) =>
    editsAFile(bench, "/v1/responses", (server, content) => runResponses(bench, server, content)),
  AnthropicSdkEditsAFile: (bench) =>
    editsAFile(bench, messages, (server, content) => runAnthropicTools(bench, server, content, false), 1),
  AnthropicSdkEditsAFileStreaming: (bench) =>
    editsAFile(bench, messages, (server, content) => runAnthropicTools(bench, server, content, true), 1),

  async OpenAiSdkRefusesAWrongKey(bench) {
    const server = await bench.serve({ rules: [], key: "other" });
    await assert.rejects(openai(server).chat.completions.create(question("Hello")), OpenAI.AuthenticationError);
  },

  async OpenAiSdkWaitsForABusyServer(bench) {
    const server = await bench.serve({ rules: [{ last: ["Hello"], say: "At last." }, occupied.rule], ...occupied.limits });
    const answer = await occupied.during(server, chat, 429, () =>
      openai(server, { maxRetries: 8 }).chat.completions.create(question("Hello")));
    assert.equal(answer.choices[0].message.content, "At last.");
  },

  async OpenAiSdkTriesAgainAfterAFault(bench) {
    const server = await bench.serve({ rules: [{ fail_after: 0, times: 1 }, { say: "Now it works." }] });
    const answer = await openai(server).chat.completions.create(question("Hello"));
    assert.equal(answer.choices[0].message.content, "Now it works.");
    assert.deepEqual(await server.statuses(chat), [500, 200]);
  },

  async OpenAiSdkGivesUpAnAnswer(bench) {
    const server = await bench.serve({ rules: [{ say: endless, token_ms: 50 }] });
    const stream = await openai(server).chat.completions.create({ ...question("Hello"), stream: true });
    for await (const chunk of stream) if (chunk.choices[0]?.delta.content) break;  // which closes the connection
    await abandoned(server);
  },

  // The script breaks the schema, so that the answer can keep it by the grammar alone.
  async OpenAiSdkGetsAnAnswerByItsSchema(bench) {
    const server = await bench.serve({ rules: [{ think: "Green.", say: '{"colour": "green", "count": "many"}' }] });
    const answer = await openai(server).chat.completions.parse({
      ...question("Which colour?"),
      response_format: {
        type: "json_schema",
        json_schema: {
          name: "colour",
          strict: true,
          schema: schema({ colour: { enum: ["teal", "red"] }, count: { enum: [1, 2] } }),
        },
      },
    });
    const { colour, count } = JSON.parse(answer.choices[0].message.content);
    assert.ok(["teal", "red"].includes(colour) && [1, 2].includes(count), answer.choices[0].message.content);
    assert.equal((await server.requests()).length, 1);
  },

  async AnthropicSdkRefusesAWrongKey(bench) {
    const server = await bench.serve({ rules: [], key: "other" });
    await assert.rejects(anthropic(server).messages.create(message("Hello")), Anthropic.AuthenticationError);
  },

  async AnthropicSdkWaitsForABusyServer(bench) {
    const server = await bench.serve({ rules: [{ last: ["Hello"], say: "At last." }, occupied.rule], ...occupied.limits });
    const answer = await occupied.during(server, messages, 529, () =>
      anthropic(server, { maxRetries: 8 }).messages.create(message("Hello")));
    assert.equal(answer.content.at(-1).text, "At last.");
  },

  async AnthropicSdkTriesAgainAfterAFault(bench) {
    const server = await bench.serve({ rules: [{ fail_after: 0, times: 1 }, { say: "Now it works." }] });
    assert.equal((await anthropic(server).messages.create(message("Hello"))).content.at(-1).text, "Now it works.");
    assert.deepEqual(await server.statuses(messages), [500, 200]);
  },

  async AnthropicSdkGivesUpAnAnswer(bench) {
    const server = await bench.serve({ rules: [{ say: endless, token_ms: 50 }] });
    const stream = await anthropic(server).messages.create({ ...message("Hello"), stream: true });
    for await (const event of stream) if (event.type === "content_block_delta") break;  // which closes the connection
    await abandoned(server);
  },

  async AnthropicSdkCountsTokens(bench) {
    const server = await bench.serve({ rules: [{ say: "Hello." }] });
    const counted = await anthropic(server).messages.countTokens({ model: "tandem", messages: message("Hello").messages });
    const { usage } = await anthropic(server).messages.create(message("Hello"));
    assert.equal(counted.input_tokens, usage.input_tokens + (usage.cache_read_input_tokens ?? 0));
  },
};
