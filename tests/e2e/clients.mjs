// How each client is installed here and started against a server: with a home of its own and an environment that holds
// nothing but what is named here.
import { spawn } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const killMilliseconds = 5_000;

// Process groups that run.
const groups = new Set();

// Ends whatever still runs.
export function killAll() {
  for (const group of groups) kill(group);
}

function kill(group) {
  try {
    process.kill(-group, "SIGKILL");
  } catch {
    // It has ended.
  }
}

// Runs a program to its end: {code, signal, out, err, late}. `interrupt` is a promise; SIGINT is sent when it resolves.
// A program that takes longer than `seconds` is killed, with all that it started, and `late` is true.
export function run(words, { folder, environment, seconds, interrupt = null }) {
  return new Promise((resolve, reject) => {
    const child = spawn(words[0], words.slice(1), {
      cwd: folder,
      env: environment,
      stdio: ["ignore", "pipe", "pipe"],
      detached: true,  // a process group of its own, to be killed as a whole
    });
    const result = { code: null, signal: null, out: "", err: "", late: false };
    if (child.pid !== undefined) groups.add(child.pid);
    const end = () => kill(child.pid);
    const timers = [setTimeout(() => {
      result.late = true;
      end();
    }, seconds * 1000)];
    interrupt?.then(() => {
      child.kill("SIGINT");
      timers.push(setTimeout(end, killMilliseconds));
    }, (error) => {
      end();
      reject(error);
    });
    child.stdout.on("data", (data) => { result.out += data; });
    child.stderr.on("data", (data) => { result.err += data; });
    child.on("error", reject);
    const ended = () => {
      for (const timer of timers) clearTimeout(timer);
      groups.delete(child.pid);
      resolve(result);
    };
    child.on("exit", (code, signal) => {
      Object.assign(result, { code, signal });
      end();
      timers.push(setTimeout(ended, killMilliseconds));  // where something else keeps its output open
    });
    child.on("close", ended);
  });
}

// The programs in the folder of installed packages.
export function programs(modules) {
  return {
    claude: join(modules, "@anthropic-ai/claude-code-linux-x64/claude"),
    codex: join(modules, "@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex"),
    opencode: join(modules, "opencode-linux-x64/bin/opencode"),
  };
}

const basics = (home) => ({ PATH: process.env.PATH, HOME: home, TERM: "dumb", LANG: "C.UTF-8", TMPDIR: join(home, "tmp") });

// Places of one run: {home, project}. `provider` is one of OpenCode's packages, which decide the API that it speaks.
export function opencode({ program, server, places, args, provider = "@ai-sdk/openai-compatible", limit = {}, ...how }) {
  const baseURL = `${server.url}/v1`;
  writeFileSync(join(places.project, "opencode.json"), JSON.stringify({
    $schema: "https://opencode.ai/config.json",
    model: "local/tandem",
    small_model: "local/tandem",
    autoupdate: false,
    share: "disabled",
    provider: {
      local: {
        npm: provider,
        name: "local",
        options: { baseURL, apiKey: "secret" },
        models: {
          tandem: {
            name: "tandem",
            limit: { context: 131072, output: 8192, ...limit },
            attachment: true,
            modalities: { input: ["text", "image"], output: ["text"] },
          },
        },
      },
    },
  }));
  return run([program, "run", ...args], {
    folder: places.project,
    environment: {
      ...basics(places.home),
      OPENCODE_DISABLE_AUTOUPDATE: "1",
      OPENCODE_DISABLE_MODELS_FETCH: "1",
      OPENCODE_DISABLE_LSP_DOWNLOAD: "1",
    },
    ...how,
  });
}

export function claude({ program, server, places, args, environment = {}, ...how }) {
  return run([program, ...args], {
    folder: places.project,
    environment: {
      ...basics(places.home),
      ANTHROPIC_BASE_URL: server.url,
      ANTHROPIC_AUTH_TOKEN: "secret",
      ANTHROPIC_MODEL: "tandem",
      ANTHROPIC_DEFAULT_HAIKU_MODEL: "tandem",
      ANTHROPIC_DEFAULT_SONNET_MODEL: "tandem",
      ANTHROPIC_DEFAULT_OPUS_MODEL: "tandem",
      CLAUDE_CODE_SUBAGENT_MODEL: "tandem",
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      DISABLE_AUTOUPDATER: "1",
      ...environment,
    },
    ...how,
  });
}

export function codex({ program, server, places, args, ...how }) {
  const folder = join(places.home, ".codex");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "config.toml"), [
    'model = "tandem"',
    'model_provider = "tandem"',
    "[model_providers.tandem]",
    'name = "tandem"',
    `base_url = "${server.url}/v1"`,
    'env_key = "TANDEM_API_KEY"',
    'wire_api = "responses"',
    "",
  ].join("\n"));
  return run([program, "exec", ...args], {
    folder: places.project,
    environment: { ...basics(places.home), CODEX_HOME: folder, TANDEM_API_KEY: "secret" },
    ...how,
  });
}
