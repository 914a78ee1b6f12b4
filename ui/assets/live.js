// The live decisions of a box: windowed rows, a filter, a pause, and following that stops while the reader scrolls.
import { clock, local } from "./base.js";
const $ = id => document.getElementById(id);
const box = $("live"), form = $("filter"), pause = $("pause"), tally = $("tally"), body = box.querySelector("tbody");
const MOST = 10000, HEIGHT = 27, WORDS = { deny: ["▲", "denied"], allow: ["●", "allowed"], would: ["◆", "would deny"] };
let all = [], shown = [], fresh = 0, lost = 0, gap = "", paused = false, source = null, drawn = "", queued = false;

const number = n => n.toLocaleString("en");
const wanted = () => ({ verdict: form.verdict.value, stage: form.stage.value, host: form.host.value.toLowerCase() });
const matches = (r, f) => (!f.verdict || r.verdict === f.verdict) && (!f.stage || r.stage === f.stage) && (!f.host || r.host.toLowerCase().includes(f.host));

function cell(row, cls, text) {
  const td = document.createElement("td");
  if (cls) td.className = cls;
  td.textContent = text;
  row.append(td);
  return td;
}

function draw(r) {
  const tr = document.createElement("tr"), at = new Date(Number(r.at.slice(0, -6)));
  const a = document.createElement("a");
  a.href = box.dataset.base + r.seq + "?at=" + r.at;
  a.textContent = clock(at);
  a.title = local(at);
  cell(tr, "", "").append(a);
  const [shape, word] = WORDS[r.verdict], v = document.createElement("span"), s = document.createElement("span");
  v.className = "verdict " + r.verdict;
  s.setAttribute("aria-hidden", "true");
  s.textContent = shape;
  v.append(s, " " + word);
  cell(tr, "", "").append(v);
  cell(tr, "", r.stage);
  const to = (r.method ? r.method + " " : "") + r.host + (r.port ? ":" + r.port : "") + (r.path || "");
  cell(tr, "mono", to).title = to;
  cell(tr, "mono", r.reason);
  cell(tr, "mono", r.rule || "").title = r.rule || "";
  cell(tr, "num", r.count > 1 ? number(r.count) : "");
  return tr;
}

function spacer(rows) {
  const tr = document.createElement("tr"), td = document.createElement("td");
  tr.className = "space";
  tr.setAttribute("aria-hidden", "true");
  td.colSpan = 7;
  td.style.height = rows * HEIGHT + "px";
  tr.append(td);
  return tr;
}

// show draws the rows in view. Rows are the latest first, and all have the same height.
function show() {
  queued = false;
  const n = shown.length, first = Math.max(0, Math.floor(box.scrollTop / HEIGHT) - 20), last = Math.min(n, first + Math.ceil(box.clientHeight / HEIGHT) + 40);
  const state = first + " " + last + " " + n + " " + (n ? shown[n - 1 - first]?.seq : "");
  if (state !== drawn) {
    drawn = state;
    const rows = [];
    if (first) rows.push(spacer(first));
    for (let i = first; i < last; i++) rows.push(draw(shown[n - 1 - i]));
    if (last < n) rows.push(spacer(n - last));
    body.replaceChildren(...rows);
  }
  const words = [number(n) + (n === all.length ? "" : " of " + number(all.length)) + " decisions"];
  if (fresh) words.push(number(fresh) + " new");
  if (lost) words.push(number(lost) + " left out, faster than this page can show");
  if (gap) words.push(gap);
  if (paused) words.push("paused");
  tally.textContent = words.join(" · ");
  tally.dataset.lost = lost;
}

function queue() {
  if (!queued) {
    queued = true;
    requestAnimationFrame(show);
  }
}

function filter() {
  const f = wanted();
  shown = all.filter(r => matches(r, f));
  fresh = 0;
  box.scrollTop = 0;
  drawn = "";
  queue();
}

function take(m) {
  if (m.first) {
    all = [];
    shown = [];
  }
  lost += m.lost || 0;
  gap = m.gap || gap;
  const f = wanted(), follow = box.scrollTop < HEIGHT && !paused;
  let added = 0;
  for (const r of m.rows) {
    all.push(r);
    if (matches(r, f)) {
      shown.push(r);
      added++;
    }
  }
  if (all.length > MOST) {
    all = all.slice(-MOST);
    shown = shown.slice(-MOST);
  }
  if (!follow && !m.first) { // keep the rows that are read where they are
    fresh += added;
    if (added) box.scrollTop += added * HEIGHT;
  } else fresh = 0;
  queue();
}

function open() {
  source?.close();
  source = new EventSource(box.dataset.stream + (form.verdict.value === "deny" ? "?denied=1" : ""));
  source.addEventListener("rows", e => take(JSON.parse(e.data)));
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {
      gap = "not live: reload the page, or sign in again";
      queue();
    }
  };
}

pause.hidden = false;
pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Resume" : "Pause";
  if (!paused) {
    box.scrollTop = 0;
    fresh = 0;
  }
  queue();
});
box.addEventListener("scroll", () => {
  if (box.scrollTop < HEIGHT && !paused) fresh = 0;
  queue();
}, { passive: true });
addEventListener("resize", queue);
form.addEventListener("submit", e => {
  e.preventDefault();
  filter();
});
form.host.addEventListener("input", filter);
form.stage.addEventListener("change", filter);
let onlyDenied = form.verdict.value === "deny";
form.verdict.addEventListener("change", () => {
  filter();
  if ((form.verdict.value === "deny") !== onlyDenied) {
    onlyDenied = !onlyDenied;
    open();
  }
});
box.classList.add("windowed");
open();
