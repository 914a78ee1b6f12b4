const text = new TextEncoder();
const streamOf = (...parts) => new ReadableStream({ start(c) { for (const p of parts) c.enqueue(text.encode(p)); c.close(); } });

// events watches a directory, and returns its events as "type name".
async function events(box, path, options) {
  const seen = [];
  const state = { seen, entries: [] };
  state.handle = await box.files.watchDir(path, (e) => { seen.push(`${e.type} ${e.name}`); state.entries.push(e.entry); }, { timeoutMs: 0, ...options });
  return state;
}

export default {
  "a sandbox is created": async ({ create }, s) => { s.box = await create({ timeoutMs: 300_000 }); },
  "write and read, relative to the home directory": async ({ assert }, s) => {
    const info = await s.box.files.write("notes/one.txt", "contents ü");
    assert.deepEqual([info.name, info.path, info.type], ["one.txt", "/home/user/notes/one.txt", "file"]);
    assert.equal(await s.box.files.read("notes/one.txt"), "contents ü");
    assert.equal((await s.box.commands.run("cat notes/one.txt; stat -c ' %U' notes/one.txt")).stdout, "contents ü user\n");
  },
  "all formats": async ({ assert }, s) => {
    const path = "/tmp/bytes";
    const data = new Uint8Array(256).map((_, n) => n);
    await s.box.files.write(path, data.buffer);
    assert.deepEqual(await s.box.files.read(path, { format: "bytes" }), data);
    assert.equal((await s.box.files.read(path, { format: "blob" })).size, 256);
    const chunks = [];
    for await (const chunk of await s.box.files.read(path, { format: "stream" })) chunks.push(chunk);
    assert.deepEqual(Buffer.concat(chunks), Buffer.from(data));
    await s.box.files.write(path, new Blob(["of a blob"]));
    assert.equal(await s.box.files.read(path), "of a blob");
    await s.box.files.write(path, streamOf("of ", "a stream"));
    assert.equal(await s.box.files.read(path), "of a stream");
  },
  "an empty file": async ({ assert }, s) => {
    await s.box.files.write("empty", "");
    assert.equal(await s.box.files.read("empty"), "");
    assert.equal((await s.box.files.read("empty", { format: "bytes" })).length, 0);
  },
  "compressed both ways": async ({ assert }, s) => {
    const long = "again and ".repeat(10_000);
    await s.box.files.write("long", long, { gzip: true });
    assert.equal(await s.box.files.read("long", { gzip: true }), long);
    assert.equal((await s.box.commands.run("wc -c < long")).stdout.trim(), String(long.length));
  },
  "several files": async ({ assert }, s) => {
    const made = await s.box.files.write([{ path: "many/a", data: "a" }, { path: "many/b", data: "b" }]);
    assert.deepEqual(made.map((f) => f.path).sort(), ["/home/user/many/a", "/home/user/many/b"]);
    const more = await s.box.files.writeFiles([{ path: "/tmp/c", data: "c" }, { path: "many/d", data: "d" }], { useOctetStream: true });
    assert.equal(more.length, 2);
    assert.equal((await s.box.commands.run("cat many/a many/b /tmp/c many/d")).stdout, "abcd");
    assert.deepEqual(await s.box.files.writeFiles([]), []);
  },
  "ten megabytes": async ({ assert, sha256 }, s) => {
    const big = "0123456789abcdef".repeat(655_360);
    await s.box.files.write("big", streamOf(...Array(10).fill(big.slice(0, big.length / 10))));
    assert.equal((await s.box.commands.run("sha256sum < big")).stdout.slice(0, 64), sha256(big.slice(0, big.length / 10).repeat(10)));
    assert.equal((await s.box.files.read("big")).length, Math.floor(big.length / 10) * 10);
  },
  "what a directory has": async ({ assert }, s) => {
    await s.box.commands.run("mkdir -p tree/x/y && echo 12345 > tree/f && chmod 640 tree/f && ln -s f tree/link && touch tree/x/y/deep");
    const found = Object.fromEntries((await s.box.files.list("tree")).map((e) => [e.name, e]));
    assert.deepEqual(Object.keys(found).sort(), ["f", "link", "x"]);
    const f = found.f;
    assert.deepEqual([f.type, f.path, f.size, f.mode, f.permissions, f.owner, f.group], ["file", "/home/user/tree/f", 6, 0o640, "-rw-r-----", "user", "user"]);
    assert.ok(Math.abs(f.modifiedTime - Date.now()) < 300_000, String(f.modifiedTime));
    assert.deepEqual([found.x.type, found.link.symlinkTarget], ["dir", "/home/user/tree/f"]);
    const deep = (await s.box.files.list("tree", { depth: 3 })).map((e) => e.path.replace("/home/user/tree/", "")).sort();
    assert.deepEqual(deep, ["f", "link", "x", "x/y", "x/y/deep"]);
  },
  "information about one": async ({ assert }, s) => {
    const info = await s.box.files.getInfo("tree/f");
    assert.deepEqual([info.name, info.type, info.size], ["f", "file", 6]);
    assert.equal((await s.box.files.getInfo("tree/x")).type, "dir");
    assert.equal((await s.box.files.getInfo("tree/link")).symlinkTarget, "/home/user/tree/f");
  },
  "what exists": async ({ assert }, s) => {
    assert.deepEqual([await s.box.files.exists("tree"), await s.box.files.exists("/etc/passwd"), await s.box.files.exists("nothing")], [true, true, false]);
  },
  "directories, once": async ({ assert }, s) => {
    assert.deepEqual([await s.box.files.makeDir("made/deep"), await s.box.files.makeDir("made/deep")], [true, false]);
  },
  "rename": async ({ assert }, s) => {
    await s.box.files.write("old", "moved");
    const info = await s.box.files.rename("old", "made/new");
    assert.deepEqual([info.name, info.path], ["new", "/home/user/made/new"]);
    assert.equal(await s.box.files.read("made/new"), "moved");
    assert.equal(await s.box.files.exists("old"), false);
  },
  "remove, directories with their contents": async ({ assert }, s) => {
    await s.box.files.remove("made");
    assert.equal(await s.box.files.exists("made"), false);
    await s.box.files.write("single", "");
    await s.box.files.remove("single");
    assert.equal(await s.box.files.exists("single"), false);
  },
  "errors": async ({ assert, fails, sdk }, s) => {
    const gone = sdk.FileNotFoundError;
    await fails(s.box.files.read("nothing"), gone, /nothing/);
    await fails(s.box.files.read("nothing", { format: "stream" }), gone, /nothing/);
    await fails(s.box.files.getInfo("nothing"), gone, /nothing/);
    await fails(s.box.files.list("nothing"), gone, /nothing/);
    await fails(s.box.files.rename("nothing", "other"), gone, /nothing/);
    await fails(s.box.files.list("tree/f"), sdk.InvalidArgumentError, /director/);
    await fails(s.box.files.read("tree"), sdk.InvalidArgumentError, /director/);
    await fails(s.box.files.list("tree", { depth: 0 }), sdk.InvalidArgumentError, /depth/);
    assert.equal(await s.box.files.write("/etc/passwd", "x").then(() => "written", () => "refused"), "refused");
  },
  "metadata of files": async ({ assert }, s) => {
    const info = await s.box.files.write("labelled", "x", { metadata: { Origin: "a test" } });
    assert.deepEqual(info.metadata, { origin: "a test" });
    assert.deepEqual((await s.box.files.getInfo("labelled")).metadata, { origin: "a test" });
    assert.equal((await s.box.files.getInfo("big")).metadata, undefined);
  },
  "another user's files": async ({ assert, fails, sdk }, s) => {
    assert.equal((await s.box.files.write("as-user", "x", { user: "user" })).path, "/home/user/as-user");
    assert.equal(await s.box.files.read("as-user", { user: "user" }), "x");
    await fails(s.box.files.read("as-user", { user: "mallory" }), sdk.AuthenticationError, /mallory/);
  },
  "files as root": async ({ assert, fails, sdk, until }, s) => {
    const root = { user: "root" };
    const denied = (e) => e instanceof sdk.SandboxError || e instanceof Error;
    assert.match(await s.box.files.read("/etc/shadow", root), /^root:/m);
    await assert.rejects(s.box.files.read("/etc/shadow"), denied);
    assert.equal((await s.box.files.write("of-root/f", "12345", root)).path, "/root/of-root/f");
    assert.equal(await s.box.files.read("~/of-root/f", root), "12345");
    await fails(s.box.files.read("of-root/f"), sdk.FileNotFoundError, /of-root/);
    const info = await s.box.files.getInfo("of-root/f", root);
    assert.deepEqual([info.path, info.owner, info.group, info.permissions], ["/root/of-root/f", "root", "root", "-rw-r--r--"]);
    await s.box.files.write([{ path: "/opt/a", data: "a" }, { path: "/opt/b", data: "b" }], root);
    assert.deepEqual((await s.box.files.list("of-root", root)).map((e) => e.name), ["f"]);
    assert.deepEqual([await s.box.files.exists("of-root/f", root), await s.box.files.exists("of-root/g", root)], [true, false]);
    assert.deepEqual([await s.box.files.makeDir("/opt/made", root), await s.box.files.makeDir("/opt/made", root)], [true, false]);
    assert.equal((await s.box.files.rename("/opt/a", "/opt/made/a", root)).owner, "root");
    await s.box.files.remove("/opt/made", root);
    assert.equal(await s.box.files.exists("/opt/made"), false);
    await s.box.files.write("/home/user/mine", "user's");
    await s.box.files.write("/home/user/mine", "root's", root);
    assert.equal((await s.box.commands.run("stat -c '%U %a' mine && cat mine")).stdout, "root 644\nroot's");
    const w = await events(s.box, "of-root", root);
    await s.box.files.write("/root/of-root/new", "x", root);
    await until("an event of root's directory", () => w.seen.some((e) => e.endsWith(" new")));
    await w.handle.stop();
  },
  "signed addresses as root": async ({ assert }, s) => {
    const up = await fetch(await s.box.uploadUrl("signed-root", { user: "root", useSignatureExpiration: 60 }), { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: "by root" });
    assert.equal(up.status, 200, await up.text());
    assert.equal((await s.box.commands.run("stat -c '%U' /root/signed-root && cat /root/signed-root", { user: "root" })).stdout, "root\nby root");
    const url = new URL(await s.box.downloadUrl("signed-root", { user: "root", useSignatureExpiration: 60 }));
    const down = await fetch(url);
    assert.deepEqual([down.status, await down.text()], [200, "by root"]);
    const user = new URL(await s.box.downloadUrl("/etc/shadow", { useSignatureExpiration: 60 }));
    assert.ok((await fetch(user)).status >= 400);
    user.searchParams.set("username", "root");
    assert.equal((await fetch(user)).status, 401);
  },
  "a directory is watched": async ({ assert, until, FilesystemEventType }, s) => {
    await s.box.files.makeDir("watched");
    const w = await events(s.box, "watched");
    await s.box.commands.run("cd watched && echo x > a && chmod 600 a && mv a b && rm b");
    for (const want of ["create a", "write a", "chmod a", "rename a", "create b", "remove b"]) await until(want, () => w.seen.includes(want) || w.seen.join() === "");
    await until("all events", () => w.seen.includes("remove b"));
    assert.ok(w.seen.indexOf("create a") < w.seen.indexOf("remove b"), w.seen.join());
    await w.handle.stop();
    const were = w.seen.length;
    await s.box.files.write("watched/after", "x");
    await s.box.commands.run("true");
    assert.equal(w.seen.length, were);
    assert.equal(FilesystemEventType.CREATE, "create");
  },
  "with its subdirectories, also new ones": async ({ until, assert }, s) => {
    await s.box.files.makeDir("deep/er");
    const w = await events(s.box, "deep", { recursive: true });
    await s.box.commands.run("cd deep && touch er/old && mkdir -p new/est && touch new/est/file");
    await until("the file of a new directory", () => w.seen.includes("create new/est/file"));
    assert.ok(w.seen.includes("create er/old"), w.seen.join());
    await w.handle.stop();
  },
  "with the entry of each event": async ({ until, assert }, s) => {
    await s.box.files.makeDir("entries");
    const w = await events(s.box, "entries", { includeEntry: true });
    await s.box.files.write("entries/f", "12345");
    await until("an event with its entry", () => w.entries.some((e) => e?.name === "f" && e.size === 5 && e.type === "file"));
    await w.handle.stop();
  },
  "a watch ends": async ({ until, assert, fails, sdk }, s) => {
    let ended;
    await s.box.files.watchDir("watched", () => {}, { timeoutMs: 500, onExit: (e) => { ended = e ?? "without an error"; } });
    await until("its end", () => ended);
    assert.ok(ended instanceof sdk.TimeoutError, String(ended));
    await fails(s.box.files.watchDir("nothing", () => {}), sdk.FileNotFoundError, /nothing/);
    await fails(s.box.files.watchDir("tree/f", () => {}), sdk.InvalidArgumentError, /director/);
  },
  "signed addresses": async ({ assert }, s) => {
    const form = new FormData();
    form.append("file", new Blob(["uploaded"]), "signed.txt");
    const up = await fetch(await s.box.uploadUrl("signed.txt"), { method: "POST", body: form });
    assert.equal(up.status, 200, await up.text());
    const down = await fetch(await s.box.downloadUrl("signed.txt", { useSignatureExpiration: 60 }));
    assert.deepEqual([down.status, await down.text()], [200, "uploaded"]);
    const raw = await fetch(await s.box.uploadUrl("/tmp/raw", { user: "user", useSignatureExpiration: 60 }), { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: "raw" });
    assert.equal(raw.status, 200, await raw.text());
    assert.equal(await s.box.files.read("/tmp/raw"), "raw");
  },
  "an upload to a directory": async ({ assert }, s) => {
    const form = new FormData();
    form.append("file", new Blob(["1"]), "dir/one");
    form.append("file", new Blob(["2"]), "dir/two");
    const up = await fetch(await s.box.uploadUrl(), { method: "POST", body: form });
    assert.equal(up.status, 200, await up.text());
    assert.equal((await s.box.commands.run("cat dir/one dir/two")).stdout, "12");
  },
};
