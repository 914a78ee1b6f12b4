export default {
  "a snapshot is taken, listed and restored": async ({ Box, create, keep, assert }, s) => {
    s.box = await create({ env: { KEPT: "from-source", BOTH: "source" }, agent: { harness: "claude-code", model: "anthropic/claude-haiku-4-5" } });
    await s.box.files.write({ path: "state.txt", content: "before" });
    s.snapshot = await s.box.snapshot({ name: "first" });
    assert.equal(s.snapshot.status, "ready");
    assert.equal(s.snapshot.name, "first");
    assert.equal(s.snapshot.box_id, s.box.id);
    assert.ok(s.snapshot.size_bytes > 0, JSON.stringify(s.snapshot));
    await s.box.files.write({ path: "state.txt", content: "after" });
    assert.deepEqual((await s.box.listSnapshots()).map((x) => x.id), [s.snapshot.id]);
    s.copy = keep(await Box.fromSnapshot(s.snapshot.id, { env: { BOTH: "restored", NEW: "new" }, size: "medium" }));
    assert.notEqual(s.copy.id, s.box.id);
    assert.equal(s.copy.size, "medium");
    assert.equal(await s.copy.files.read("state.txt"), "before");
    assert.equal(await s.box.files.read("state.txt"), "after");
  },
  "variables merge, and the agent is inherited": async ({ assert }, s) => {
    assert.equal((await s.copy.exec.command("echo $KEPT $BOTH $NEW")).stdout, "from-source restored new\n");
    assert.equal(s.copy.modelConfig.model, "anthropic/claude-haiku-4-5");
    assert.equal(s.copy.modelConfig.harness, "claude-code");
  },
  "a snapshot of a paused box, and several at once": async ({ assert }, s) => {
    await s.box.pause();
    const made = await Promise.all(["a", "b"].map((name) => s.box.snapshot({ name })));
    assert.deepEqual(made.map((x) => x.status), ["ready", "ready"]);
    await s.box.deleteSnapshot(made[0].id);
    const left = (await s.box.listSnapshots()).map((x) => x.id);
    assert.ok(!left.includes(made[0].id) && left.includes(made[1].id));
  },
  "a snapshot outlives its box": async ({ Box, EphemeralBox, keep, assert }, s) => {
    await s.box.delete();
    const box = keep(await EphemeralBox.fromSnapshot(s.snapshot.id, { ttl: 300 }));
    assert.equal(await box.files.read("state.txt"), "before");
    assert.ok(box.expiresAt > Date.now() / 1000);
  },
  "given snapshots are deleted, all are deleted, none is refused": async ({ Box, EphemeralBox, ephemeral, assert, refused }, s) => {
    const box = await ephemeral({ ttl: 300 });
    const [a, b] = [await box.snapshot({ name: "one" }), await box.snapshot({ name: "two" })];
    assert.deepEqual((await box.listSnapshots()).map((x) => x.name).sort(), ["one", "two"]);
    await refused(Box.deleteSnapshots({ snapshotIds: [] }), 422, /ids/);
    assert.deepEqual(await Box.deleteSnapshots({ snapshotIds: a.id }), { deleted: 1 });
    await box.deleteSnapshot(b.id);
    await box.snapshot({ name: "three" });
    const { deleted } = await EphemeralBox.deleteSnapshots();
    assert.ok(deleted >= 2, `deleted ${deleted}`);
    assert.deepEqual(await box.listSnapshots(), []);
    await refused(Box.fromSnapshot(s.snapshot.id), 404, /snapshot/);
    await refused(box.deleteSnapshot(a.id), 404, /snapshot/);
  },
};
