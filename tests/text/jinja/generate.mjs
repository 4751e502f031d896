// Writes random conversations and what a Jinja template makes of them.
//
//   node generate.mjs TEMPLATE COUNT SEED STRICT > cases.json
//
// STRICT is 1 for a template that refuses media in a system message and parts of unknown type. What is left out, because
// Jinja in JavaScript and in Python differ there: whole floats (1.0), exponents, blanks that only one of them trims, and
// object keys that look like numbers.
import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";

const [templatePath, countText, seedText, strictText] = process.argv.slice(2);
const strict = strictText === "1";
const template = new Template(readFileSync(templatePath, "utf8"));

// mulberry32: the same conversations on every machine.
let state = Number(seedText) >>> 0;
function random() {
  state = (state + 0x6d2b79f5) >>> 0;
  let t = state;
  t = Math.imul(t ^ (t >>> 15), t | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}
const below = (n) => Math.floor(random() * n);
const chance = (p) => random() < p;
const pick = (list) => list[below(list.length)];
const times = (n, make) => Array.from({ length: n }, make);

const words = [
  "hello", "World", "don't", "42", "3.14", "café", "cafe\u0301", "Ångström", "東京", "ありがとう", "हिन्दी", "עברית", "🚀", "👩‍👩‍👧",
  "<|im_end|>", "<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tools>",
  "<parameter=x>", "{{ x }}", "{% if %}", '"quoted"', "'single'", "back\\slash", "a/b", "<b>&amp;</b>", "\u2028", "\u0001",
];
const blanks = [" ", " ", " ", "\n", "\n\n", "\t", "\u00a0", "\u3000", "\r\n"];

function text(most = 12) {
  let out = chance(0.25) ? pick(blanks) : "";
  for (let i = below(most); i >= 0; i--) out += pick(words) + (i > 0 ? pick(blanks) : "");
  return chance(0.25) ? out + pick(blanks) : out;
}

const name = () => pick(["get", "set", "read", "søk"]) + "_" + pick(["time", "file", "weather", "項目"]);

function value(depth) {
  const kind = below(depth > 0 ? 8 : 6);
  if (kind === 0) return below(2000000) - 1000000;
  if (kind === 1) return (below(2000000) - 1000000) / 1000 + 0.0005;
  if (kind === 2) return chance(0.5);
  if (kind === 3) return null;
  if (kind <= 5) return text(4);
  if (kind === 6) return times(below(4), () => value(depth - 1));
  return object(depth - 1);
}

function object(depth) {
  return Object.fromEntries(times(below(4), () => [pick(["k", "key", "städt", "a b", "_"]) + pick(["", "1", "é"]), value(depth)]));
}

function tool() {
  const description = { name: name(), description: text(6), parameters: { type: "object", properties: object(3), required: [] } };
  return chance(0.8) ? { type: "function", function: description } : description;
}

function call() {
  const made = { name: name(), arguments: object(3) };
  return chance(0.7) ? { id: "call_" + below(1000), type: "function", function: made } : made;
}

function part(media) {
  if (!media || chance(0.6)) return { type: "text", text: text(5) };
  return pick([
    { type: "image_url", image_url: { url: "data:," } },
    { type: "image" },
    { image: "x" },
    { type: "video", video: "x" },
    { type: "video" },
  ]);
}

const parts = (media) => times(below(4), () => part(media));

function withContent(message, media) {
  const kind = below(8);
  if (kind === 0) message.content = null;
  else if (kind <= 2) message.content = parts(media);
  else if (kind <= 6) message.content = chance(0.1) ? pick(["", " ", "\n"]) : text();
  return message; // kind 7: no content at all
}

function assistant() {
  const message = withContent({ role: "assistant" }, false);
  if (chance(0.5)) message.reasoning_content = chance(0.1) ? null : text();
  if (chance(0.4)) message.tool_calls = times(below(3), call);
  return message;
}

function user() {
  if (chance(0.15)) return { role: "user", content: pick(["", " "]) + "<tool_response>\n" + text(3) + "\n</tool_response>" + pick(["", "\n", "."]) };
  return withContent({ role: "user" }, true);
}

function conversation() {
  const messages = [];
  if (chance(0.5)) messages.push(withContent({ role: "system" }, false));
  for (let turns = 1 + below(4); turns > 0; turns--) {
    messages.push(user());
    for (let steps = below(4); steps > 0; steps--) {
      messages.push(assistant());
      if (chance(0.6)) messages.push(...times(1 + below(3), () => withContent({ role: "tool", tool_call_id: "x" }, true)));
    }
  }
  if (!chance(0.1)) return messages;
  const spoilers = [
    () => [],
    () => messages.filter((message) => message.role !== "user"),
    () => [...messages, { role: "system", content: text(3) }],
    () => [...messages, { role: pick(["developer", "System", "bot", ""]), content: text(3) }],
    () => [assistant(), ...messages.filter((message) => message.role !== "system")],
    () => [{ role: "tool", content: text(3) }, ...messages.filter((message) => message.role !== "system")],
  ];
  if (strict) {
    spoilers.push(() => [{ role: "system", content: [{ type: "image" }] }, user()]);
    spoilers.push(() => [{ role: "user", content: [{ type: "smell", strength: 3 }] }]);
  }
  return pick(spoilers)();
}

function options() {
  const out = { add_generation_prompt: chance(0.6) };
  if (chance(0.7)) out.enable_thinking = chance(0.6);
  if (chance(0.7)) out.preserve_thinking = chance(0.5);
  if (chance(0.7)) out.reasoning_effort = pick(["xhigh", "medium", "low"]);
  if (chance(0.03) && out.enable_thinking !== false) out.reasoning_effort = pick(["high", "none", "XHIGH"]);
  return out;
}

const cases = times(Number(countText), () => {
  const made = { messages: conversation(), tools: chance(0.5) ? times(below(4), tool) : null, options: options() };
  try {
    made.text = template.render({ messages: made.messages, tools: made.tools, ...made.options });
  } catch (error) {
    made.refused = String(error.message);
  }
  return made;
});
process.stdout.write(JSON.stringify(cases) + "\n");
