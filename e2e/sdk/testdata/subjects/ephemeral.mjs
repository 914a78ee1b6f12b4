import { mkdtemp, readFile, writeFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

export default {
  "an ephemeral box expires": async ({ Box, EphemeralBox, ephemeral, assert }, s) => {
    s.box = await ephemeral({ name: "short-1", runtime: "node", ttl: 300, env: { EPH: "value" } });
    const left = s.box.expiresAt - Date.now() / 1000;
    assert.ok(left > 0 && left <= 301, `expires in ${left} s`);
    assert.equal((await Box.list()).find((b) => b.id === s.box.id).runtime, "node");
    assert.deepEqual(s.box.networkPolicy, { mode: "allow-all" });
    assert.ok((await s.box.getStatus()).status);
    assert.equal((await EphemeralBox.getByName("short-1")).id, s.box.id);
    const forDays = await ephemeral();
    assert.ok(forDays.expiresAt - Date.now() / 1000 > 2 * 24 * 3600);
    await EphemeralBox.delete({ boxIds: forDays.id });
  },
  "commands and code": async ({ assert, collect }, s) => {
    assert.equal((await s.box.exec.command("echo $EPH")).result, "value\n");
    assert.equal((await s.box.exec.code({ lang: "js", code: "console.log(6 * 7)" })).result, "42\n");
    assert.equal((await collect(await s.box.exec.stream("echo one; echo two"))).text, "one\ntwo\n");
    assert.equal((await collect(await s.box.exec.streamCode({ lang: "python", code: "print('three')" }))).text, "three\n");
  },
  "files": async ({ assert }, s) => {
    await s.box.files.write({ path: "a/test.txt", content: "content" });
    assert.equal(await s.box.files.read("a/test.txt"), "content");
    assert.deepEqual((await s.box.files.list("a")).map((f) => f.name), ["test.txt"]);
    const dir = await mkdtemp(join(tmpdir(), "sdk-ephemeral-"));
    const was = process.cwd();
    try {
      await writeFile(join(dir, "local"), "uploaded");
      await s.box.files.upload([{ path: join(dir, "local"), destination: "a/uploaded" }]);
      process.chdir(dir);
      await s.box.files.download({ folder: "a" });
      assert.equal(await readFile(join(dir, "a", "uploaded"), "utf8"), "uploaded");
    } finally {
      process.chdir(was);
      await rm(dir, { recursive: true });
    }
  },
  "the working directory": async ({ assert }, s) => {
    await s.box.cd("a");
    assert.equal(s.box.cwd, "/workspace/home/a");
    await s.box.cd("/workspace/home");
  },
  "it cannot be kept alive": async ({ call, assert }) => {
    const answer = await call("POST", "/v2/box", { ephemeral: true, keep_alive: true });
    assert.equal(answer.status, 422);
  },
  "it is deleted": async ({ EphemeralBox, refused }, s) => {
    await s.box.delete();
    await refused(EphemeralBox.getByName("short-1"), 404, /no box/);
  },
};
