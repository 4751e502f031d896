// The servers that the cases share: the program with the demo model, with and without a key, and the echo server.
import { spawn } from "node:child_process";

const startMilliseconds = 30_000;

export const key = "correct-horse";

export class Servers {
  #started = new Map();
  #processes = [];

  constructor(tandem, artifact, echoServer) {
    const serve = [tandem, "serve", artifact, "--port", "0", "--threads", "1", "--log-level", "error"];
    this.commands = {
      demo: { words: serve },
      locked: { words: serve, environment: { TANDEM_API_KEY: key } },
      pageless: { words: [...serve, "--no-web-page"] },
      echo: { words: [echoServer] },
    };
  }

  // The address of a shared server; started once.
  origin(name) {
    if (!this.#started.has(name)) this.#started.set(name, this.start(name).then((server) => server.origin));
    return this.#started.get(name);
  }

  // A server of one's own: {origin, kill()}.
  async start(name) {
    const { words, environment = {} } = this.commands[name];
    const { TANDEM_API_KEY: _, ...inherited } = process.env;
    const child = spawn(words[0], words.slice(1), {
      stdio: ["ignore", "pipe", "inherit"],
      env: { ...inherited, ...environment },
    });
    this.#processes.push(child);
    const origin = await addressOf(child, name);
    await loaded(origin);
    return { origin, kill: () => child.kill("SIGKILL") };
  }

  stop() {
    for (const child of this.#processes) child.kill("SIGKILL");
  }
}

function addressOf(child, name) {
  return new Promise((resolve, reject) => {
    let out = "";
    const late = setTimeout(() => reject(new Error(`the server ${name} did not start`)), startMilliseconds);
    child.on("exit", (code) => reject(new Error(`the server ${name} ended with ${code}`)));
    child.stdout.on("data", (data) => {
      out += data;
      const found = /listening on (http:\/\/127\.0\.0\.1:\d+)\n/.exec(out);
      if (!found) return;
      clearTimeout(late);
      resolve(found[1]);
    });
  });
}

async function loaded(origin) {
  const until = Date.now() + startMilliseconds;
  while (!(await fetch(`${origin}/health`)).ok) {
    if (Date.now() > until) throw new Error("the model was not loaded");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
