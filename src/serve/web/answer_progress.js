// An answer while it comes: how fast, and when to draw it.

export const count = (number) => number.toLocaleString("en");
export const rate = (number) => (number > 0 && number < 10 ? number.toFixed(1) : count(Math.round(number)));

const duration = (milliseconds) =>
  milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;

// Times an answer: until its first piece, and from there on.
export class Stopwatch {
  #begin = performance.now();
  #first = null;
  #last = null;
  #usage = null;

  take(piece) {
    if (piece.usage) this.#usage = piece.usage;
    if (piece.content === undefined && piece.reasoning_content === undefined) return;
    this.#last = performance.now();
    this.#first ??= this.#last;
  }

  // One line, once the answer is complete.
  figures() {
    if (this.#usage === null || this.#first === null) return "";
    const { prompt_tokens: prompt, completion_tokens: tokens, prompt_tokens_details: details } = this.#usage;
    const seconds = (this.#last - this.#first) / 1000;
    // The first token comes with the end of the prompt.
    const speed = tokens > 1 && seconds > 0 ? ` · ${rate((tokens - 1) / seconds)}/s` : "";
    const cached = details?.cached_tokens ?? 0;
    return [
      `${count(tokens)} tokens${speed}`,
      `first after ${duration(this.#first - this.#begin)}`,
      `prompt ${count(prompt)}${cached > 0 ? `, ${count(cached)} from the cache` : ""}`,
    ].join(" · ");
  }
}

// Calls `draw` after each change, at most once a frame and for at most a fifth of the time.
export class Drawing {
  #draw;
  #asked = false;
  #scheduled = false;
  #ended = false;

  constructor(draw) {
    this.#draw = draw;
  }

  ask() {
    this.#asked = true;
    if (this.#scheduled || this.#ended) return;
    this.#scheduled = true;
    // A page in the background gets no frames, but text must not pile up there either.
    if (document.hidden) setTimeout(() => this.#now(), 500);
    else requestAnimationFrame(() => this.#now());
  }

  end() {
    this.#ended = true;
    this.#draw();
  }

  #now() {
    if (this.#ended) return;
    this.#asked = false;
    const begin = performance.now();
    this.#draw();
    setTimeout(() => {
      this.#scheduled = false;
      if (this.#asked) this.ask();
    }, 4 * (performance.now() - begin));
  }
}
