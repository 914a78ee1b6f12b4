// Parts that pages share, and the times of the page in the time zone of the reader.
const two = n => String(n).padStart(2, "0");
export const clock = d => two(d.getHours()) + ":" + two(d.getMinutes()) + ":" + two(d.getSeconds());
export const local = d => d.getFullYear() + "-" + two(d.getMonth() + 1) + "-" + two(d.getDate()) + " " + clock(d);
export const number = n => n.toLocaleString("en");

// verdict returns the mark of a decision.
const WORDS = { deny: ["▲", "denied"], allow: ["●", "allowed"], would: ["◆", "would deny"] };
export function verdict(r) {
  const [shape, word] = WORDS[r.verdict], v = document.createElement("span"), s = document.createElement("span");
  v.className = "verdict " + r.verdict;
  s.setAttribute("aria-hidden", "true");
  s.textContent = shape;
  v.append(s, " " + word);
  return v;
}

for (const t of document.querySelectorAll("time[datetime]:not([data-ago])")) {
  const d = new Date(t.dateTime);
  if (!Number.isNaN(d.getTime())) {
    t.title = t.title || t.textContent;
    t.textContent = "clock" in t.dataset ? clock(d) : local(d);
  }
}
