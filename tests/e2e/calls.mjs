// What a scripted model writes.

// A tool call as the model's template has it: strings stand as they are, other values as JSON.
export function call(name, args = {}) {
  const parameters = Object.entries(args).map(([key, value]) =>
    `<parameter=${key}>\n${typeof value === "string" ? value : JSON.stringify(value)}\n</parameter>\n`);
  return `<tool_call>\n<function=${name}>\n${parameters.join("")}</function>\n</tool_call>`;
}

// Several calls of one turn: calls([name, args], …).
export const calls = (...list) => list.map(([name, args]) => call(name, args)).join("\n");

// A text without end, for practical purposes. An answer of one token repeated would be ended by the server.
export const endless = Array.from({ length: 4000 }, (_, i) => `word ${i}`).join(", ");
export const lastOfEndless = /word 3999/;
