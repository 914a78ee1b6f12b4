// The activity in the list of boxes, kept up to date while the page is seen.
import { number, verdict } from "./base.js";
const EVERY = 5000, list = document.getElementById("boxes");

function ago(at) {
  const s = (Date.now() - at) / 1000;
  if (s < 1) return "now";
  if (s < 60) return Math.floor(s) + " s ago";
  if (s < 3600) return Math.floor(s / 60) + " min ago";
  return s < 172800 ? Math.floor(s / 3600) + " h ago" : Math.floor(s / 86400) + " d ago";
}

function show(tr, a) {
  tr.querySelector(".denied").textContent = a.denied ? number(a.denied) : "";
  const r = a.latest, at = new Date(Number(r.at.slice(0, -6))), t = document.createElement("time"), link = document.createElement("a");
  t.dateTime = at.toISOString();
  t.title = at.toLocaleString();
  t.textContent = ago(at);
  link.className = "mono";
  link.href = "/ui/boxes/" + encodeURIComponent(tr.dataset.box) + "/decisions/" + r.seq + "?at=" + r.at;
  link.textContent = r.host + (r.port ? ":" + r.port : "");
  tr.querySelector(".latest").replaceChildren(t, " ", verdict(r), " ", link);
}

async function refresh() {
  if (!document.hidden && !document.activeElement.closest(".latest")) {
    try {
      const resp = await fetch(list.dataset.activity, { redirect: "manual" });
      if (!resp.ok) return; // the session has ended
      const all = await resp.json();
      for (const tr of list.querySelectorAll("tr[data-box]")) if (all[tr.dataset.box]) show(tr, all[tr.dataset.box]);
    } catch {} // the gateway may be restarting
  }
  setTimeout(refresh, EVERY);
}
if (list) setTimeout(refresh, EVERY);
