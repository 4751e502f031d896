// Requests to this server. Every failure is an ApiError whose message is one line for people.
import { load, remove, save } from "./store.js";

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

// The server sends a comment in every 5 s of silence, so that a minute without a byte means that it is gone.
const silenceMilliseconds = 60_000;

const lost = () => new ApiError("The connection was lost before the answer was complete.");

// A key holds printable ASCII alone; what was pasted beside it is dropped, as no header could carry it.
const cleanKey = (value) => String(value ?? "").replace(/[^!-~]/g, "");

let key = cleanKey(load("key"));

export const apiKey = () => key;
export const keyIsKept = () => load("key") != null;

export function setApiKey(value, keep) {
  key = cleanKey(value);
  if (keep && key !== "") save("key", key);
  else remove("key");
}

// The response of a request that succeeded.
async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key !== "") headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server can’t be reached.");
  }
  if (response.ok) return response;
  let message = `The server answered with HTTP ${response.status}.`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // Not in the form of this server: a proxy's page.
  }
  throw new ApiError(message, response.status);
}

async function read(path, take, signal) {
  const response = await request(path, { signal });
  try {
    return await take(response);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(`The answer of ${path} can’t be read.`);
  }
}

export const getJson = (path, signal) => read(path, (response) => response.json(), signal);
export const getText = (path, signal) => read(path, (response) => response.text(), signal);

// The data of each event of an event stream.
async function* eventData(body, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const ended of lines) {
      const line = ended.endsWith("\r") ? ended.slice(0, -1) : ended;
      if (line === "" && data.length > 0) {
        yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

// POST /v1/chat/completions. `take` gets each piece: {content}, {reasoning_content}, {finish_reason}, {usage}.
// Returns when the answer is complete; throws an ApiError, or an AbortError once `signal` is aborted.
export async function streamChat(body, signal, take) {
  const silence = new AbortController();
  let timer;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), silenceMilliseconds);
  };
  const abort = () => silence.abort();
  signal.addEventListener("abort", abort);
  let complete = false;
  try {
    alive();
    const response = await request("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal: silence.signal,
    });
    for await (const data of eventData(response.body, alive)) {
      complete = data === "[DONE]";
      if (complete) return;
      takeChunk(data, take);
    }
    throw lost();
  } catch (error) {
    if (signal.aborted) throw new DOMException("stopped", "AbortError");
    throw error instanceof ApiError ? error : lost();
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", abort);
    if (!complete) silence.abort();
  }
}

function takeChunk(data, take) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new ApiError("The server sent an event that is not JSON.");
  }
  if (chunk.error) throw new ApiError(chunk.error.message ?? "The server could not finish the answer.");
  if (chunk.usage) take({ usage: chunk.usage });
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content } = choice.delta ?? {};
  if (content || reasoning_content) take({ content, reasoning_content });
  if (choice.finish_reason) take({ finish_reason: choice.finish_reason });
}
