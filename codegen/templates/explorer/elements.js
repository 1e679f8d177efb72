// Elements of the document.

/** Return the element with an id. */
function byId(id) {
  return document.getElementById(id);
}

/** Return a new element; `properties` are attributes, and functions are listeners. */
function h(name, properties = {}, ...children) {
  const element = document.createElement(name);
  setProperties(element, properties);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** Return a new element of a drawing. */
function svg(name, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  setProperties(element, properties);
  element.append(...children);
  return element;
}

function setProperties(element, properties) {
  for (const [key, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
}

/** Return a text cut after `length` characters. */
function cut(text, length = 120) {
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

/** Return a number with a noun: `1 message`, `2 messages`. */
function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** Tell something in the status line, which screen readers read; `part` is a progress from 0 to 1. */
function say(text, part = null) {
  byId("status").textContent = text;
  byId("progress").hidden = part === null;
  byId("progress").value = part ?? 0;
}
