// The live view of the server.
import assert from "node:assert/strict";
import { eventually, send, settled } from "./steps.mjs";

const metrics = (answered) => `# HELP vllm:num_requests_running Number of requests in execution.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="echo"} 2
vllm:num_requests_waiting{model_name="echo"} 1
vllm:kv_cache_usage_perc{model_name="echo"} 0.4375
vllm:prefix_cache_queries_total{model_name="echo"} 400
vllm:prefix_cache_hits_total{model_name="echo"} 100
vllm:prompt_tokens_total{model_name="echo"} 12345
vllm:generation_tokens_total{model_name="echo"} ${answered}
`;

const slots = (done) => [
  { id: 0, state: "prefill", request_id: "req_1f", prompt_tokens: 8000, prompt_done: done, cached_tokens: 512,
    completion_tokens: 0, tokens_per_second: 950.4 },
  { id: 1, state: "decode", request_id: "<b>req_2e</b>", prompt_tokens: 40, prompt_done: 40, cached_tokens: 0,
    completion_tokens: 231, tokens_per_second: 27.3 },
  { id: 2, state: "idle", request_id: null, prompt_tokens: 0, prompt_done: 0, cached_tokens: 0, completion_tokens: 0,
    tokens_per_second: 0 },
];

const figure = async (page, name) => {
  const place = page.locator("#figures div").filter({ has: page.getByText(name, { exact: true }) });
  return (await place.locator("dd").innerText()).trim();
};

export const serverCases = {
  async ShowsRequestsSpeedsAndTheProgressOfPrompts({ servers, open, screenshot }) {
    const page = await open(await servers.origin("echo"));
    let polls = 0;
    const begin = Date.now();
    await page.route("**/metrics", (route) => {
      polls++;
      route.fulfill({ contentType: "text/plain", body: metrics(Math.round((Date.now() - begin) / 10)) });
    });
    await page.route("**/slots", (route) => route.fulfill({ json: slots(Math.min(8000, 2000 * (polls + 1))) }));
    await page.getByRole("link", { name: "Server" }).click();
    const speed = () => figure(page, "Answer tokens/s");
    await eventually(speed, (text) => Math.abs(Number(text) - 100) < 20, "100 tokens a second");
    assert.equal(await figure(page, "Running"), "2");
    assert.equal(await figure(page, "Waiting"), "1");
    assert.equal(await figure(page, "Context in use"), "43.8 %");
    assert.equal(await figure(page, "Prompt tokens"), "12,345");
    assert.equal(await figure(page, "Prompts from cache"), "25.0 %");
    assert.equal(await figure(page, "Prompt tokens/s"), "0");
    await page.getByRole("listitem").first().getByText("6,000 of 8,000 tokens (75 %)").waitFor();
    await screenshot(page, "live-view");
    const [reading, answering] = await page.getByRole("listitem").allInnerTexts();
    assert.match(reading, /reading the prompt[^]*512 from the cache · 950\/s/);
    assert.match(answering, /answering[^]*<b>req_2e<\/b>[^]*40 of 40 tokens[^]*Answer: 231 tokens · 27\/s/);
    const bar = page.getByRole("progressbar", { name: "Prompt of request req_1f" });
    assert.ok((await bar.evaluate((node) => node.value)) >= 0.75);

    const before = polls;
    await page.getByRole("link", { name: "Chat" }).click();
    await page.waitForTimeout(1500);
    assert.ok(polls <= before + 1, "nothing is asked for while the view is closed");
  },

  async FollowsARequestFromItsPromptToItsEnd({ servers, open, screenshot }) {
    const origin = await servers.origin("echo");
    const chat = await open(origin);
    const view = await open(origin);
    await view.getByRole("link", { name: "Server" }).click();
    await view.getByText("None. 1 place is free.").waitFor();
    assert.equal(await figure(view, "Running"), "0");

    await send(chat, `slowly: ${"word ".repeat(10_000)}`);
    await view.getByText("reading the prompt").waitFor();
    const bar = view.getByRole("progressbar");
    const share = () => bar.evaluate((node) => node.value);
    await eventually(share, (value) => value > 0.02 && value < 0.98, "part of the prompt");
    assert.equal(await figure(view, "Running"), "1");
    const speed = async () => Number((await figure(view, "Prompt tokens/s")).replace(",", ""));
    await eventually(speed, (value) => value > 0, "the prompt's speed while it is read");
    await view.getByText("answering").waitFor();
    await eventually(() => figure(view, "Answer tokens/s"), (text) => Number(text) > 0, "the answer's speed");
    await screenshot(view, "live-view-phases");

    await chat.getByRole("button", { name: "Stop" }).click();
    await settled(chat);
    await view.getByText("None. 1 place is free.").waitFor();
    await eventually(() => figure(view, "Running"), (text) => text === "0", "the place is free");
    assert.ok(Number((await figure(view, "Prompt tokens")).replace(",", "")) >= 10_000);
  },

  async SaysWhatTheServerDoesNotTell({ servers, open }) {
    const page = await open(await servers.origin("echo"));
    await page.route("**/metrics", (route) => route.fulfill({ status: 404, json: { error: { message: "nothing" } } }));
    await page.route("**/slots", (route) => route.fulfill({ body: "[not json" }));
    await page.goto(`${await servers.origin("echo")}/#server`);
    await page.getByText("Not available: this server has no /metrics.").waitFor();
    await page.getByText("Not available: The answer of /slots can’t be read.").waitFor();
    assert.equal(await figure(page, "Running"), "not available");
  },
};
