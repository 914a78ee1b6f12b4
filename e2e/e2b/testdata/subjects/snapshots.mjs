export default {
  "a snapshot": async ({ assert, create, Sandbox }, s) => {
    s.box = await create({ timeoutMs: 300_000 });
    await s.box.files.write("state.txt", "of the snapshot");
    s.first = await s.box.createSnapshot({ name: "driver-first" });
    assert.ok(s.first.snapshotId);
    assert.ok(s.first.names.some((n) => n.includes("driver-first")), JSON.stringify(s.first));
    s.second = await Sandbox.createSnapshot(s.box.sandboxId);
    assert.notEqual(s.second.snapshotId, s.first.snapshotId);
    assert.equal((await s.box.commands.run("echo on")).stdout, "on\n");
  },
  "a sandbox from it, by ID and by name": async ({ assert, create }, s) => {
    await s.box.files.write("state.txt", "changed since");
    for (const template of [s.first.snapshotId, "driver-first"]) {
      const box = await create(template, { timeoutMs: 120_000 });
      assert.equal(await box.files.read("state.txt"), "of the snapshot");
    }
  },
  "a list, in pages": async ({ assert, Sandbox }, s) => {
    const pages = s.box.listSnapshots({ limit: 1 });
    const found = [];
    while (pages.hasNext) { found.push(...(await pages.nextItems())); if (pages.hasNext) assert.ok(pages.nextToken); }
    assert.deepEqual(found.map((i) => i.snapshotId).sort(), [s.first.snapshotId, s.second.snapshotId].sort());
    const all = await Sandbox.listSnapshots({ sandboxId: s.box.sandboxId, name: "driver-first" }).nextItems();
    assert.deepEqual(all.map((i) => i.snapshotId), [s.first.snapshotId]);
  },
  "snapshots are templates": async ({ assert, Template, Sandbox, create }, s) => {
    assert.equal(await Template.exists("driver-first"), true);
    const box = await create({ template: s.second.snapshotId, metadata: { of: "a snapshot" }, timeoutMs: 120_000 });
    const listed = await Sandbox.list({ query: { metadata: { of: "a snapshot" }, template: (await box.getInfo()).templateId } }).nextItems();
    assert.deepEqual(listed.map((i) => i.sandboxId), [box.sandboxId]);
  },
  "it survives the sandbox": async ({ assert, create }, s) => {
    await s.box.kill();
    const box = await create(s.first.snapshotId, { timeoutMs: 120_000 });
    assert.equal(await box.files.read("state.txt"), "of the snapshot");
  },
  "deleted, once": async ({ assert, Sandbox, fails, sdk }, s) => {
    assert.equal(await Sandbox.deleteSnapshot(s.first.snapshotId), true);
    assert.equal(await Sandbox.deleteSnapshot(s.first.snapshotId), false);
    assert.equal(await Sandbox.deleteSnapshot(s.second.snapshotId), true);
    await fails(Sandbox.create(s.first.snapshotId), sdk.SandboxError, /^40[04]: /);
  },
};
