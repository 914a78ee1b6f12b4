export default {
  "a command on a schedule is kept as it was given": async ({ create, assert }, s) => {
    s.box = await create({ agent: { harness: "claude-code", model: "anthropic/claude-opus-4-6" } });
    const made = await s.box.schedule.exec({
      cron: "*/5 * * * *", command: ["bash", "-c", "echo hello"], webhookUrl: "https://api.example.com/webhook",
      webhookHeaders: { Authorization: "Bearer token" },
    });
    assert.equal(made.type, "exec");
    assert.equal(made.status, "active");
    assert.equal(made.folder, "/workspace/home");
    assert.equal(made.cron, "*/5 * * * *");
    assert.deepEqual(made.command, ["bash", "-c", "echo hello"]);
    assert.equal(made.webhook_url, "https://api.example.com/webhook");
    assert.deepEqual(made.webhook_headers, { Authorization: "Bearer token" });
    assert.deepEqual((await s.box.schedule.list()).find((x) => x.id === made.id), made);
    assert.deepEqual(await s.box.schedule.get(made.id), made);
    s.made = made;
  },
  "a schedule is paused, resumed and deleted": async ({ assert, refused }, s) => {
    await s.box.schedule.pause(s.made.id);
    assert.equal((await s.box.schedule.get(s.made.id)).status, "paused");
    await s.box.schedule.resume(s.made.id);
    assert.equal((await s.box.schedule.get(s.made.id)).status, "active");
    await s.box.schedule.delete(s.made.id);
    await refused(s.box.schedule.get(s.made.id), 404, /schedule/);
    assert.deepEqual(await s.box.schedule.list(), []);
  },
  "an agent's schedule is kept": async ({ assert }, s) => {
    const made = await s.box.schedule.agent({ cron: "0 9 * * *", prompt: "Run the tests", model: "anthropic/claude-sonnet-4-6" });
    assert.equal(made.type, "prompt");
    assert.equal(made.status, "active");
    assert.equal(made.prompt, "Run the tests");
    assert.equal(made.model, "anthropic/claude-sonnet-4-6");
    assert.deepEqual((await s.box.schedule.list()).find((x) => x.id === made.id), made);
    await s.box.schedule.delete(made.id);
  },
  "folders follow the working directory": async ({ assert }, s) => {
    await s.box.exec.command("mkdir -p parent/child");
    await s.box.cd("parent");
    const here = await s.box.schedule.exec({ cron: "0 0 * * *", command: ["pwd"] });
    assert.equal(here.folder, "/workspace/home/parent");
    const below = await s.box.schedule.agent({ cron: "0 0 * * *", prompt: "x", folder: "child" });
    assert.equal(below.folder, "/workspace/home/parent/child");
    await s.box.cd("/workspace/home");
  },
  "a wrong expression is refused": async ({ refused }, s) => {
    await refused(s.box.schedule.exec({ cron: "every day", command: ["true"] }), 422, /\/cron/);
  },
  "an ephemeral box has schedules as well": async ({ keep, EphemeralBox, Box, refused, ephemeral, assert }, s) => {
    await refused((await ephemeral({ ttl: 300 })).schedule.agent({ cron: "0 0 * * *", prompt: "x" }), 501, /the box has no agent/);
    const snapshot = await s.box.snapshot({ name: "with an agent" });
    const box = keep(await EphemeralBox.fromSnapshot(snapshot.id, { ttl: 300 }));
    await Box.deleteSnapshots({ snapshotIds: snapshot.id });
    const made = await box.schedule.exec({ cron: "0 0 * * *", command: ["true"] });
    const agent = await box.schedule.agent({ cron: "0 0 * * *", prompt: "x" });
    assert.equal((await box.schedule.list()).length, 2);
    await box.schedule.pause(made.id);
    assert.equal((await box.schedule.get(made.id)).status, "paused");
    await box.schedule.resume(made.id);
    await box.schedule.delete(made.id);
    await box.schedule.delete(agent.id);
  },
};
