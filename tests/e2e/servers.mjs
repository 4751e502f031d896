// The servers that cases start: one over a scripted model, and the program with the demo model.
import { spawn } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const startMilliseconds = 60_000;

// The objects of a file of JSON lines, which may not be there yet.
function lines(file) {
  if (!existsSync(file)) return [];
  return readFileSync(file, "utf8").split("\n").filter((line) => line !== "").map((line) => JSON.parse(line));
}

export class Server {
  // `words` is the command, whose output tells the address; `log` the file of its request log.
  static async start(words, log, prompts = null) {
    const child = spawn(words[0], words.slice(1), { stdio: ["ignore", "pipe", "pipe"], env: { PATH: process.env.PATH } });
    const server = new Server(child, log, prompts);
    const until = Date.now() + startMilliseconds;
    while (!(await server.#ready())) {
      if (child.exitCode !== null) throw new Error(`the server ended with ${child.exitCode}: ${server.output}`);
      if (Date.now() > until) throw new Error(`the server was not ready in time: ${server.output}`);
      await sleep(20);
    }
    return server;
  }

  // A scripted server in `folder`; the script is described in scripted_server.cpp.
  static scripted(program, folder, script) {
    const file = join(folder, "script.json");
    writeFileSync(file, JSON.stringify(script, null, 1));
    const log = join(folder, "requests.jsonl");
    const prompts = join(folder, "prompts.jsonl");
    return Server.start([program, file, log, prompts], log, prompts);
  }

  static demo(program, artifact, folder, ...more) {
    const log = join(folder, "requests.jsonl");
    return Server.start([program, "serve", artifact, "--port", "0", "--log-level", "warn", "--request-log", log, ...more],
      log);
  }

  output = "";
  url = null;
  #child;
  #log;
  #prompts;

  constructor(child, log, prompts) {
    this.#child = child;
    this.#log = log;
    this.#prompts = prompts;
    child.on("error", (error) => { this.output += `${error}`; });
    const read = (data) => {
      this.output += data;
      this.url ??= /listening on (http:\/\/127\.0\.0\.1:\d+)\n/.exec(this.output)?.[1] ?? null;
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
  }

  async #ready() {
    return this.url !== null && (await fetch(`${this.url}/health`)).ok;
  }

  // The request log's lines so far, without those of the tests' own polling: {method, path, status, …}. The line of an
  // answer is written after its last byte, and before the server's one thread answers anything later: hence the question.
  async requests() {
    await this.load().catch(() => {});  // a server that has ended has written its lines
    return lines(this.#log).filter(({ path }) => path !== "/health" && path !== "/slots");
  }

  // "POST /v1/messages 200" of each request.
  async summary() {
    return (await this.requests()).map(({ method, path, status }) => `${method} ${path} ${status}`);
  }

  async statuses(path) {
    return (await this.requests()).filter((request) => request.path === path).map(({ status }) => status);
  }

  // {running, waiting}: requests that the engine holds.
  async load() {
    return (await fetch(`${this.url}/health`)).json();
  }

  // What a scripted model was asked so far, in order: {rule, prompt}, as scripted_server.cpp describes.
  prompts() {
    return lines(this.#prompts);
  }

  // Waits until the engine holds so many requests; false where that takes longer.
  async holds(running, waiting, milliseconds) {
    const until = Date.now() + milliseconds;
    for (;;) {
      const load = await this.load();
      if (load.running === running && load.waiting === waiting) return true;
      if (Date.now() > until) return false;
      await sleep(20);
    }
  }

  async stop() {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = new Promise((resolve) => this.#child.once("exit", resolve));
    this.#child.kill("SIGTERM");
    const late = setTimeout(() => this.#child.kill("SIGKILL"), 12_000);
    await ended;
    clearTimeout(late);
  }
}
