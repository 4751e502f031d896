// How each client is installed here and started against a server: with a home of its own and an environment that holds
// nothing but what is named here.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

// The programs in the folder of installed packages.
export function programs(modules) {
  return {
    claude: join(modules, "@anthropic-ai/claude-code-linux-x64/claude"),
    codex: join(modules, "@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex"),
    opencode: join(modules, "opencode-linux-x64/bin/opencode"),
  };
}

const basics = (home) => ({ PATH: process.env.PATH, HOME: home, TERM: "dumb", LANG: "C.UTF-8", TMPDIR: join(home, "tmp") });

// Each writes a client's settings and gives {words, folder, environment}: how it is started. `places` is {home, project}.

// `provider` is one of OpenCode's packages, which decide the API that it speaks.
export function opencode({
  program, server, places, command = "run", args, provider = "@ai-sdk/openai-compatible", limit = {},
}) {
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
  return {
    words: [program, command, ...args],
    folder: places.project,
    environment: {
      ...basics(places.home),
      OPENCODE_DISABLE_AUTOUPDATE: "1",
      OPENCODE_DISABLE_MODELS_FETCH: "1",
      OPENCODE_DISABLE_LSP_DOWNLOAD: "1",
    },
  };
}

export function claude({ program, server, places, args, environment = {} }) {
  return {
    words: [program, ...args],
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
  };
}

// `settings` are lines of config.toml.
export function codex({ program, server, places, command = "exec", args, settings = [] }) {
  const folder = join(places.home, ".codex");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "config.toml"), [
    'model = "tandem"',
    'model_provider = "tandem"',
    ...settings,
    "[analytics]",
    "enabled = false",  // else it waits five seconds at its end
    "[model_providers.tandem]",
    'name = "tandem"',
    `base_url = "${server.url}/v1"`,
    'env_key = "TANDEM_API_KEY"',
    'wire_api = "responses"',
    "",
  ].join("\n"));
  return {
    words: [program, command, ...args],
    folder: places.project,
    environment: { ...basics(places.home), CODEX_HOME: folder, TANDEM_API_KEY: "secret" },
  };
}
