// The live decisions of a box: windowed rows, a filter, a pause, and following that stops while the reader scrolls.
import { clock, local, number, verdict } from "./base.js";
const $ = id => document.getElementById(id);
const box = $("live"), form = $("filter"), pause = $("pause"), tally = $("tally"), body = box.querySelector("tbody");
const MOST = 10000, HEIGHT = 27;
const groups = $("groups"), grouped = new Map();
let newest = Number(groups.dataset.newest), run = groups.dataset.run, latest = "", shift = 0, asleep = 0, all = [], shown = [], made = new Map(), fresh = 0, lost = 0, gap = "", paused = false, source = null, drawn = "", queued = false;

const wanted = () => ({ verdict: form.verdict.value, stage: form.stage.value, host: form.host.value.toLowerCase() });
const matches = (r, f) => (!f.verdict || r.verdict === f.verdict) && (!f.stage || r.stage === f.stage) && (!f.host || r.host.toLowerCase().includes(f.host));

function cell(row, cls, text) {
  const td = document.createElement("td");
  if (cls) td.className = cls;
  td.textContent = text;
  row.append(td);
  return td;
}

// link returns the time of a decision with a link to its page.
function link(r) {
  const a = document.createElement("a"), at = new Date(Number(r.at.slice(0, -6)));
  a.href = box.dataset.base + r.seq + "?at=" + r.at;
  a.textContent = clock(at);
  a.title = local(at);
  return a;
}

function draw(r) {
  const tr = document.createElement("tr");
  cell(tr, "", "").append(link(r));
  cell(tr, "", "").append(verdict(r));
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
  const n = shown.length, top = box.scrollTop + shift * HEIGHT, first = Math.max(0, Math.min(n, Math.floor(top / HEIGHT)) - 8), last = Math.min(n, first + Math.ceil(box.clientHeight / HEIGHT) + 16);
  const state = first + " " + last + " " + n + " " + (n ? shown[n - 1 - first]?.seq : "");
  if (state !== drawn) {
    drawn = state;
    const rows = [], kept = new Map();
    if (first) rows.push(spacer(first));
    for (let i = first; i < last; i++) {
      const r = shown[n - 1 - i], tr = made.get(r) ?? draw(r);
      kept.set(r, tr);
      rows.push(tr);
    }
    if (last < n) rows.push(spacer(n - last));
    made = kept;
    const focused = document.activeElement;
    body.replaceChildren(...rows);
    if (body.contains(focused)) focused.focus({ preventScroll: true });
  }
  if (shift) {
    shift = 0;
    box.scrollTop = top;
  }
  const words = [number(n) + (n === all.length ? "" : " of " + number(all.length)) + (all.length === 1 ? " decision" : " decisions")];
  if (fresh) words.push(number(fresh) + " new");
  if (lost) words.push(number(lost) + " left out, faster than this page can show");
  if (gap) words.push(gap);
  if (paused) words.push("paused");
  tally.textContent = words.join(" · ");
  $("quiet").hidden = n > 0;
  tally.dataset.lost = lost;
}

function queue() {
  if (!queued) {
    queued = true;
    requestAnimationFrame(show);
  }
}

function filter() {
  shift = 0;
  const f = wanted();
  shown = all.filter(r => matches(r, f));
  fresh = 0;
  box.scrollTop = 0;
  drawn = "";
  queue();
}

for (const tr of groups.querySelectorAll("tr[data-domain]")) grouped.set(tr.dataset.domain, tr);

// count adds a denial to the row of its domain. The rows of the page count everything up to newest.
function count(r) {
  let tr = grouped.get(r.domain);
  if (!tr) {
    if (grouped.size >= 200) return;
    tr = document.createElement("tr");
    const th = document.createElement("th");
    th.scope = "row";
    th.className = "mono";
    th.textContent = r.domain;
    tr.append(th);
    cell(tr, "num", "").dataset.count = 0;
    cell(tr, "", "").append(link(r));
    cell(tr, "mono", r.reason);
    const hosts = document.createElement("ul");
    hosts.className = "hosts";
    cell(tr, "", "").append(hosts);
    groups.querySelector("tbody").prepend(tr);
    grouped.set(r.domain, tr);
    groups.hidden = false;
    $("none-denied").hidden = true;
  }
  add(tr.children[1], r);
  tr.children[2].replaceChildren(link(r));
  const name = r.host + (r.port ? ":" + r.port : ""), hosts = tr.querySelector(".hosts");
  let li = [...hosts.children].find(li => li.dataset.host === name);
  if (!li) {
    if (hosts.childElementCount > 12) return;
    li = document.createElement("li");
    li.dataset.host = name;
    const a = link(r), n = document.createElement("span");
    a.className = "mono";
    a.textContent = name;
    n.className = "soft";
    n.dataset.count = 0;
    li.append(a, " ", n);
    hosts.append(li);
  }
  add(li.querySelector("[data-count]"), r);
}

// add adds the denials of a row to a number of the page.
function add(n, r) {
  n.dataset.count = Number(n.dataset.count) + (r.count || 1);
  n.textContent = number(Number(n.dataset.count));
}

// take adds a batch. Another run of the gateway numbers its decisions anew.
function take(m, id) {
  const of = id.slice(0, id.lastIndexOf("-"));
  if (of && of !== run) {
    if (run) newest = 0;
    run = of;
  }
  latest = id;
  if (m.first) {
    all = [];
    shown = [];
  }
  lost += m.lost || 0;
  gap = m.gap || gap;
  const f = wanted(), follow = box.scrollTop < HEIGHT && !paused && !body.contains(document.activeElement);
  let added = 0;
  for (const r of m.rows) {
    all.push(r);
    if (r.domain && r.seq > newest) count(r);
    if (matches(r, f)) {
      shown.push(r);
      added++;
    }
  }
  if (all.length > MOST) {
    all = all.slice(-MOST);
    shown = shown.slice(-MOST);
  }
  if (!follow && !m.first) { // the rows that are read stay where they are
    fresh += added;
    shift += added;
  } else fresh = 0;
  queue();
}

function open(after) {
  const q = new URLSearchParams();
  if (form.verdict.value === "deny") q.set("denied", "1");
  if (after) q.set("after", after);
  source?.close();
  source = new EventSource(box.dataset.stream + "?" + q);
  source.addEventListener("rows", e => take(JSON.parse(e.data), e.lastEventId));
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {
      gap = "not live: reload the page, or sign in again";
      queue();
    }
  };
}

// A page that has been hidden for a while gives its connection back, and goes on later.
document.addEventListener("visibilitychange", () => {
  clearTimeout(asleep);
  if (document.hidden) asleep = setTimeout(() => source.close(), 30000);
  else if (source.readyState === EventSource.CLOSED) open(latest);
});

pause.hidden = false;
pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Resume" : "Pause";
  if (!paused) {
    box.scrollTop = shift = fresh = 0;
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
$("all")?.remove();
open();
