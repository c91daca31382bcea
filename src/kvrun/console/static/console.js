// Local times, copying, and closing what has ended. Every page works without this file.
"use strict";

const pad = (number) => String(number).padStart(2, "0");

function showLocalTimes(root) {
  for (const node of root.querySelectorAll("time[datetime]:not([data-shown])")) {
    const at = new Date(node.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const utc = node.textContent.trim();
    const local = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    node.dataset.shown = "yes";
    if (at.getTimezoneOffset() === 0) {
      node.title = "Your local time is UTC";
      continue;
    }
    const day = at.getDate() === at.getUTCDate() ? "" : `${utc.slice(5, 10)} `;
    node.textContent = `${local} `;
    node.title = utc;
    const small = document.createElement("small");
    small.className = "soft nowrap";
    small.textContent = `(${day}${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())} UTC)`;
    node.append(small);
  }
}

function offerCopying(root) {
  for (const button of root.querySelectorAll("button[data-copy][hidden]")) {
    if (navigator.clipboard) button.hidden = false;
  }
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent.trim());
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select and copy by hand";
  }
  setTimeout(() => { button.textContent = said; }, 2000);
}

function prepare(root) {
  showLocalTimes(root);
  offerCopying(root);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) copy(button);
});
document.addEventListener("htmx:load", (event) => prepare(event.target));
document.addEventListener("htmx:responseError", (event) => {
  const place = document.getElementById("said");
  if (place) place.textContent = `The server refused: ${event.detail.xhr.status}. Load the page again.`;
});
document.addEventListener("htmx:sendError", () => {
  const place = document.getElementById("said");
  if (place) place.textContent = "The server did not answer. Check that kvrun control runs, then try again.";
});
prepare(document);
