// What the pages of the console do beyond links and forms. Without it they still work.

const html = document.documentElement;
const year = 365 * 24 * 3600;
const remember = (name, value) => {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `perceptor-${name}=${encodeURIComponent(value)}; Path=/console/; Max-Age=${year}; SameSite=Strict${secure}`;
};

// Times are written by the server in the browser's zone, which it knows from a cookie.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && zone !== html.dataset.zone && sessionStorage.getItem("zone") !== zone) {
  sessionStorage.setItem("zone", zone); // once, even if the server does not know the zone
  remember("zone", zone);
  if (!("posted" in html.dataset) && !document.querySelector("[data-submit-at-once], [data-follow-at-once]")) location.reload();
}

for (const form of document.querySelectorAll("[data-submit-at-once]")) form.submit();
for (const link of document.querySelectorAll("[data-follow-at-once]")) link.click();

document.addEventListener("click", (e) => {
  const target = e.target.closest("[data-theme-switch], [data-copy], [command]");
  if (!target) return;
  if ("themeSwitch" in target.dataset) {
    const dark = html.dataset.theme ? html.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    html.dataset.theme = dark ? "light" : "dark";
    remember("theme", html.dataset.theme);
    document.dispatchEvent(new CustomEvent("themechange"));
  } else if (target.dataset.copy) {
    navigator.clipboard?.writeText(target.dataset.copy);
  } else if (!("commandForElement" in HTMLButtonElement.prototype)) { // older browsers
    const dialog = document.getElementById(target.getAttribute("commandfor"));
    if (target.getAttribute("command") === "show-modal") dialog?.showModal();
    else dialog?.close();
  }
});

// A form is sent once. Empty fields of filters stay out of the address.
document.addEventListener("submit", (e) => {
  const form = e.target;
  if (form.method === "get") {
    for (const field of form.elements) if (field.name && field.value === "") field.disabled = true;
    setTimeout(() => { for (const field of form.elements) field.disabled = false; });
    return;
  }
  if (form.dataset.sent) e.preventDefault();
  else if (form.method === "post") form.dataset.sent = "1";
});
addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});

// The count of a bulk operation must be typed before it can be sent. The server looks, too: without
// scripts the button can be pressed.
function guard() {
  for (const field of document.querySelectorAll("[data-must-be]")) {
    const right = field.value.replace(/[,.\s]/g, "") === field.dataset.mustBe;
    for (const button of field.form.querySelectorAll("button[data-guarded]")) button.disabled = !right;
  }
}
for (const event of ["input", "refreshed"]) document.addEventListener(event, guard);
addEventListener("pageshow", guard);
guard();

addEventListener("keydown", (e) => {
  if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || e.target.matches("input, textarea, select")) return;
  const search = document.querySelector("[data-search]");
  if (search) { e.preventDefault(); search.focus(); search.select(); }
});

// A live page is fetched again, and morphed into what is shown. Nothing happens while the
// page is hidden, a dialog is open, a field has the focus, a count is typed or a form is on its way.
const busy = () => document.hidden || document.querySelector("main dialog[open], main form[data-sent]") || document.activeElement?.matches("main input, main textarea, main select")
  || [...document.querySelectorAll("[data-must-be]")].some((field) => field.value !== "");
let failures = 0;
async function refresh() {
  const main = document.getElementById("main");
  const seconds = Number(main?.dataset.live);
  if (!seconds) return;
  if (!busy()) {
    try {
      const answer = await fetch(location.href, { headers: { "X-Console-Live": "1" }, redirect: "manual", signal: AbortSignal.timeout(15000) });
      if (answer.status === 401 || answer.type === "opaqueredirect") return stale("The session has ended. Reload the page to log in again.");
      const text = await answer.text();
      // A proxy answers for a server that restarts, with a page of its own.
      if (!text.startsWith("<main")) throw new Error(`the answer ${answer.status} is no page`);
      if (!busy()) {
        Idiomorph.morph(main, text, {
          morphStyle: "outerHTML",
          callbacks: {
            // The result of an action stays until the page is left: nobody reads it within a second.
            beforeNodeMorphed: (was, now) => was.id !== "notices" && !(was.dataset?.keep !== undefined && was.nodeType === 1 && now.dataset?.keep !== undefined && copyData(was, now)),
            beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
          },
        });
        document.querySelector("#notices [data-stale]")?.remove();
        document.dispatchEvent(new CustomEvent("refreshed"));
      }
      failures = 0;
    } catch {
      if (++failures > 1) stale("The server does not answer. What is shown may be old.");
    }
  }
  setTimeout(refresh, seconds * 1000 * Math.min(2 ** failures, 8));
}
// copyData updates the data of an element whose content scripts have made.
function copyData(was, now) {
  Object.assign(was.dataset, now.dataset);
  return true;
}
function stale(text) {
  const notices = document.getElementById("notices");
  const note = document.createElement("div");
  note.className = "notice warn";
  note.dataset.stale = "";
  note.textContent = text;
  notices.querySelector("[data-stale]")?.remove();
  notices.append(note);
}
const first = Number(document.getElementById("main")?.dataset.live);
if (first) setTimeout(refresh, first * 1000);
