// The settings' dialog, and the one that asks for a key.
import { apiKey, keyIsKept, setApiKey } from "./api.js";
import { byId } from "./dom.js";
import { load, save } from "./store.js";

const numbers = ["temperature", "top_p", "max_tokens"];
const texts = ["system", "reasoning_effort"];

// What a request has beside the conversation. Settings that are empty or not valid are left to the server.
export function requestSettings() {
  const kept = load("settings") ?? {};
  const body = { messages: [] };
  if (typeof kept.system === "string" && kept.system.trim() !== "") {
    body.messages.push({ role: "system", content: kept.system });
  }
  for (const name of numbers) if (typeof kept[name] === "number") body[name] = kept[name];
  if (typeof kept.reasoning_effort === "string" && kept.reasoning_effort !== "") {
    body.reasoning_effort = kept.reasoning_effort;
  }
  return body;
}

// The fault of a number's field; empty where there is none.
function faultOf(input) {
  const { validity, min, max } = input;
  if (validity.badInput) return "This is not a number.";
  if (validity.rangeUnderflow || validity.rangeOverflow) {
    return `From ${Number(min) < 1e-3 ? 0 : min} to ${Number(max).toLocaleString("en")}.`;
  }
  return validity.stepMismatch ? "A whole number." : "";
}

function keep() {
  const settings = {};
  for (const name of texts) settings[name] = byId(name).value;
  for (const name of numbers) {
    const input = byId(name);
    const fault = faultOf(input);
    byId(`${name}-fault`).textContent = fault;
    input.setAttribute("aria-invalid", String(fault !== ""));
    if (fault === "" && input.value !== "") settings[name] = input.valueAsNumber;
  }
  save("settings", settings);
}

export function setUpSettings({ keyChanged, exportChat, forget }) {
  const dialog = byId("settings");
  let keyBefore = "";
  byId("open-settings").addEventListener("click", () => {
    fill();
    keyBefore = apiKey();
    dialog.showModal();
  });
  byId("settings-form").addEventListener("input", (event) => {
    const ofKey = event.target.id === "key" || event.target.id === "keep-key";
    if (ofKey) setApiKey(byId("key").value, byId("keep-key").checked);
    else keep();
  });
  byId("settings-form").addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close();
  });
  byId("export").addEventListener("click", exportChat);
  byId("forget").addEventListener("click", () => {
    forget();
    fill();
    dialog.close();
  });
  dialog.addEventListener("close", () => {
    if (apiKey() !== keyBefore) keyChanged();
  });
}

function fill() {
  const kept = load("settings") ?? {};
  for (const name of [...texts, ...numbers]) byId(name).value = kept[name] ?? "";
  for (const name of numbers) {
    byId(`${name}-fault`).textContent = "";
    byId(name).removeAttribute("aria-invalid");
  }
  byId("key").value = apiKey();
  byId("keep-key").checked = keyIsKept();
}

// Asks for a key; `use` is called once one is given.
export function askForKey(use) {
  const dialog = byId("key-dialog");
  if (dialog.open) return;
  byId("key-fault").textContent = apiKey() === "" ? "" : "The server does not accept the key that was given.";
  byId("asked-key").value = "";
  byId("keep-asked-key").checked = keyIsKept();
  byId("key-form").onsubmit = (event) => {
    event.preventDefault();
    setApiKey(byId("asked-key").value, byId("keep-asked-key").checked);
    dialog.close();
    use();
  };
  byId("key-cancel").onclick = () => dialog.close();
  dialog.showModal();
}
