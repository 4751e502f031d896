// What the page keeps in the browser (docs/web.md).

const prefix = "tandem.";

// The stored value; null where there is none or it can't be read.
export function load(name) {
  try {
    return JSON.parse(localStorage.getItem(prefix + name));
  } catch {
    return null;
  }
}

// False where the browser keeps nothing or its room is used up.
export function save(name, value) {
  try {
    localStorage.setItem(prefix + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export function remove(...names) {
  try {
    for (const name of names) localStorage.removeItem(prefix + name);
  } catch {
    // Nothing is kept, so there is nothing to remove.
  }
}
