// main.mjs BROWSER TANDEM ARTIFACT ECHO_SERVER SCREENSHOT_FOLDER: runs every case, or those whose name holds
// TANDEM_WEB_FILTER. Prints as GoogleTest does, so that the cases are counted alike.
import { cpus } from "node:os";
import { chromium } from "playwright-core";
import { chatCases } from "./chat_cases.mjs";
import { markdownCases } from "./markdown_cases.mjs";
import { pageCases } from "./page_cases.mjs";
import { Servers } from "./servers.mjs";
import { serverCases } from "./server_cases.mjs";

const [browserPath, tandem, artifact, echoServer, screenshots] = process.argv.slice(2);
const filter = process.env.TANDEM_WEB_FILTER ?? "";
const patienceMilliseconds = 15_000;
const mostWorkers = 3;

const browser = await chromium.launch({
  executablePath: browserPath,
  // Tests run as root in containers, where Chromium's own sandbox can't be set up and /dev/shm is small.
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
});

// A page of its own for each case. Whatever the page should not do is collected in `faults`.
async function openPage(origin, options) {
  const context = await browser.newContext({ viewport: { width: 1100, height: 800 }, ...options });
  context.setDefaultTimeout(patienceMilliseconds);
  const page = await context.newPage();
  const faults = [];
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(`${origin}/`) && !url.startsWith("blob:")) faults.push(`a request to ${url}`);
  });
  page.on("pageerror", (error) => faults.push(`an uncaught error: ${error.message}`));
  // The browser itself reports every answer of 400 and above.
  page.on("console", (message) => {
    const text = message.text();
    if (message.type() === "error" && !/the server responded with a status of|net::ERR_/.test(text)) {
      faults.push(`a console error: ${text}`);
    }
  });
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) =>
      console.error(`the policy forbids ${event.violatedDirective} ${event.blockedURI}`));
  });
  return { page, faults, context };
}

// What a case prints comes at its end, in one piece.
async function runCase(name, run, servers) {
  const lines = [`[ RUN      ] WebPage.${name}`];
  const begin = Date.now();
  const opened = [];
  let failure = null;
  try {
    await run({
      servers,
      // `expected` names faults that the case makes on purpose.
      open: async (origin, { expected = null, ...options } = {}) => {
        const one = await openPage(origin, options);
        opened.push({ ...one, expected });
        const response = await one.page.goto(origin);
        return Object.assign(one.page, { response });
      },
      screenshot: (page, file) => page.screenshot({ path: `${screenshots}/${file}.png` }),
      print: (line) => lines.push(line),
    });
    const faults = opened.flatMap((one) => one.faults.filter((fault) => !one.expected?.test(fault)));
    if (faults.length > 0) throw new Error(`the page made ${faults.join("; ")}`);
  } catch (error) {
    failure = error;
    lines.push(error.stack ?? String(error));
    await opened.at(-1)?.page.screenshot({ path: `${screenshots}/failed-${name}.png` }).catch(() => {});
  }
  for (const one of opened) await one.context.close();
  lines.push(`[${failure ? "  FAILED  " : "       OK "}] WebPage.${name} (${Date.now() - begin} ms)`);
  console.log(lines.join("\n"));
  return failure === null;
}

const all = { ...pageCases, ...markdownCases, ...chatCases, ...serverCases };
const waiting = Object.entries(all).filter(([name]) => name.includes(filter));
let failed = waiting.length === 0 ? 1 : 0;

// Each worker has servers of its own: the echo server answers one request at a time.
async function work(servers) {
  for (let next = waiting.shift(); next; next = waiting.shift()) if (!(await runCase(...next, servers))) failed++;
}

const number = Math.min(mostWorkers, cpus().length);
const workers = Array.from({ length: number }, () => new Servers(tandem, artifact, echoServer));
try {
  await Promise.all(workers.map(work));
} finally {
  await browser.close();
  for (const servers of workers) servers.stop();
}
process.exitCode = failed > 0 ? 1 : 0;
