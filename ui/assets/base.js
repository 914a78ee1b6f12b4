// Times of the page in the time zone of the reader.
const two = n => String(n).padStart(2, "0");
export const clock = d => two(d.getHours()) + ":" + two(d.getMinutes()) + ":" + two(d.getSeconds());
export const local = d => d.getFullYear() + "-" + two(d.getMonth() + 1) + "-" + two(d.getDate()) + " " + clock(d);

for (const t of document.querySelectorAll("time[datetime]:not([data-ago])")) {
  const d = new Date(t.dateTime);
  if (!Number.isNaN(d.getTime())) {
    t.title = t.title || t.textContent;
    t.textContent = "clock" in t.dataset ? clock(d) : local(d);
  }
}
