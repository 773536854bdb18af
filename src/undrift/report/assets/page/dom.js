// The document: making elements, filling them, the tip. Text goes in as text nodes only, so no name becomes markup.

const NS = "http://www.w3.org/2000/svg";

export const $ = (selector) => document.querySelector(selector);

export function el(tag, attributes, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS(NS, tag.slice(4)) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "on") {
      for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    } else if (key === "style") {
      for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(key, value === true ? "" : value);
    }
  }
  return fill(node, ...children);
}

export function fill(node, ...children) {
  node.replaceChildren(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

// Built when the reader opens it.
export function lazily(details, build) {
  details.addEventListener("toggle", () => {
    if (details.open) build(details);
  });
}

// What the browser remembers; nothing where it does not (a page from disk).
export function recalled(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // then not
  }
}

export function showTip(left, top, ...content) {
  const tip = fill($("#tip"), ...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, left + 18 + box.width > innerWidth ? left - box.width - 14 : left + 18)}px`;
  tip.style.top = `${Math.max(6, Math.min(top + 14, innerHeight - box.height - 8))}px`;
}

export function hideTip() {
  $("#tip").hidden = true;
}
