// main.mjs WORK_DIR PACKAGES_DIR SCRIPTED_SERVER TANDEM ARTIFACT: runs every case, or those whose name holds
// TANDEM_E2E_FILTER. Prints as GoogleTest does, so that the cases are counted alike. What a case's programs wrote stays in
// WORK_DIR/runs/CASE.
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { claudeCases } from "./claude_cases.mjs";
import * as clients from "./clients.mjs";
import { codexCases } from "./codex_cases.mjs";
import { demoCases } from "./demo_cases.mjs";
import { JsonRpc } from "./json_rpc.mjs";
import { opencodeCases } from "./opencode_cases.mjs";
import { killAll, run } from "./processes.mjs";
import { sdkCases } from "./sdk_cases.mjs";
import { Server } from "./servers.mjs";

const [work, packages, scriptedServer, tandem, artifact] = process.argv.slice(2);
const filter = process.env.TANDEM_E2E_FILTER ?? "";
const workers = 3;
// Far more than any takes, unless the machine is busy.
const clientSeconds = 240;
const caseMilliseconds = 500_000;

const programs = clients.programs(join(packages, "node_modules"));

// What a case uses: folders of its own, servers that end with it, and the clients' runs, which are kept.
class Bench {
  #servers = [];
  #runs = 0;

  constructor(name) {
    this.folder = join(work, "runs", name);
    rmSync(this.folder, { recursive: true, force: true });
    this.places = { home: join(this.folder, "home"), project: join(this.folder, "project") };
    mkdirSync(join(this.places.home, "tmp"), { recursive: true });
    mkdirSync(this.places.project, { recursive: true });
  }

  path(name) {
    return join(this.places.project, name);
  }

  write(name, text) {
    writeFileSync(this.path(name), text);
  }

  async serve(script) {
    this.server = await Server.scripted(scriptedServer, this.folder, script);
    this.#servers.push(this.server);
    return this.server;
  }

  async serveDemo(...options) {
    this.server = await Server.demo(tandem, artifact, this.folder, ...options);
    this.#servers.push(this.server);
    return this.server;
  }

  // Runs a client, "claude", "codex" or "opencode", against the server that was started last.
  run(client, args, options = {}) {
    const result = this.#run(client, args, options);
    result.catch(() => {});  // a case that has failed by then does not wait for it
    return result;
  }

  async #run(client, args, { seconds = clientSeconds, interrupt, ...options }) {
    const { words, ...how } = this.#command(client, args, options);
    const result = await run(words, { ...how, seconds, interrupt });
    this.#keep({ client, args, ...result });
    if (result.late) throw new Error(`${client} did not end:\n${result.out}\n${result.err}`);
    return result;
  }

  // The result of `talk` with a client whose `command` speaks JSON-RPC.
  async talk(client, command, talk, options = {}) {
    const { words, ...how } = this.#command(client, [], { command, ...options });
    const program = new JsonRpc(words, how);
    try {
      return await talk(program);
    } finally {
      program.end();
      this.#keep({ client, command, lines: program.lines, err: program.err });
    }
  }

  #command(client, args, options) {
    return clients[client]({ program: programs[client], server: this.server, places: this.places, args, ...options });
  }

  #keep(run) {
    writeFileSync(join(this.folder, `run-${++this.#runs}.json`), JSON.stringify(run, null, 1));
  }

  async end() {
    for (const server of this.#servers) await server.stop();
  }
}

// What a case prints comes at its end, in one piece.
async function runCase(name, test) {
  const lines = [`[ RUN      ] Clients.${name}`];
  const begin = Date.now();
  const bench = new Bench(name);
  let failure = null;
  try {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error("the case took too long")), caseMilliseconds);
    });
    await Promise.race([test(bench), late]).finally(() => clearTimeout(timer));
  } catch (error) {
    failure = error;
    lines.push(error.stack ?? String(error), `requests:\n  ${(await bench.server?.summary() ?? []).join("\n  ")}`,
      `the programs' output is in ${bench.folder}`);
  }
  await bench.end();
  lines.push(`[${failure ? "  FAILED  " : "       OK "}] Clients.${name} (${Date.now() - begin} ms)`);
  console.log(lines.join("\n"));
  return failure === null;
}

const all = { ...claudeCases, ...codexCases, ...opencodeCases, ...sdkCases, ...demoCases };
const waiting = Object.entries(all).filter(([name]) => name.includes(filter));
let failed = waiting.length === 0 ? 1 : 0;

async function worker() {
  for (let next = waiting.shift(); next; next = waiting.shift()) if (!(await runCase(...next))) failed++;
}

await Promise.all(Array.from({ length: workers }, worker));
killAll();
process.exit(failed > 0 ? 1 : 0);
