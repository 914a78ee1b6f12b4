import { mkdtemp, readFile, writeFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const all256 = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

export default {
  "text is written and read": async ({ create, assert }, s) => {
    s.box = await create();
    await s.box.files.write({ path: "notes/a.txt", content: "content, ünïcode\n" });
    assert.equal(await s.box.files.read("notes/a.txt"), "content, ünïcode\n");
    assert.equal(await s.box.files.read("/workspace/home/notes/a.txt"), "content, ünïcode\n");
    assert.equal((await s.box.exec.command("cat notes/a.txt")).stdout, "content, ünïcode\n");
    assert.equal((await s.box.exec.command("stat -c %U notes/a.txt notes")).stdout, "boxuser\nboxuser\n");
  },
  "bytes are written and read as base64": async ({ assert }, s) => {
    await s.box.files.write({ path: "bytes", content: all256.toString("base64"), encoding: "base64" });
    assert.equal(await s.box.files.read("bytes", { encoding: "base64" }), all256.toString("base64"));
    assert.equal((await s.box.exec.command("wc -c <bytes")).stdout.trim(), "256");
  },
  "a directory is listed": async ({ assert }, s) => {
    const names = (await s.box.files.list()).map((f) => f.name);
    assert.ok(names.includes("notes") && names.includes("bytes"), String(names));
    const [file] = await s.box.files.list("notes");
    assert.equal(file.name, "a.txt");
    assert.equal(file.path, "/workspace/home/notes/a.txt");
    assert.equal(file.is_dir, false);
    assert.equal(file.size, Buffer.byteLength("content, ünïcode\n"));
    await s.box.cd("notes");
    assert.deepEqual((await s.box.files.list()).map((f) => f.name), ["a.txt"]);
    assert.equal(await s.box.files.read("a.txt"), "content, ünïcode\n");
    await s.box.cd("/workspace/home");
  },
  "local files are uploaded and downloaded": async ({ assert }, s) => {
    const dir = await mkdtemp(join(tmpdir(), "sdk-files-"));
    const was = process.cwd();
    try {
      await writeFile(join(dir, "one"), all256);
      await writeFile(join(dir, "two"), "two");
      await s.box.files.upload([
        { path: join(dir, "one"), destination: "up/one.bin" },
        { path: join(dir, "two"), destination: "/workspace/home/up/two.txt" },
      ]);
      assert.equal(await s.box.files.read("up/two.txt"), "two");
      assert.equal(await s.box.files.read("up/one.bin", { encoding: "base64" }), all256.toString("base64"));
      process.chdir(dir);
      await s.box.files.download({ folder: "up" });
      assert.deepEqual(await readFile(join(dir, "up", "one.bin")), all256);
      assert.equal(await readFile(join(dir, "up", "two.txt"), "utf8"), "two");
    } finally {
      process.chdir(was);
      await rm(dir, { recursive: true });
    }
  },
  "what is not there is said": async ({ assert, refused }, s) => {
    await refused(s.box.files.read("nowhere"), 404, /nowhere/);
    await refused(s.box.files.list("nowhere"), 404, /nowhere/);
  },
  "a link leads nowhere outside of the box": async ({ assert, BoxError }, s) => {
    await s.box.exec.command("ln -s /proc/1/root/etc/shadow out; ln -s ../../../../../../etc/hostname up-link");
    await assert.rejects(s.box.files.read("out"), BoxError);
    const inside = (await s.box.exec.command("cat /etc/hostname")).stdout;
    assert.equal(await s.box.files.read("up-link").catch(() => inside), inside);
  },
  "a paused box is woken": async ({ assert }, s) => {
    await s.box.pause();
    assert.equal(await s.box.files.read("up/two.txt"), "two");
    assert.equal((await s.box.getStatus()).status, "idle");
  },
};
