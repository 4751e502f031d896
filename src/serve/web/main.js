// The page: its two views, the dialogs, and what the server says about itself.
import { getJson, setApiKey } from "./api.js";
import { Chat } from "./chat.js";
import { announce, byId } from "./dom.js";
import { ServerView } from "./server.js";
import { askForKey, requestSettings, setUpSettings } from "./settings.js";
import { load, remove } from "./store.js";

const statusMilliseconds = 8000;
const loadingRetryMilliseconds = 2000;

// A line over the page for a while; with a way back where `undo` is given.
let statusTimer;
function showStatus(text, undo = null) {
  clearTimeout(statusTimer);
  byId("status-text").textContent = text;
  byId("undo").hidden = undo === null;
  byId("undo").onclick = () => {
    hideStatus();
    undo();
  };
  byId("status").hidden = false;
  announce(text);
  statusTimer = setTimeout(hideStatus, statusMilliseconds);
}

function hideStatus() {
  byId("status").hidden = true;
}

// Shows the model's name, or why there is none yet.
let modelTimer;
async function showModel() {
  clearTimeout(modelTimer);
  const line = byId("model");
  try {
    const [model] = (await getJson("/v1/models")).data;
    line.textContent = model.id;
    document.title = `${model.id} · Tandem`;
  } catch (error) {
    line.textContent = { 401: "needs a key", 503: "loading the model …" }[error.status] ?? "not reachable";
    if (error.status === 401) askForKey(keyChanged);
    else modelTimer = setTimeout(showModel, loadingRetryMilliseconds);
  }
}

function keyChanged() {
  showModel();
  showView();
}

function exportChat() {
  const conversation = {
    exported: new Date().toISOString(),
    settings: load("settings") ?? {},
    messages: chat.messages.map(({ role, content, reasoning, state }) => ({
      role, content, ...(reasoning && { reasoning_content: reasoning }), ...(state && { state }),
    })),
  };
  const address = URL.createObjectURL(new Blob([JSON.stringify(conversation, null, 2)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `tandem-${conversation.exported.slice(0, 19).replaceAll(":", "-")}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function forget() {
  chat.clear();
  setApiKey("", false);
  remove("settings", "conversation", "key");
  showStatus("Everything that this page had stored is gone.");
}

// The view that the address names.
function showView() {
  const server = location.hash === "#server";
  byId("view-chat").hidden = server;
  byId("view-server").hidden = !server;
  for (const [id, current] of [["link-chat", !server], ["link-server", server]]) {
    if (current) byId(id).setAttribute("aria-current", "page");
    else byId(id).removeAttribute("aria-current");
  }
  serverView.show(server && document.visibilityState === "visible");
}

const chat = new Chat({
  request: requestSettings,
  unauthorized: (retry) => askForKey(() => (keyChanged(), retry())),
  status: showStatus,
});
const serverView = new ServerView({ unauthorized: askForKey });

setUpSettings({ keyChanged, exportChat, forget });
byId("new-chat").addEventListener("click", () => {
  location.hash = "#chat";
  if (chat.messages.length === 0) return;
  chat.clear();
  showStatus("A new chat has begun.", () => chat.takeBack());
});
addEventListener("hashchange", showView);
document.addEventListener("visibilitychange", showView);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]") && chat.escape()) event.preventDefault();
});

showView();
showModel();
// On a phone this would open the keyboard.
if (matchMedia("(pointer: fine)").matches && !byId("view-chat").hidden) byId("prompt").focus();
