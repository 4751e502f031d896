// A program that speaks JSON-RPC by its standard input and output, one object a line, as editors talk to agents.
import { createInterface } from "node:readline";
import { end, start } from "./processes.mjs";

export class JsonRpc {
  lines = [];  // what was said, by both
  err = "";
  #child;
  #notifications = [];
  #asked = new Map();  // by the request's number: {resolve, reject}
  #expected = new Set();  // {method, fits, resolve, reject}
  #ended = null;

  constructor(words, how) {
    this.#child = start(words, { ...how, stdin: "pipe" });
    this.#child.stderr.on("data", (data) => { this.err += data; });
    createInterface({ input: this.#child.stdout }).on("line", (line) => this.#read(line));
    this.#child.on("error", (error) => this.#fail(error));
    this.#child.on("close", () => this.#fail(new Error(`the program has ended: ${this.err}`)));
    this.#child.stdin.on("error", () => {});  // the program has ended
  }

  end() {
    end(this.#child);
  }

  notify(method, params) {
    this.#write({ jsonrpc: "2.0", method, params });
  }

  // The result of a call.
  request(method, params) {
    const id = this.#asked.size + 1;
    const answer = this.#promise((handlers) => this.#asked.set(id, handlers));
    this.#write({ jsonrpc: "2.0", id, method, params });
    return answer;
  }

  // The parameters of the first notification, so far or to come, that `fits`.
  notification(method, fits) {
    const known = this.#notifications.find((one) => one.method === method && fits(one.params));
    if (known) return Promise.resolve(known.params);
    return this.#promise((handlers) => this.#expected.add({ method, fits, ...handlers }));
  }

  // The parameters of all notifications so far.
  notifications(method) {
    return this.#notifications.filter((one) => one.method === method).map(({ params }) => params);
  }

  #promise(add) {
    const promise = new Promise((resolve, reject) => {
      add({ resolve, reject });
      if (this.#ended) reject(this.#ended);
    });
    promise.catch(() => {});  // whoever waits for it is told
    return promise;
  }

  #write(message) {
    const line = JSON.stringify(message);
    this.lines.push(line);
    this.#child.stdin.write(line + "\n");
  }

  #read(line) {
    this.lines.push(line);
    let message;
    try {
      message = JSON.parse(line);
    } catch {
      return this.#fail(new Error(`the program wrote no JSON: ${line}`));
    }
    if (message.method === undefined) {
      const { resolve, reject } = this.#asked.get(message.id);
      if (message.error) reject(new Error(JSON.stringify(message.error)));
      else resolve(message.result);
    } else if (message.id !== undefined) {
      this.#write({ jsonrpc: "2.0", id: message.id, error: { code: -32601, message: "no test answers this" } });
    } else {
      this.#notifications.push(message);
      for (const one of this.#expected) {
        if (one.method === message.method && one.fits(message.params)) one.resolve(message.params);
      }
    }
  }

  #fail(error) {
    this.#ended = error;
    for (const { reject } of [...this.#asked.values(), ...this.#expected]) reject(error);
  }
}
