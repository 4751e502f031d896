// Clients that have a long conversation summarised and go on from the summary.
import assert from "node:assert/strict";

const summary = "Nora gave her name.";
export const afterCompaction = "Going on from the summary.";

// The rule for the client's request for a summary, which holds such a text, and the one for what follows. They stand
// before a script's other rules: clients repeat the user's words behind a summary.
export const compactionRules = (request) => [
  { name: "summary", last: [request], say: summary },
  { name: "after", when: [summary], say: afterCompaction },
];

// The model was asked what these rules are for, in this order. The request for the summary held `old`, which the one
// after it no longer holds.
export function wasCompacted(server, names, old) {
  const prompts = server.prompts().filter(({ rule }) => rule !== "title");
  assert.deepEqual(prompts.map(({ rule }) => rule), names);
  const holds = (name) => prompts.find(({ rule }) => rule === name).prompt.includes(old);
  assert.ok(holds("summary"), "the request for a summary lacks what was said before");
  assert.ok(!holds("after"), "the request after the summary holds what was said before");
}
