// The conversation: what is shown, sent, streamed and kept.
import { ApiError, streamChat } from "./api.js";
import { Drawing, Stopwatch } from "./answer_progress.js";
import { announce, button, byId, copyButton, element } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { load, remove, save } from "./store.js";

// A message is {role, content}; an answer also has reasoning, state ("done", "stopped", "failed", "partial") and
// figures (one line).
const isMessage = ({ role, content, reasoning = "" }) =>
  (role === "user" || role === "assistant") && typeof content === "string" && typeof reasoning === "string";

const keepEveryMilliseconds = 2000;
const nearEndPixels = 40;
const spokenCharacters = 2000;  // of a finished answer

export class Chat {
  #messages;
  #views = [];       // of each message: {node, draw()}
  #running = null;   // {controller} while an answer is streamed
  #previous = null;  // the conversation that New chat put away
  #editing = false;
  #pinned = true;  // the end of the page is in sight and stays there
  #options;

  // `options`: request(): what a request has beside its messages; unauthorized(retry): asks for a key; status(text):
  // shows a line.
  constructor(options) {
    this.#options = options;
    const kept = load("conversation");
    this.#messages = Array.isArray(kept) ? kept.filter((message) => message && isMessage(message)) : [];
    for (const message of this.#messages) if (message.state === "partial") message.state = "stopped";
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    byId("prompt").addEventListener("keydown", (event) => this.#key(event));
    byId("prompt").addEventListener("input", () => this.#fit());
    byId("stop").addEventListener("click", () => this.stop());
    byId("retry").addEventListener("click", () => this.#answer());
    byId("cancel-edit").addEventListener("click", () => this.#endEdit(""));
    const scroller = byId("scroller");
    scroller.addEventListener("scroll", () => {
      this.#pinned = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < nearEndPixels;
    });
    addEventListener("pagehide", () => this.#running && this.#keep());
    this.#redraw();
    if (this.#messages.at(-1)?.role === "user") this.#notice("Your last message has no answer yet.");
  }

  get messages() {
    return this.#messages;
  }

  get running() {
    return this.#running !== null;
  }

  stop() {
    this.#running?.controller.abort();
  }

  // Puts the conversation away; it can be taken back until the next one.
  clear() {
    this.stop();
    this.#previous = this.#messages;
    this.#replace([]);
    remove("conversation");
  }

  takeBack() {
    if (this.#previous === null) return;
    this.stop();
    this.#replace(this.#previous);
    this.#previous = null;
    this.#keep();
  }

  #replace(messages) {
    this.#messages = messages;
    // What was being edited belongs to the conversation that goes; what was being written does not.
    this.#endEdit(this.#editing ? "" : byId("prompt").value);
    this.#redraw();
    this.#notice("");
    byId("prompt").focus();
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  }

  #fit() {
    const prompt = byId("prompt");
    prompt.style.height = "auto";
    prompt.style.height = `${prompt.scrollHeight + 2}px`;
  }

  #submit() {
    const text = byId("prompt").value;
    if (text.trim() === "" || this.running) return;
    if (this.#editing) this.#cut(this.#lastQuestion());
    this.#endEdit("");
    this.#messages.push({ role: "user", content: text });
    this.#redraw();
    this.#answer();
  }

  #lastQuestion() {
    return this.#messages.findLastIndex((message) => message.role === "user");
  }

  // Drops the messages from `index` on.
  #cut(index) {
    this.#messages.splice(index);
    this.#redraw();
  }

  #edit() {
    this.#editing = true;
    byId("editing").hidden = false;
    byId("prompt").value = this.#messages[this.#lastQuestion()].content;
    this.#fit();
    byId("prompt").focus();
  }

  #endEdit(text) {
    this.#editing = false;
    byId("editing").hidden = true;
    byId("prompt").value = text;
    this.#fit();
  }

  // Ends an edit, else the answer. False where there was neither.
  escape() {
    if (this.#editing) this.#endEdit("");
    else if (this.running) this.stop();
    else return false;
    byId("prompt").focus();
    return true;
  }

  // Streams an answer to the last question, in place of the one that is there.
  async #answer() {
    if (this.running) return;
    this.#cut(this.#lastQuestion() + 1);
    this.#notice("");
    const body = this.#options.request();
    body.messages = [...body.messages, ...this.#messages.map(asSent)];
    const answer = { role: "assistant", content: "", reasoning: "", state: "partial", figures: "" };
    this.#messages.push(answer);
    const running = { controller: new AbortController() };
    this.#running = running;
    this.#redraw();
    this.#showRunning();
    this.#scroll(true);
    this.#keep();
    let failure = null;
    try {
      await this.#stream(body, answer, running.controller.signal);
      answer.state = "done";
    } catch (error) {
      failure = error;
      answer.state = error.name === "AbortError" ? "stopped" : "failed";
    }
    if (this.#running === running) this.#running = null;
    if (this.#messages.includes(answer)) this.#finish(answer, failure);
    this.#showRunning();
  }

  async #stream(body, answer, signal) {
    const view = this.#views.at(-1);
    const clock = new Stopwatch();
    const draw = new Drawing(() => {
      if (!view.node.isConnected) return;
      view.draw();
      this.#scroll();
    });
    let kept = performance.now();
    try {
      await streamChat(body, signal, (piece) => {
        clock.take(piece);
        answer.reasoning += piece.reasoning_content ?? "";
        answer.content += piece.content ?? "";
        if (piece.finish_reason === "length") answer.cut = true;
        answer.figures = clock.figures();
        draw.ask();
        if (performance.now() - kept < keepEveryMilliseconds) return;
        kept = performance.now();
        this.#keep();
      });
    } finally {
      draw.end();
      answer.figures = clock.figures();
    }
  }

  #finish(answer, failure) {
    if (answer.state === "failed" && answer.content === "" && answer.reasoning === "") this.#messages.pop();
    this.#keep();
    this.#redraw();
    this.#scroll();
    if (answer.state === "done") {
      announce(`Answer: ${byId("messages").lastChild.querySelector(".content").innerText.slice(0, spokenCharacters)}`);
    } else if (answer.state === "stopped") {
      announce("Stopped.");
    } else {
      this.#notice(failure instanceof ApiError ? failure.message : `This page failed: ${failure.message}`);
      if (failure.status === 401) this.#options.unauthorized(() => this.#answer());
    }
  }

  #notice(text) {
    byId("notice").hidden = text === "";
    byId("notice-text").textContent = text;
    if (text !== "") this.#scroll(true);
  }

  #showRunning() {
    const [from, to] = this.running ? [byId("send"), byId("stop")] : [byId("stop"), byId("send")];
    const focused = document.activeElement === from;
    to.hidden = false;
    from.hidden = true;
    if (focused) to.focus();
    byId("messages").setAttribute("aria-busy", String(this.running));
  }

  #keep() {
    if (!save("conversation", this.#messages)) {
      this.#options.status("This browser has no room to keep the conversation: export it in the settings.");
    }
  }

  // Keeps to the end of the page where it is there already, or `always`.
  #scroll(always = false) {
    const scroller = byId("scroller");
    if (always) this.#pinned = true;
    if (this.#pinned) scroller.scrollTop = scroller.scrollHeight;
  }
  // Draws the messages that have changed or have other buttons than before.
  #redraw() {
    byId("greeting").hidden = this.#messages.length > 0;
    const question = this.#lastQuestion();
    this.#views = this.#messages.map((message, i) => {
      const actions = this.running ? "" : i === question ? "edit" : i === this.#messages.length - 1 ? "again" : "";
      const old = this.#views[i];
      const settled = message.state !== "partial";
      if (old?.message === message && old.actions === actions && old.settled === settled) return old;
      const view = message.role === "user" ? this.#questionView(message, actions) : this.#answerView(message, actions);
      return { ...view, message, actions, settled };
    });
    byId("messages").replaceChildren(...this.#views.map((view) => view.node));
  }

  #questionView(message, actions) {
    const buttons = [copyButton("Copy your message", () => message.content)];
    if (actions === "edit") {
      buttons.push(button("Edit", () => this.#edit(), { class: "small", "aria-label": "Edit your message" }));
    }
    const node = element("article", { class: "question", "aria-label": "You" },
      element("div", { class: "bubble" }, message.content), element("footer", {}, ...buttons));
    return { node, draw() {} };
  }

  #answerView(message, actions) {
    const summary = element("summary", {});
    const thoughts = element("div", { class: "thoughts" });
    const reasoning = element("details", { class: "reasoning" }, summary, thoughts);
    const content = element("div", { class: "content" });
    const figures = element("span", { class: "quiet" });
    const footer = element("footer", {});
    if (message.state !== "partial") footer.append(copyButton("Copy answer", () => message.content));
    if (actions === "again") {
      footer.append(button("Answer again", () => this.#answer(), { class: "small" }));
    }
    footer.append(figures);
    const node = element("article", { class: "answer", "aria-label": "Tandem" }, reasoning, content, footer);
    const shownThoughts = new MarkdownView(thoughts);
    const shownContent = new MarkdownView(content);
    const draw = () => {
      const partial = message.state === "partial";
      reasoning.hidden = !message.reasoning;
      summary.textContent = partial && message.content === "" ? "Thinking …" : "Thoughts";
      shownThoughts.show(message.reasoning ?? "");
      shownContent.show(message.content);
      node.classList.toggle("waiting", partial && message.content === "" && !message.reasoning);
      figures.textContent = [ending(message), message.figures].filter(Boolean).join(" · ");
    };
    draw();
    return { node, draw };
  }
}

function ending(message) {
  if (message.state === "stopped") return "stopped";
  if (message.state === "failed") return "incomplete";
  return message.cut ? "ended at the limit of tokens" : "";
}

// Thoughts are sent back too: the server's prompt then begins as it did before.
function asSent({ role, content, reasoning }) {
  return reasoning ? { role, content, reasoning_content: reasoning } : { role, content };
}
