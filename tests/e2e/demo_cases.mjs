// Each client once against `tandem serve` with the demo model, which knows nothing of such prompts: whatever it writes,
// the client must come to an end and every request must be answered.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const mostTokens = 40;

async function ends(bench, path, ask) {
  bench.write("notes.txt", "hello\n");
  const server = await bench.serveDemo("--threads", "1", "--max-context", "131072", "--model-id", "tandem");
  await ask(server);
  const statuses = await server.statuses(path);
  assert.ok(statuses.length > 0 && statuses.every((status) => status === 200), statuses.join());
  assert.ok((await fetch(`${server.url}/health`)).ok);
}

export const demoCases = {
  DemoModelAnswersClaudeCode: (bench) => ends(bench, "/v1/messages", () =>
    bench.run("claude", ["--print", "Hello! Who are you?", "--max-turns", "2", "--tools", "Bash,Read,Edit"],
      { environment: { CLAUDE_CODE_MAX_OUTPUT_TOKENS: `${mostTokens}` } })),

  DemoModelAnswersCodex: (bench) => ends(bench, "/v1/responses", () =>
    bench.run("codex", ["--skip-git-repo-check", "--sandbox", "read-only", "Hello! Who are you?"])),

  DemoModelAnswersOpenCode: (bench) => ends(bench, "/v1/chat/completions", () =>
    bench.run("opencode", ["Hello! Who are you?"], { limit: { output: mostTokens } })),

  DemoModelAnswersTheOpenAiSdk: (bench) => ends(bench, "/v1/chat/completions", async (server) => {
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none" });
    const messages = [{ role: "user", content: "Hello! Who are you?" }];
    const answer = await client.chat.completions.create({ model: "tandem", max_tokens: 200, messages, temperature: 0 });
    assert.match(answer.choices[0].message.content, /Demo/);
  }),

  DemoModelAnswersTheAnthropicSdk: (bench) => ends(bench, "/v1/messages", async (server) => {
    const client = new Anthropic({ baseURL: server.url, apiKey: "none" });
    const messages = [{ role: "user", content: "Hello! Who are you?" }];
    const answer = await client.messages.create({ model: "tandem", max_tokens: 200, messages, temperature: 0 });
    assert.match(answer.content.at(-1).text, /Demo/);
  }),
};
