// What the SDK throws, and what reaches a box whole: odd names, large and empty files, bytes, and calls at once.
import { createHash, randomBytes } from "node:crypto";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

const sum = (bytes) => createHash("sha256").update(bytes).digest("hex");
const odd = ["ünï 日本 🦀.txt", " space ", "a'b\"c`d$(e)", "#?%41&+=;", "-rf", "a\\b", "line\nbreak", "...", "tab\there", "x".repeat(255), "e\u0301"];

// inFolder runs body with a local folder as working directory.
async function inFolder(body) {
  const dir = await mkdtemp(join(tmpdir(), "sdk-faults-")), was = process.cwd();
  try {
    process.chdir(dir);
    await body(dir);
  } finally {
    process.chdir(was);
    await rm(dir, { recursive: true });
  }
}

// key makes an API key and returns its secret.
async function keyOf({ call, assert }, body) {
  const made = await call("POST", "/v2/api-keys", body);
  assert.equal(made.status, 201, made.text);
  return made.json.key ?? made.json.secret ?? assert.fail(made.text);
}

export default {
  "401, 403, 404, 409, 413, 422, 429 and 501 are errors with their status and a sentence": async (tools, s) => {
    const { Box, create, refused, call } = tools;
    s.box = await create({ name: "faulty", labels: ["taken"] });
    await refused(Box.list({ apiKey: "wrong" }), 401, /API key/i);
    await refused(Box.create({ apiKey: await keyOf(tools, { name: "reads", role: "read-only" }) }), 403, /role|read-only/);
    await refused(Box.get("not-there"), 404, /no box/);
    await refused(Box.create({ name: "faulty" }), 409, /exists already/);
    await refused(s.box.labels.add("taken"), 409, /label/);
    await refused(s.box.files.write({ path: "large", content: "x".repeat(9 << 20) }), 413, /larger than \d+ bytes/);
    await refused(s.box.getPublicURL(70000), 422, /\/port/);
    const few = await keyOf(tools, { name: "few", role: "box-creator", quotas: { boxes: 1 } });
    tools.keep(await Box.create({ apiKey: few }));
    await refused(Box.create({ apiKey: few }), 429, /boxes/);
    await refused(s.box.schedule.agent({ cron: "0 0 * * *", prompt: "x" }), 501, /no agent/);
    for (const name of ["reads", "few"]) await call("DELETE", `/v2/api-keys/${name}`);
  },
  "503, other answers than JSON and none are errors as well, and no call is repeated": async ({ Box, BoxError, assert, stopped }) => {
    let calls = 0;
    const server = http.createServer((_, answer) => {
      calls++;
      if (calls === 1) answer.writeHead(503, { "Content-Type": "application/json" }).end('{"error":"the host is full"}');
      else if (calls === 2) answer.writeHead(502).end("<html>");
      else answer.destroy();
    });
    await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
    const create = () => Box.create({ baseUrl: `http://127.0.0.1:${server.address().port}` }).then(() => assert.fail("was made"), (e) => e);
    try {
      assert.deepEqual([await create(), await create()].map((e) => [e instanceof BoxError, e.statusCode, e.message]), [[true, 503, "the host is full"], [true, 502, "Request failed with status 502"]]);
      assert.match(String(await create()), /fetch failed/);
      assert.equal(calls, 3);
    } finally { server.close(); }
  },
  "a call that the client gives up goes on in the box": async ({ Box, assert, stopped, until, call }, s) => {
    const brief = await Box.get(s.box.id, { timeout: 400 });
    await stopped(brief.exec.command("until [ -e go-on ]; do sleep 0.05; done; echo done >gone-on"), /Request timeout/);
    await s.box.exec.command("touch go-on");
    await until("the end of the command", async () => (await s.box.exec.command("cat gone-on 2>/dev/null")).stdout === "done\n");
  },
  "a stream that is left early is detached": async ({ assert, until, call }, s) => {
    const run = await s.box.exec.stream("i=0; while [ ! -e end-of-stream ]; do i=$((i+1)); echo $i; sleep 0.02; done; echo ended >ended");
    for await (const chunk of run) if (chunk.type === "output") break;
    assert.equal(run.status, "detached");
    await s.box.exec.command("touch end-of-stream");
    await until("the end of the command", async () => (await s.box.exec.command("cat ended 2>/dev/null")).stdout === "ended\n");
  },
  "files of any name": async ({ assert }, s) => {
    await s.box.exec.command("mkdir names");
    for (const name of odd) {
      await s.box.files.write({ path: `names/${name}`, content: `of ${name}` });
      assert.equal(await s.box.files.read(`names/${name}`), `of ${name}`);
    }
    const list = await s.box.files.list("names");
    assert.deepEqual(list.map((f) => f.name).sort(), [...odd].sort());
    for (const f of list) {
      assert.deepEqual([f.path, f.is_dir, f.size], [`/workspace/home/names/${f.name}`, false, Buffer.byteLength(`of ${f.name}`)]);
      assert.ok(Math.abs(Date.parse(f.mod_time) - Date.now()) < 86400e3, f.mod_time);
    }
    assert.equal((await s.box.exec.command("cd names && for f in ./* ./...; do [ \"$(cat \"$f\")\" = \"of ${f#./}\" ] && echo same; done")).stdout, "same\n".repeat(odd.length));
    await inFolder(async (dir) => {
      await s.box.files.download({ folder: "names" });
      for (const name of odd) assert.equal(await readFile(join(dir, "names", name), "utf8"), `of ${name}`);
      const names = odd.filter((name) => !name.includes("\n")); // forms turn it into CRLF
      await s.box.files.upload(names.map((name) => ({ path: join("names", name), destination: `again/ünï 日本/${name}` })));
      const all = await s.box.files.list("again/ünï 日本");
      assert.deepEqual(all.map((f) => [f.name, f.size]).sort(), names.map((name) => [name, Buffer.byteLength(`of ${name}`)]).sort());
    });
  },
  "folders of any name": async ({ assert, collect }, s) => {
    await s.box.cd("again/ünï 日本");
    assert.equal((await s.box.exec.command("pwd")).stdout, "/workspace/home/again/ünï 日本\n");
    assert.equal((await s.box.exec.code({ lang: "python", code: "import os; print(os.getcwd())" })).stdout, "/workspace/home/again/ünï 日本\n");
    assert.equal((await collect(await s.box.exec.stream("pwd"))).text, "/workspace/home/again/ünï 日本\n");
    await s.box.git.exec({ args: ["init", "-q", "."] });
    assert.match(await s.box.git.status(), /No commits yet|\?\?/);
    assert.equal((await s.box.files.list()).length, odd.length); // one less, and .git
    await inFolder(async (dir) => {
      await s.box.files.download();
      assert.equal(await readFile(join(dir, "ünï 日本", "-rf"), "utf8"), "of -rf");
    });
    await s.box.cd("/workspace/home");
  },
  "empty files, text with every control character, and bytes": async ({ assert }, s) => {
    const text = Array.from({ length: 0xd7ff }, (_, i) => String.fromCharCode(i)).join("") + "🦀", bytes = randomBytes(3 << 20);
    await s.box.files.write({ path: "empty", content: "" });
    assert.deepEqual([await s.box.files.read("empty"), await s.box.files.read("empty", { encoding: "base64" })], ["", ""]);
    await s.box.files.write({ path: "text", content: text });
    assert.ok((await s.box.files.read("text")) === text, "the text has changed");
    await s.box.files.write({ path: "bytes", content: bytes.toString("base64"), encoding: "base64" });
    assert.equal(await s.box.files.read("bytes", { encoding: "base64" }), bytes.toString("base64"));
    assert.equal((await s.box.exec.command("sha256sum <bytes; wc -c <empty")).stdout, `${sum(bytes)}  -\n0\n`);
    await s.box.files.write({ path: "invalid", content: Buffer.from([97, 255, 98]).toString("base64"), encoding: "base64" });
    assert.equal(await s.box.files.read("invalid"), "a\uFFFDb");
  },
  "large and empty files are uploaded and downloaded": async ({ assert }, s) => {
    await inFolder(async (dir) => {
      const large = randomBytes(20 << 20);
      await writeFile("large", large);
      await writeFile("none", "");
      await s.box.files.upload([{ path: "large", destination: "up/large" }, { path: "none", destination: "up/none" }]);
      await s.box.files.download({ folder: "up" });
      assert.deepEqual([sum(await readFile(join(dir, "up/large"))), (await readFile(join(dir, "up/none"))).length], [sum(large), 0]);
    });
  },
  "output of any kind": async ({ assert, collect }, s) => {
    const words = "日本🦀é\u001b[31mred\u001b[0m\ttab\r\n";
    const run = await s.box.exec.command(`printf '%s' '${words}'; printf '%s' '${words}' >&2`);
    assert.deepEqual([run.stdout, run.stderr], [words, words]);
    assert.equal((await s.box.exec.command("printf 'a\\377b\\000c'")).stdout, "a\uFFFDb\u0000c");
    assert.equal((await s.box.exec.command("")).exitCode, 0);
    const { text } = await collect(await s.box.exec.stream("for i in $(seq 20000); do printf '日本🦀é'; done"));
    assert.ok(text === "日本🦀é".repeat(20000), `${text.length} characters`);
  },
  "a slow reader gets all of a stream": async ({ assert }, s) => {
    const run = await s.box.exec.stream("head -c 8000000 /dev/zero | tr '\\0' x; exit 7");
    let length = 0, pauses = 0;
    for await (const chunk of run) {
      if (chunk.type === "output") length += chunk.data.length;
      if (pauses++ < 5) await new Promise((done) => setTimeout(done, 20));
    }
    assert.deepEqual([length, run.exitCode, run.status], [8000000, 7, "failed"]);
  },
  "calls at once do not mix": async ({ assert }, s) => {
    const numbers = Array.from({ length: 24 }, (_, i) => i);
    await Promise.all(numbers.map((n) => s.box.files.write({ path: `at-once/${n}`, content: `number ${n}` })));
    assert.deepEqual(await Promise.all(numbers.map((n) => s.box.files.read(`at-once/${n}`))), numbers.map((n) => `number ${n}`));
    const runs = await Promise.all(numbers.map((n) => s.box.exec.command(`cat at-once/${n}; exit ${n}`)));
    assert.deepEqual(runs.map((r) => [r.stdout, r.exitCode]), numbers.map((n) => [`number ${n}`, n]));
  },
  "one of several creates with a name succeeds": async ({ Box, keep, assert }) => {
    const all = await Promise.allSettled(Array.from({ length: 4 }, () => Box.create({ name: "only-once" })));
    const made = all.filter((r) => r.status === "fulfilled").map((r) => keep(r.value));
    assert.equal(made.length, 1);
    for (const r of all) if (r.status === "rejected") assert.equal(r.reason.statusCode, 409, r.reason.message);
    assert.equal((await Box.getByName("only-once")).id, made[0].id);
  },
  "variables of any value": async ({ create, assert }) => {
    const env = { QUOTES: `a'b"c`, LINES: "one\ntwo\n", UNICODE: "日本🦀", EMPTY: "", SPACES: "  x  " };
    const box = await create({ env });
    const { stdout } = await box.exec.code({ lang: "python", code: `import os, json; print(json.dumps({k: os.environ.get(k) for k in ${JSON.stringify(Object.keys(env))}}))` });
    assert.deepEqual(JSON.parse(stdout), env);
  },
};
