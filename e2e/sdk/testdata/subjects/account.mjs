export default {
  "variables of every box are set, listed and removed": async ({ Box, create, assert }) => {
    await Box.setEnv("SHARED_ONE", "one-value");
    await Box.setEnv("SHARED_TWO", "two-value");
    const vars = await Box.listEnv();
    assert.ok("SHARED_ONE" in vars && "SHARED_TWO" in vars, JSON.stringify(vars));
    assert.ok(!JSON.stringify(vars).includes("one-value"), "the value is shown");
    const box = await create({ env: { SHARED_TWO: "own" } });
    assert.equal((await box.exec.command("echo $SHARED_ONE $SHARED_TWO")).stdout, "one-value own\n");
    await Box.deleteEnv("SHARED_ONE");
    assert.ok(!("SHARED_ONE" in (await Box.listEnv())));
    await Box.setAllEnv({ OTHER: "x" });
    assert.deepEqual(Object.keys(await Box.listEnv()), ["OTHER"]);
    await Box.setAllEnv({});
    assert.deepEqual(await Box.listEnv(), {});
  },
  "names that no shell takes are refused": async ({ Box, refused }) => {
    await refused(Box.setEnv("NOT-A-NAME", "x"), 422, /name|NOT-A-NAME/);
  },
};
