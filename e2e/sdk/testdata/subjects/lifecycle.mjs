export default {
  "a box is created, found and listed": async ({ Box, create, assert }, s) => {
    s.box = await create({ name: "life-1", labels: ["life"], size: "small", env: { STAGE: "test" } });
    assert.equal(s.box.size, "small");
    assert.equal(s.box.keepAlive, false);
    assert.equal((await s.box.getStatus()).status, "idle");
    assert.equal((await Box.get(s.box.id)).id, s.box.id);
    assert.equal((await Box.getByName("life-1")).id, s.box.id);
    const listed = await Box.list({ label: "life" });
    assert.deepEqual(listed.map((b) => b.id), [s.box.id]);
    assert.equal(listed[0].name, "life-1");
    assert.equal(listed[0].status, "idle");
    assert.equal((await Box.list()).some((b) => b.id === s.box.id), true);
  },
  "its ID begins with that of the host": async ({ Box, create, assert }, s) => {
    const other = await create();
    assert.match(s.box.id, /^[0-9a-f]{6}/);
    assert.equal(other.id.slice(0, 6), s.box.id.slice(0, 6));
    assert.notEqual(other.id, s.box.id);
    await other.delete();
  },
  "pause keeps processes and memory, resume goes on": async ({ assert }, s) => {
    await s.box.exec.command("setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i >ticks; sleep 0.1; done' >/dev/null 2>&1 &");
    await s.box.pause();
    assert.equal((await s.box.getStatus()).status, "paused");
    await s.box.resume();
    assert.equal((await s.box.getStatus()).status, "idle");
    const ticks = async () => Number((await s.box.exec.command("cat ticks 2>/dev/null || echo 0")).stdout);
    const before = await ticks();
    for (const end = Date.now() + 60_000; (await ticks()) <= before; ) assert.ok(Date.now() < end, "the process does not go on");
  },
  "a command wakes a paused box": async ({ assert }, s) => {
    await s.box.pause();
    const run = await s.box.exec.command("echo awake");
    assert.equal(run.stdout, "awake\n");
    assert.equal((await s.box.getStatus()).status, "idle");
  },
  "pausing and resuming twice is no error": async ({ assert }, s) => {
    await s.box.pause();
    await s.box.pause();
    assert.equal((await s.box.getStatus()).status, "paused");
    await s.box.resume();
    await s.box.resume();
    assert.equal((await s.box.getStatus()).status, "idle");
  },
  "cd follows directories that are there": async ({ assert, BoxError }, s) => {
    await s.box.exec.command("mkdir -p src/lib");
    await s.box.cd("src/lib");
    assert.equal(s.box.cwd, "/workspace/home/src/lib");
    assert.equal((await s.box.exec.command("pwd")).stdout, "/workspace/home/src/lib\n");
    await s.box.cd("..");
    assert.equal(s.box.cwd, "/workspace/home/src");
    await s.box.cd("/tmp");
    assert.equal((await s.box.exec.command("pwd")).stdout, "/tmp\n");
    await assert.rejects(s.box.cd("not-there"), BoxError);
    assert.equal(s.box.cwd, "/tmp");
    await s.box.cd("/workspace/home");
  },
  "logs and runs": async ({ assert }, s) => {
    const run = await s.box.exec.command("echo warmup");
    assert.equal(run.status, "completed");
    const [latest] = await s.box.listRuns();
    assert.equal(latest.type, "shell");
    assert.equal(latest.status, "completed");
    assert.equal(latest.prompt, "sh -c echo warmup");
    assert.equal(latest.box_id, s.box.id);
    const numbers = ["input_tokens", "output_tokens", "cpu_ns", "cost_usd", "compute_cost_usd", "duration_ms", "created_at", "completed_at"];
    for (const field of numbers) assert.equal(typeof latest[field], "number", field);
    assert.deepEqual(Object.keys(latest).sort(), [...numbers, "id", "box_id", "customer_id", "type", "status", "prompt"].sort());
    assert.ok(latest.cpu_ns > 0, `cpu_ns: ${latest.cpu_ns}`);
    assert.equal(typeof latest.customer_id, "string");
    const logs = await s.box.logs();
    assert.ok(logs.length > 0);
    for (const line of logs) {
      assert.deepEqual(Object.keys(line).sort(), ["level", "message", "source", "timestamp"]);
      assert.equal(typeof line.timestamp, "number");
      assert.match(line.level, /^(info|warn|error)$/);
      assert.match(line.source, /^(system|agent|user)$/);
      assert.equal(typeof line.message, "string");
    }
    assert.deepEqual(await s.box.logs({ offset: 1, limit: 2 }), (await s.box.logs()).slice(1, 3));
    assert.notDeepEqual(await s.box.logs({ offset: 1, limit: 2 }), await s.box.logs({ limit: 2 }));
  },
  "a box that is kept alive has an init command": async ({ create, assert, refused, Box }, s) => {
    const box = await create({ keepAlive: true, initCommand: "echo started >started" });
    assert.equal(box.keepAlive, true);
    assert.equal(await box.getInitCommand(), "echo started >started");
    await box.setInitCommand("echo again >again");
    assert.equal(await box.getInitCommand(), "echo again >again");
    await box.deleteInitCommand();
    assert.equal(await box.getInitCommand(), "");
    await assert.rejects(box.pause(), /Keep-alive boxes cannot be paused/);
    await assert.rejects(s.box.getInitCommand(), /only available for keep-alive/);
    await box.delete();
  },
  "deleted boxes are gone": async ({ Box, create, assert, refused }, s) => {
    const [one, two] = [await create(), await create()];
    await Box.delete({ boxIds: [one.id, two.id] });
    await refused(Box.get(one.id), 404, /no box/);
    await refused(two.exec.command("true"), 404, /no box/);
    await s.box.delete();
    await refused(s.box.getStatus(), 404, /no box/);
    await refused(Box.delete({ boxIds: "not-there" }), 404, /nothing was deleted/);
  },
  "errors say what is wrong": async ({ Box, BoxError, refused, assert }) => {
    await assert.rejects(Box.create({ apiKey: "wrong" }), (e) => e instanceof BoxError && e.statusCode === 401);
    await refused(Box.create({ size: "huge" }), 422, /\/size: must be small, medium or large/);
    await refused(Box.create({ name: "a b" }), 422, /\/name/);
  },
};
