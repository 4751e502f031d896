// The live view of the server: figures of /metrics and the requests of /slots, each second while it is in sight.
import { getJson, getText } from "./api.js";
import { count, rate } from "./answer_progress.js";
import { byId, element } from "./dom.js";

const everyMilliseconds = 1000;
const patienceMilliseconds = 5000;
const averagedSamples = 3;
const drawnSamples = 60;
const missing = "not available";

const states = { idle: "idle", prefill: "reading the prompt", decode: "answering" };

// The sum of each metric over its labels, from Prometheus's text.
export function parseMetrics(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? +(\S+)/.exec(line);
    if (!found) continue;
    const value = Number(found[2]);
    if (Number.isFinite(value)) values.set(found[1], (values.get(found[1]) ?? 0) + value);
  }
  return values;
}

// The figures that are shown: [name, text of a sample, drawn over time]. A sample is {time, values}.
const figures = [
  ["Running", (now) => whole(now, "vllm:num_requests_running")],
  ["Waiting", (now) => whole(now, "vllm:num_requests_waiting")],
  ["Context in use", (now) => percent(now, "vllm:kv_cache_usage_perc")],
  ["Prompts from cache", (now) => share(now, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")],
  ["Prompt tokens/s", (now, before) => perSecond(now, before, "vllm:prompt_tokens_total"), true],
  ["Answer tokens/s", (now, before) => perSecond(now, before, "vllm:generation_tokens_total"), true],
  ["Prompt tokens", (now) => whole(now, "vllm:prompt_tokens_total")],
  ["Answer tokens", (now) => whole(now, "vllm:generation_tokens_total")],
];

function whole({ values }, name) {
  return values.has(name) ? count(values.get(name)) : missing;
}

const inPercent = (value) => `${(100 * value).toFixed(1)} %`;

function percent({ values }, name) {
  return values.has(name) ? inPercent(values.get(name)) : missing;
}

function share({ values }, part, all) {
  if (!values.has(part) || !values.has(all)) return missing;
  return inPercent(values.get(all) > 0 ? values.get(part) / values.get(all) : 0);
}

function perSecond(now, before, name) {
  if (!now.values.has(name)) return missing;
  if (!before?.values.has(name)) return "…";
  const grown = now.values.get(name) - before.values.get(name);
  // A total that shrinks belongs to a server that was started anew.
  return grown < 0 ? "…" : rate((1000 * grown) / (now.time - before.time));
}

// A figure's place on the page, with a line of the last minute where it is drawn.
class Figure {
  #value = element("dd", {}, "…");
  #line = null;
  #drawn = [];

  constructor(list, name, drawn) {
    const place = element("div", {}, element("dt", {}, name), this.#value);
    if (drawn) {
      const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      this.#line = document.createElementNS(picture.namespaceURI, "polyline");
      picture.setAttribute("viewBox", `0 0 ${drawnSamples - 1} 20`);
      picture.setAttribute("preserveAspectRatio", "none");
      picture.append(this.#line);
      // The figure above says what the line ends in.
      this.#value.append(element("span", {}), element("span", { class: "line", "aria-hidden": "true" }, picture));
    }
    list.append(place);
  }

  show(text) {
    if (this.#line === null) {
      this.#value.textContent = text;
      return;
    }
    this.#value.firstChild.textContent = text;
    const number = Number(text.replaceAll(",", ""));
    this.#drawn.push(Number.isFinite(number) ? number : 0);
    if (this.#drawn.length > drawnSamples) this.#drawn.shift();
    const most = Math.max(1, ...this.#drawn);
    const begin = drawnSamples - this.#drawn.length;
    const points = this.#drawn.map((value, i) => `${begin + i},${(19 - (18 * value) / most).toFixed(1)}`);
    this.#line.setAttribute("points", points.join(" "));
  }
}

export class ServerView {
  #options;
  #timer = null;
  #request = null;
  #samples = [];
  #figures;

  // `options`: unauthorized(retry) asks for a key.
  constructor(options) {
    this.#options = options;
    this.#figures = figures.map(([name, , drawn]) => new Figure(byId("figures"), name, drawn));
  }

  // Starts or ends the polling.
  show(visible) {
    clearTimeout(this.#timer);
    this.#request?.abort();
    this.#request = null;
    if (!visible) {
      this.#samples = [];
      return;
    }
    this.#poll();
  }

  async #poll() {
    const request = (this.#request = new AbortController());
    const late = setTimeout(() => request.abort(), patienceMilliseconds);
    const [metrics, slots] = await Promise.allSettled([
      getText("/metrics", request.signal),
      getJson("/slots", request.signal),
    ]);
    clearTimeout(late);
    if (this.#request !== request) return;  // the view was left meanwhile
    this.#showMetrics(metrics);
    this.#showSlots(slots);
    if (metrics.reason?.status === 401) {
      this.#options.unauthorized(() => this.show(true));
      return;
    }
    this.#timer = setTimeout(() => this.#poll(), everyMilliseconds);
  }

  #showMetrics({ value, reason }) {
    byId("server-note").textContent = reason
      ? explain(reason, "/metrics")
      : "Read anew each second, while this view is open.";
    if (reason) {
      this.#samples = [];
      for (const figure of this.#figures) figure.show(missing);
      return;
    }
    const now = { time: performance.now(), values: parseMetrics(value) };
    const before = this.#samples[0];
    figures.forEach(([, text], i) => this.#figures[i].show(text(now, before)));
    this.#samples.push(now);
    if (this.#samples.length > averagedSamples) this.#samples.shift();
  }

  #showSlots({ value, reason }) {
    const slots = Array.isArray(value) ? value : [];
    const busy = slots.filter((slot) => slot.state !== "idle");
    const free = `None. ${count(slots.length)} ${slots.length === 1 ? "place is" : "places are"} free.`;
    byId("slots-note").textContent = reason ? explain(reason, "/slots") : busy.length === 0 ? free : "";
    const list = byId("slots");
    const nodes = new Map([...list.children].map((node) => [node.dataset.request, node]));
    list.replaceChildren(...busy.map((slot) => {
      const node = nodes.get(requestOf(slot)) ?? slotNode(requestOf(slot));
      fillSlot(node, slot);
      return node;
    }));
  }
}

const requestOf = (slot) => `request ${slot.request_id ?? slot.id}`;

function slotNode(request) {
  const bar = element("progress", { max: "1", "aria-label": `Prompt of ${request}` });
  return element("li", { "data-request": request },
    element("div", { class: "slot-head" },
      element("strong", { class: "state" }), element("span", { class: "quiet" }, request)),
    bar, element("p", { class: "prompt" }), element("p", { class: "answered" }));
}

function fillSlot(node, slot) {
  const total = slot.prompt_tokens ?? 0;
  const done = Math.min(slot.prompt_done ?? 0, total);
  const cached = slot.cached_tokens ?? 0;
  const share = total > 0 ? done / total : 0;
  const speed = slot.tokens_per_second > 0 ? ` · ${rate(slot.tokens_per_second)}/s` : "";
  const reading = slot.state === "prefill";
  node.querySelector(".state").textContent = states[slot.state] ?? String(slot.state);
  node.querySelector("progress").value = share;
  node.querySelector(".prompt").textContent =
    `Prompt: ${count(done)} of ${count(total)} tokens (${Math.floor(100 * share)} %)` +
    `${cached > 0 ? `, ${count(cached)} from the cache` : ""}${reading ? speed : ""}`;
  node.querySelector(".answered").textContent =
    `Answer: ${count(slot.completion_tokens ?? 0)} tokens${reading ? "" : speed}`;
}

function explain(error, path) {
  if (error.status === 404) return `Not available: this server has no ${path}.`;
  return `Not available: ${error.name === "AbortError" ? "the server does not answer." : error.message}`;
}
