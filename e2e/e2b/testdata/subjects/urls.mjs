// With E2B_API_URL and E2B_SANDBOX_URL at the admin listener, nothing is resolved and no public URL is needed.
process.env.E2B_API_URL = process.env.E2B_SANDBOX_URL = process.env.BOXGATE_URL;
process.env.E2B_DOMAIN = "unused.invalid";

export default {
  "a sandbox is created": async ({ create, assert }, s) => {
    [s.box, s.other] = await Promise.all([create({ timeoutMs: 300_000 }), create({ timeoutMs: 300_000 })]);
    assert.equal(await s.box.isRunning(), true);
  },
  "commands go to their own sandbox": async ({ assert }, s) => {
    await s.box.commands.run("echo first > mark");
    await s.other.commands.run("echo second > mark");
    assert.deepEqual([await s.box.files.read("mark"), await s.other.files.read("mark")], ["first\n", "second\n"]);
  },
  "streams": async ({ assert, until }, s) => {
    const handle = await s.box.commands.run("cat", { background: true, stdin: true });
    await handle.sendStdin("x\n");
    await until("the echo", () => handle.stdout === "x\n");
    await handle.kill();
    const seen = [];
    const watch = await s.box.files.watchDir(".", (e) => { seen.push(e.name); });
    await s.box.files.write("seen", "x");
    await until("the event", () => seen.includes("seen"));
    await watch.stop();
  },
  "a signed address names no sandbox, and is refused": async ({ assert }, s) => {
    const answer = await fetch(await s.box.downloadUrl("mark"));
    assert.ok(answer.status >= 400 && answer.status < 500, String(answer.status));
    assert.match(await answer.text(), /E2B_SANDBOX_URL|host name|E2b-Sandbox-Id/);
  },
  "another sandbox's token": async ({ assert }, s) => {
    const ask = (headers) => fetch(`${process.env.BOXGATE_URL}/filesystem.Filesystem/Stat`, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify({ path: "mark" }) }).then((r) => r.status);
    assert.equal(await ask({ "E2b-Sandbox-Id": s.box.sandboxId, "X-Access-Token": s.box.envdAccessToken }), 200);
    assert.equal(await ask({ "E2b-Sandbox-Id": s.box.sandboxId, "X-Access-Token": s.other.envdAccessToken }), 401);
    assert.ok((await ask({ "X-Access-Token": s.box.envdAccessToken })) >= 400);
  },
  "the gateway's own API is beside it": async ({ assert, admin }, s) => {
    assert.ok(JSON.stringify(await admin("GET", "/v2/box")).includes(s.box.sandboxId));
  },
};
