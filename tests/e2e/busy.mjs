// Servers that are answering, and one whose place and queue are taken.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { endless } from "./calls.mjs";

const patienceMilliseconds = 100_000;

// Resolves when the server has been drawing tokens of an answer for a while.
export async function answering(server) {
  const until = Date.now() + patienceMilliseconds;
  for (;;) {
    const slots = await (await fetch(`${server.url}/slots`)).json();
    if (slots.some(({ completion_tokens }) => completion_tokens > 10)) return;
    assert.ok(Date.now() < until, "no answer has begun");
    await sleep(50);
  }
}

// The answer in progress was given up with its connection: its place is free within a second.
export async function abandoned(server) {
  assert.ok(await server.holds(0, 0, 1000), "the server goes on");
  assert.equal((await server.requests()).at(-1).end, "client left");
}

export const occupied = {
  rule: { last: ["occupy"], say: endless, token_ms: 50 },
  limits: { concurrency: 1, queue: 1 },

  // Takes the one place and the one in the queue; the result gives both back.
  async begin(server) {
    const control = new AbortController();
    for (const [running, waiting] of [[1, 0], [1, 1]]) {
      const answer = await fetch(`${server.url}/v1/chat/completions`, {
        method: "POST",
        signal: control.signal,
        body: JSON.stringify({ messages: [{ role: "user", content: "occupy" }], stream: true }),
      });
      answer.body.pipeTo(new WritableStream()).catch(() => {});  // ends by the signal
      assert.ok(await server.holds(running, waiting, patienceMilliseconds), "the server is not occupied");
    }
    return () => control.abort();
  },

  // The result of `ask` to a server that is occupied until a request to `path` was refused with `status`.
  async during(server, path, status, ask) {
    const free = await this.begin(server);
    const refused = async () => {
      const until = Date.now() + patienceMilliseconds;
      while (!(await server.statuses(path)).includes(status)) {
        assert.ok(Date.now() < until, `no request to ${path} was answered with ${status}`);
        await sleep(20);
      }
      free();
    };
    return (await Promise.all([ask(), refused()]))[0];
  },
};
