// Programs that cases run, each in a process group of its own, so that it can be ended with all that it started.
import { spawn } from "node:child_process";

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

export function start(words, { folder, environment, stdin = "ignore" }) {
  const child = spawn(words[0], words.slice(1), {
    cwd: folder, env: environment, stdio: [stdin, "pipe", "pipe"], detached: true,
  });
  if (child.pid !== undefined) groups.add(child.pid);
  return child;
}

// Ends what `start` started.
export function end(child) {
  kill(child.pid);
  groups.delete(child.pid);
}

// Runs a program to its end: {code, signal, out, err, late}. `interrupt` is a promise; SIGINT is sent when it resolves.
// A program that takes longer than `seconds` is killed, with all that it started, and `late` is true.
export function run(words, { folder, environment, seconds, interrupt = null }) {
  return new Promise((resolve, reject) => {
    const child = start(words, { folder, environment });
    const result = { code: null, signal: null, out: "", err: "", late: false };
    const timers = [setTimeout(() => {
      result.late = true;
      kill(child.pid);
    }, seconds * 1000)];
    interrupt?.then(() => {
      child.kill("SIGINT");
      timers.push(setTimeout(() => kill(child.pid), killMilliseconds));
    }, (error) => {
      kill(child.pid);
      reject(error);
    });
    child.stdout.on("data", (data) => { result.out += data; });
    child.stderr.on("data", (data) => { result.err += data; });
    child.on("error", reject);
    const ended = () => {
      for (const timer of timers) clearTimeout(timer);
      end(child);
      resolve(result);
    };
    child.on("exit", (code, signal) => {
      Object.assign(result, { code, signal });
      kill(child.pid);
      timers.push(setTimeout(ended, killMilliseconds));  // where something else keeps its output open
    });
    child.on("close", ended);
  });
}
