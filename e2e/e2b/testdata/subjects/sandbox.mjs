const far = (ms) => Date.now() + ms;

export default {
  "a sandbox is created": async ({ create, assert }, s) => {
    s.box = await create({ timeoutMs: 120_000, metadata: { team: "blue", run: "a b/c" }, envs: { GREETING: "hello" } });
    assert.match(s.box.sandboxId, /^[a-z0-9-]+$/);
    assert.equal(await s.box.isRunning(), true);
  },
  "variables of create are those of all commands": async ({ assert }, s) => {
    assert.equal((await s.box.commands.run("echo $GREETING")).stdout, "hello\n");
    assert.equal((await s.box.commands.run("echo $GREETING", { envs: { GREETING: "other" } })).stdout, "other\n");
  },
  "its information": async ({ assert, Sandbox, domain }, s) => {
    const info = await s.box.getInfo();
    assert.equal(info.sandboxId, s.box.sandboxId);
    assert.deepEqual(info.metadata, { team: "blue", run: "a b/c" });
    assert.equal(info.state, "running");
    assert.ok(info.cpuCount >= 1 && info.memoryMB > 0 && info.templateId, JSON.stringify(info));
    assert.ok(Math.abs(info.endAt - info.startedAt - 120_000) < 5_000, `${info.startedAt} – ${info.endAt}`);
    assert.equal(s.box.sandboxDomain, domain);
    const [full, again] = [await Sandbox.getFullInfo(s.box.sandboxId), await Sandbox.getInfo(s.box.sandboxId)];
    assert.deepEqual([full.sandboxId, again.startedAt], [info.sandboxId, info.startedAt]);
  },
  "the user and the home directory": async ({ assert }, s) => {
    assert.equal((await s.box.commands.run("whoami; pwd; echo $HOME $USER")).stdout, "user\n/home/user\n/home/user user\n");
    assert.equal((await s.box.commands.run("id -u", { user: "user" })).stdout, "1000\n");
  },
  "commands as root, and no other user": async ({ assert, fails, sdk }, s) => {
    assert.equal((await s.box.commands.run("id -un; pwd", { user: "root" })).stdout, "root\n/root\n");
    await s.box.commands.run("touch /etc/of-root", { user: "root" });
    await fails(s.box.commands.run("touch /etc/of-user"), sdk.CommandExitError, /exit status 1/);
    await fails(s.box.commands.run("id", { user: "mallory" }), sdk.AuthenticationError, /mallory/);
  },
  "the timeout moves, both ways": async ({ assert, Sandbox }, s) => {
    await s.box.setTimeout(600_000);
    let info = await s.box.getInfo();
    assert.ok(Math.abs(info.endAt - far(600_000)) < 10_000, String(info.endAt));
    await Sandbox.setTimeout(s.box.sandboxId, 90_000);
    info = await s.box.getInfo();
    assert.ok(Math.abs(info.endAt - far(90_000)) < 10_000, String(info.endAt));
  },
  "connect gives the same sandbox": async ({ assert, Sandbox, keep }, s) => {
    await s.box.commands.run("echo one > mark");
    const other = await Sandbox.connect(s.box.sandboxId, { timeoutMs: 300_000 });
    assert.equal((await other.commands.run("cat mark")).stdout, "one\n");
    assert.ok((await s.box.getInfo()).endAt > far(200_000), "connect did not put the end off");
    assert.equal((await s.box.connect()).sandboxId, s.box.sandboxId);
    assert.ok((await s.box.getInfo()).endAt > far(200_000), "connect brought the end forward");
  },
  "pause and resume keep processes": async ({ assert, Sandbox }, s) => {
    const going = await s.box.commands.run("while true; do date +%s%N > beat; sleep 0.1; done", { background: true, timeoutMs: 0 });
    await going.disconnect();
    assert.equal(await s.box.pause(), true);
    assert.equal((await s.box.getInfo()).state, "paused");
    assert.equal(await Sandbox.pause(s.box.sandboxId), false, "a paused sandbox is paused again");
    await s.box.connect({ timeoutMs: 300_000 });
    assert.equal((await s.box.getInfo()).state, "running");
    assert.equal(await s.box.commands.kill(going.pid), true);
  },
  "pause under its older name": async ({ assert, Sandbox }, s) => {
    assert.equal(await s.box.betaPause(), true);
    assert.equal(await Sandbox.betaPause(s.box.sandboxId), false);
    await Sandbox.connect(s.box.sandboxId, { timeoutMs: 300_000 });
  },
  "a list by metadata and state, in pages": async ({ assert, create, Sandbox }, s) => {
    s.more = await Promise.all([1, 2, 3].map((n) => create({ metadata: { of: "the list", n: String(n) }, timeoutMs: 300_000 })));
    await s.more[2].pause();
    const pages = Sandbox.list({ query: { metadata: { of: "the list" } }, limit: 2, order: "asc" });
    assert.equal(pages.hasNext, true);
    const first = await pages.nextItems();
    assert.equal(first.length, 2);
    assert.ok(pages.nextToken);
    const all = [...first, ...(await pages.nextItems())];
    assert.equal(pages.hasNext, false);
    assert.deepEqual(all.map((i) => i.metadata.n).sort(), ["1", "2", "3"]);
    assert.ok(all.every((i, n) => n === 0 || all[n - 1].startedAt <= i.startedAt), "not in order");
    const paused = await Sandbox.list({ query: { metadata: { of: "the list" }, state: ["paused"] } }).nextItems();
    assert.deepEqual(paused.map((i) => i.sandboxId), [s.more[2].sandboxId]);
    const none = await Sandbox.list({ query: { metadata: { of: "the list", n: "4" } } }).nextItems();
    assert.deepEqual(none, []);
    const later = await Sandbox.list({ query: { metadata: { of: "the list" }, startedAfter: new Date(Date.now() + 60_000) } }).nextItems();
    assert.deepEqual(later, []);
    await assert.rejects(pages.nextItems(), /No more items/);
  },
  "metrics": async ({ assert, until, Sandbox }, s) => {
    const [m] = await until("a sample", async () => { const all = await s.box.getMetrics(); return all.length > 0 && all; });
    assert.ok(m.timestamp > far(-600_000) && m.cpuCount >= 1 && m.memTotal > 0 && m.memUsed > 0 && m.memUsed <= m.memTotal, JSON.stringify(m));
    assert.ok((await Sandbox.getMetrics(s.box.sandboxId, { start: new Date(Date.now() - 60_000), end: new Date() })).length > 0);
    assert.deepEqual(await Sandbox.getMetrics(s.box.sandboxId, { end: new Date(Date.now() - 86_400_000) }), []);
  },
  "at its timeout a sandbox is killed": async ({ assert, create, until, Sandbox }) => {
    const box = await create({ timeoutMs: 1_000 });
    await until("the end", async () => !(await box.isRunning()));
    await until("its deletion", async () => !(await Sandbox.kill(box.sandboxId)));
  },
  "or paused, and resumed by a call": async ({ assert, create, until }) => {
    const box = await create({ timeoutMs: 1_000, lifecycle: { onTimeout: "pause", autoResume: true } });
    assert.deepEqual((await box.getInfo()).lifecycle, { onTimeout: "pause", autoResume: true });
    await until("the pause", async () => (await box.getInfo()).state === "paused");
    assert.equal((await box.commands.run("echo awake")).stdout, "awake\n");
    assert.equal((await box.getInfo()).state, "running");
  },
  "without autoResume a call does not wake it": async ({ assert, create, until, Sandbox, TimeoutError, NotFoundError }) => {
    const box = await create({ timeoutMs: 1_000, lifecycle: { onTimeout: "pause", autoResume: false } });
    await until("the pause", async () => (await box.getInfo()).state === "paused");
    assert.equal(await box.isRunning(), false);
    const error = await box.commands.run("true").then(() => null, (e) => e);
    assert.ok(error instanceof TimeoutError || error instanceof NotFoundError, String(error));
    assert.equal((await box.getInfo()).state, "paused");
    await Sandbox.connect(box.sandboxId, { timeoutMs: 300_000 });
    assert.equal((await box.commands.run("echo back")).stdout, "back\n");
    await box.pause();
    await assert.rejects(box.files.read("any"));
    assert.equal((await box.getInfo()).state, "paused");
  },
  "pause without memory and a reboot": async ({ assert, create, Sandbox }) => {
    const box = await create({ timeoutMs: 300_000 });
    await box.files.write("kept", "yes");
    const was = (await box.commands.run("exec sleep 1000", { background: true, timeoutMs: 0 })).pid;
    const outcome = await box.pause({ keepMemory: false }).then(() => "paused", (e) => e);
    if (outcome !== "paused") { assert.match(outcome.message, /memory/); return; }
    await Sandbox.connect(box.sandboxId, { onResume: "reboot" });
    assert.equal(await box.files.read("kept"), "yes");
    assert.ok(!(await box.commands.list()).some((p) => p.pid === was));
  },
  "two forks have the files of the sandbox": async ({ assert, Sandbox, keep }, s) => {
    await s.box.files.write("forked", "as it was");
    const forks = await s.box.fork({ count: 2, timeoutMs: 120_000 });
    assert.equal(forks.length, 2);
    for (const fork of forks) {
      assert.ok(fork instanceof Sandbox, String(fork));
      keep(fork);
      assert.notEqual(fork.sandboxId, s.box.sandboxId);
      assert.equal(await fork.files.read("forked"), "as it was");
    }
    const [third] = await Sandbox.fork(s.box.sandboxId);
    assert.ok(third instanceof Sandbox, String(third));
    keep(third);
    await s.box.files.write("forked", "changed");
    assert.equal(await third.files.read("forked"), "as it was");
  },
  "hosts and the address of MCP": async ({ assert, domain }, s) => {
    assert.equal(s.box.getHost(3000), `3000-${s.box.sandboxId}.${domain}`);
    assert.equal(s.box.getMcpUrl(), `https://50005-${s.box.sandboxId}.${domain}/mcp`);
  },
  "kill, once": async ({ assert, Sandbox, fails, SandboxNotFoundError }, s) => {
    assert.equal(await s.more[0].kill(), true);
    assert.equal(await s.more[0].kill(), false);
    assert.equal(await Sandbox.kill(s.more[1].sandboxId), true);
    assert.equal(await s.more[1].isRunning(), false);
    await fails(Sandbox.connect(s.more[1].sandboxId), SandboxNotFoundError, /not found/);
    await fails(Sandbox.getInfo(s.more[1].sandboxId), SandboxNotFoundError, /not found/);
    await fails(Sandbox.setTimeout(s.more[1].sandboxId, 1000), SandboxNotFoundError, /not found/);
  },
};
