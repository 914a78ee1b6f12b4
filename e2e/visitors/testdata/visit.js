// Opens a page in Chromium and prints the results of its script: node visit.js CHROMIUM URL HOST ADDRESS [TOKEN]
const { chromium } = require("playwright-core");

(async () => {
  const [program, url, host, address, token] = process.argv.slice(2);
  const browser = await chromium.launch({
    executablePath: program, chromiumSandbox: false, timeout: 120000,
    args: [`--host-resolver-rules=MAP ${host} ${address}`, "--disable-gpu"],
  });
  const page = await browser.newPage();
  page.setDefaultTimeout(120000);
  const failed = []; // the browser's own reasons, which the page is not told
  page.context().on("requestfailed", (request) => failed.push(`${request.url()}: ${request.failure().errorText}`));
  const opened = await page.goto(url);
  const seen = { failed, status: opened.status(), protocol: await page.evaluate(() => performance.getEntriesByType("navigation")[0].nextHopProtocol) };
  if (token) {
    seen.title = await page.title();
    await page.fill("input[type=password]", token);
    await page.click("button[type=submit]");
  }
  await page.waitForFunction(() => document.getElementById("result")?.textContent.startsWith("{"));
  seen.result = JSON.parse(await page.textContent("#result"));
  seen.address = page.url();
  const opening = page.waitForEvent("popup");
  await page.evaluate(() => { window.opened = open("/.boxgate/sign-in"); });
  await (await opening).waitForSelector("h1");
  seen.popup = await page.evaluate(() => { try { return window.opened.document.body.innerHTML; } catch (error) { return error.name; } });
  seen.cookies = (await page.context().cookies()).map(({ name, httpOnly, secure, sameSite, domain }) => ({ name, httpOnly, secure, sameSite, domain }));
  console.log(JSON.stringify(seen));
  await browser.close();
})().catch((error) => { console.error(error); process.exit(1); });
