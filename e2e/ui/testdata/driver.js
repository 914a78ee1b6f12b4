// Drives Chromium for tests. node driver.js CHROMIUM AXE [SWITCH...] reads calls from standard input, one JSON object a
// line: {id, page, verb, args}. For each it writes {id, value} or {id, error} to standard output.
const { chromium } = require("playwright-core");
const fs = require("node:fs");
const readline = require("node:readline");

const [program, axeFile, ...switches] = process.argv.slice(2);
const pages = new Map();
const patience = 60000;
let browser;

// open makes a page in a new context, so that it has its own cookies. options are those of newContext.
async function open(name, options) {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(patience);
  const page = await context.newPage();
  const problems = []; // messages of the page's scripts and of the content security policy
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) problems.push(message.text()); });
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("dialog", (dialog) => { problems.push("dialog: " + dialog.message()); dialog.dismiss().catch(() => {}); });
  pages.set(name, { context, page, problems });
}

// axe returns what axe-core finds on the page, without what is fine.
async function axe(page) {
  await page.evaluate(fs.readFileSync(axeFile, "utf8"));
  return page.evaluate(async () => (await window.axe.run(document, { resultTypes: ["violations"] })).violations
    .map(({ id, impact, help, nodes }) => ({ id, impact, help, nodes: nodes.slice(0, 5).map((node) => node.html + " " + node.failureSummary) })));
}

// expose takes the page's protections away: answers lose their content security policy, and the text of each template is
// no longer escaped.
async function expose(page, origin) {
  const entities = { "&lt;": "<", "&gt;": ">", "&#34;": '"', "&#39;": "'", "&#43;": "+", "&amp;": "&" };
  await page.route(origin + "/**", async (route) => {
    if (route.request().headers().accept === "text/event-stream") return route.continue();
    const response = await route.fetch({ maxRedirects: 0 });
    const headers = response.headers();
    delete headers["content-security-policy"];
    if (!(headers["content-type"] ?? "").startsWith("text/html")) return route.fulfill({ response, headers });
    const body = (await response.text()).replace(/&(lt|gt|#34|#39|#43|amp);/g, (entity) => entities[entity]);
    return route.fulfill({ response, headers, body });
  });
}

// busy returns the share of one core that the processes of the browser use in a time, in percent, while a script runs on the page if one
// is given, and the duration in milliseconds of each task of the page that took longer than 50 ms.
async function busy(page, milliseconds, script) {
  const session = await browser.newBrowserCDPSession();
  const spent = async () => (await session.send("SystemInfo.getProcessInfo")).processInfo
    .reduce((all, process) => ({ ...all, [process.type]: (all[process.type] ?? 0) + process.cpuTime }), {});
  await page.evaluate(() => {
    window.longTasks = [];
    new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: "longtask" });
  });
  const before = await spent(), began = performance.now();
  if (script) await page.evaluate(script);
  await new Promise((resolve) => setTimeout(resolve, Math.max(0, milliseconds - (performance.now() - began))));
  const after = await spent(), seconds = (performance.now() - began) / 1000;
  await session.detach();
  const percent = Object.fromEntries(Object.entries(after).map(([type, time]) => [type, (time - (before[type] ?? 0)) / seconds * 100]));
  return { percent, seconds, all: Object.values(percent).reduce((a, b) => a + b, 0), longTasks: await page.evaluate(() => window.longTasks) };
}

const verbs = {
  goto: async ({ page }, url) => (await page.goto(url))?.status() ?? 0,
  url: ({ page }) => page.url(),
  title: ({ page }) => page.title(),
  click: ({ page }, selector) => page.click(selector),
  fill: ({ page }, selector, text) => page.fill(selector, text),
  check: ({ page }, selector) => page.check(selector),
  select: ({ page }, selector, value) => page.selectOption(selector, value),
  press: ({ page }, key) => page.keyboard.press(key),
  type: ({ page }, text) => page.keyboard.type(text),
  wait: ({ page }, selector) => page.waitForSelector(selector).then(() => null),
  waitGone: ({ page }, selector) => page.waitForSelector(selector, { state: "hidden" }).then(() => null),
  waitText: ({ page }, selector, text) => page.locator(selector).filter({ hasText: text }).first().waitFor(),
  waitURL: ({ page }, pattern) => page.waitForURL(new RegExp(pattern)),
  text: ({ page }, selector) => page.innerText(selector),
  value: ({ page }, selector) => page.inputValue(selector),
  texts: ({ page }, selector) => page.locator(selector).allInnerTexts(),
  count: ({ page }, selector) => page.locator(selector).count(),
  evaluate: ({ page }, script) => page.evaluate(script),
  html: ({ page }) => page.content(),
  cookies: ({ context }) => context.cookies(),
  axe: ({ page }) => axe(page),
  expose: ({ page }, origin) => expose(page, origin),
  busy: ({ page }, milliseconds, script) => busy(page, milliseconds, script),
  theme: ({ page }, colorScheme) => page.emulateMedia({ colorScheme }),
  size: ({ page }, width, height) => page.setViewportSize({ width, height }),
  screenshot: ({ page }, path, options) => page.mouse.move(0, 0).then(() => page.screenshot({ path, animations: "disabled", caret: "hide", ...options })).then(() => null),
  problems: ({ problems }) => problems.splice(0),
  back: ({ page }) => page.goBack().then(() => null),
  close: ({ context }) => context.close(),
};

async function call({ page, verb, args = [] }) {
  if (verb === "open") return open(page, ...args);
  const opened = pages.get(page);
  if (!opened) throw new Error(`there is no page ${page}`);
  return verbs[verb](opened, ...args);
}

(async () => {
  browser = await chromium.launch({ executablePath: program, chromiumSandbox: false, timeout: 120000, args: ["--disable-gpu", ...switches] });
  console.log(JSON.stringify({ id: 0 }));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { id, ...what } = JSON.parse(line);
    call(what).then((value) => ({ id, value: value ?? null }), (error) => ({ id, error: String(error) }))
      .then((answer) => console.log(JSON.stringify(answer)));
  }
  await browser.close();
})().catch((error) => { console.error(error); process.exit(1); });
