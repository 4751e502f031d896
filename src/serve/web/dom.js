// Making and finding elements. Text goes into text nodes alone: nothing on this page parses HTML.

export const byId = (id) => document.getElementById(id);

// element("a", {href: "…", class: "…", onclick: f}, "text", child, …). A null child is left out.
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export function button(label, onclick, attributes = {}) {
  return element("button", { type: "button", onclick, ...attributes }, label);
}

// Tells a screen reader, once it has finished what it says.
export function announce(text) {
  byId("announcer").textContent = text;
}

// A button that copies what `text` returns and says so for a moment.
export function copyButton(label, text) {
  const node = button("Copy", async () => {
    const copied = await copy(text());
    node.textContent = copied ? "Copied" : "Could not copy";
    announce(node.textContent);
    setTimeout(() => (node.textContent = "Copy"), 2000);
  }, { class: "small", "aria-label": label });
  return node;
}

async function copy(text) {
  // The clipboard's interface exists on HTTPS and this machine's own addresses only.
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Refused: the older way may still do.
    }
  }
  const area = element("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return copied;
}
