// What a person does on the page.
import assert from "node:assert/strict";

export const prompt = (page) => page.getByRole("textbox", { name: "Your message" });
export const answers = (page) => page.getByRole("article", { name: "Tandem" });
export const lastAnswer = (page) => answers(page).last().locator(".content");

// Writes and sends a question without waiting for the answer.
export async function send(page, text) {
  await prompt(page).fill(text);
  await page.getByRole("button", { name: "Send" }).click();
}

// Until no answer is being streamed.
export async function settled(page) {
  await page.getByRole("button", { name: "Send" }).waitFor();
}

// Asks and waits for the whole answer, which it returns.
export async function ask(page, text) {
  const before = await answers(page).count();
  await send(page, text);
  await answers(page).nth(before).locator("footer button").first().waitFor();
  await settled(page);
  return lastAnswer(page);
}

// Waits until `read` gives a value that `fits`.
export async function eventually(read, fits, what, limit = 15_000) {
  const until = Date.now() + limit;
  let value;
  do {
    value = await read();
    if (fits(value)) return value;
    await new Promise((resolve) => setTimeout(resolve, 20));
  } while (Date.now() < until);
  assert.fail(`${what}: at last ${JSON.stringify(value)}`);
}

// Whether anything on the page reaches beyond its width.
export async function expectNoSidewaysScroll(page, where) {
  const { wide, room } = await page.evaluate(() => ({
    wide: Math.max(document.documentElement.scrollWidth, document.querySelector("#scroller").scrollWidth),
    room: document.documentElement.clientWidth,
  }));
  assert.ok(wide <= room, `${where}: ${wide} pixels in ${room}`);
}
