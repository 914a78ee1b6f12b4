// Requests of newer versions of the SDK than the registry's, up to 0.7.3.
import WebSocket from "ws";

const base64 = (text) => Buffer.from(text).toString("base64");

// session opens a WebSocket to a command, like exec.session, and collects the output.
async function session({ base, key, assert }, box, start) {
  const ws = new WebSocket(`${base.replace(/^http/, "ws")}/v2/box/${box.id}/exec-session`, { headers: { "X-Box-Api-Key": key } });
  const s = { stdout: "", stderr: "", send: (frame) => ws.send(JSON.stringify(frame)), close: () => ws.close() };
  s.started = new Promise((resolve, reject) => {
    s.ended = new Promise((end) => {
      ws.on("message", (raw) => {
        const frame = JSON.parse(raw.toString());
        if (frame.type === "started") resolve(frame);
        if (frame.type === "stdout" || frame.type === "stderr") s[frame.type] += Buffer.from(frame.data, "base64").toString();
        if (frame.type === "exit") end(frame.code);
        if (frame.type === "error") reject(new Error(frame.message));
      });
      ws.on("close", () => end(-1));
    });
    ws.on("error", reject);
  });
  s.started.catch(() => {});
  await new Promise((resolve, reject) => ws.on("open", resolve).on("error", reject));
  s.send({ type: "start", ...start });
  const { pid, execId } = await s.started;
  assert.ok(pid > 0 && execId, JSON.stringify({ pid, execId }));
  return Object.assign(s, { pid, execId });
}

export default {
  "a file is described": async ({ create, call, assert }, s) => {
    s.box = await create();
    s.at = `/v2/box/${s.box.id}`;
    await s.box.files.write({ path: "a.txt", content: "0123456789" });
    const stat = await call("GET", `${s.at}/files/stat?path=${encodeURIComponent("/workspace/home/a.txt")}`);
    assert.equal(stat.status, 200, stat.text);
    assert.equal(stat.json.type, "file");
    assert.equal(stat.json.size, 10);
    assert.equal((await call("GET", `${s.at}/files/stat?path=nowhere`)).status, 404);
  },
  "a part of a file is read": async ({ call, assert }, s) => {
    const part = await call("GET", `${s.at}/files/read?path=a.txt&offset=2&length=3`);
    assert.equal(part.json.content, "234", part.text);
  },
  "directories and renames and removals": async ({ call, assert }, s) => {
    for (const [path, body] of [
      ["mkdir", { path: "d/e", parents: true }], ["rename", { from: "a.txt", to: "d/e/b.txt" }], ["remove", { path: "d", recursive: true }],
    ]) {
      const answer = await call("POST", `${s.at}/files/${path}`, body);
      assert.equal(answer.status, 200, answer.text);
    }
    assert.equal((await call("GET", `${s.at}/files/stat?path=d`)).status, 404);
    assert.equal((await call("POST", `${s.at}/files/mkdir`, { path: "x/y" })).status, 404);
  },
  "a session keeps the streams apart and says the exit code": async (tools, s) => {
    const { assert } = tools;
    const run = await session(tools, s.box, { argv: ["sh", "-c", "echo out; echo err >&2; exit 42"] });
    assert.equal(await run.ended, 42);
    assert.equal(run.stdout, "out\n");
    assert.equal(run.stderr, "err\n");
  },
  "argv has no shell, cmd has one": async (tools, s) => {
    const { assert } = tools;
    const plain = await session(tools, s.box, { argv: ["echo", "$HOME; true"] });
    await plain.ended;
    assert.equal(plain.stdout, "$HOME; true\n");
    const shell = await session(tools, s.box, { cmd: "echo shell-$((1+1))" });
    await shell.ended;
    assert.equal(shell.stdout, "shell-2\n");
  },
  "a session has input, and its end": async (tools, s) => {
    const run = await session(tools, s.box, { argv: ["sort"] });
    run.send({ type: "stdin", data: base64("banana\napple\n") });
    run.send({ type: "stdin_close" });
    tools.assert.equal(await run.ended, 0);
    tools.assert.equal(run.stdout, "apple\nbanana\n");
  },
  "a session has a directory and variables": async (tools, s) => {
    await s.box.exec.command("mkdir -p proj");
    const run = await session(tools, s.box, { argv: ["sh", "-c", "pwd; echo $MINE [$LD_PRELOAD]"], cwd: "/workspace/home/proj", env: ["MINE=yes", "LD_PRELOAD=/tmp/x.so"] });
    await run.ended;
    tools.assert.equal(run.stdout, "/workspace/home/proj\nyes []\n");
  },
  "a session has a terminal": async (tools, s) => {
    const run = await session(tools, s.box, { tty: true, rows: 24, cols: 80, cmd: "tty; stty size; read line; stty size; echo GOT=$line" });
    await tools.until("the size", () => run.stdout.includes("24 80"));
    run.send({ type: "resize", rows: 30, cols: 100 });
    run.send({ type: "stdin", data: base64("hello\n") });
    tools.assert.equal(await run.ended, 0);
    tools.assert.match(run.stdout, /\/dev\/pts\//);
    tools.assert.match(run.stdout, /30 100/);
    tools.assert.match(run.stdout, /GOT=hello/);
  },
  "a signal ends the whole tree": async (tools, s) => {
    const { assert, until } = tools;
    const running = async () => (await s.box.exec.command("pgrep -fc '^sleep 471[12]' || true")).stdout.trim();
    const run = await session(tools, s.box, { cmd: "sleep 4711 & sleep 4712 & wait" });
    await until("both", async () => (await running()) === "2");
    run.send({ type: "signal", signal: "TERM" });
    assert.notEqual(await run.ended, 0);
    await until("their end", async () => (await running()) === "0");
    const other = await session(tools, s.box, { argv: ["sleep", "4711"] });
    other.send({ type: "terminate", graceMs: 1000 });
    assert.notEqual(await other.ended, 0);
  },
  "closing a session ends its command": async (tools, s) => {
    const run = await session(tools, s.box, { argv: ["sleep", "4713"] });
    run.close();
    await run.ended;
    await tools.until("its end", async () => (await s.box.exec.command("pgrep -f 'sleep 471[3]' || echo none")).stdout === "none\n");
  },
  "a session goes on from one exchange to the next": async (tools, s) => {
    const run = await session(tools, s.box, { argv: ["cat"] });
    for (const line of ["one\n", "two\n", "three\n"]) {
      run.send({ type: "stdin", data: base64(line) });
      await tools.until(`the echo of ${line}`, () => run.stdout.endsWith(line));
    }
    run.send({ type: "signal", signal: "KILL" });
    tools.assert.equal(await run.ended, 137);
    tools.assert.equal(run.stdout, "one\ntwo\nthree\n");
  },
  "sessions at once do not mix": async (tools, s) => {
    const runs = await Promise.all([1, 2, 3, 4].map((n) => session(tools, s.box, { argv: ["sh", "-c", `sleep 0.${n}; echo worker ${n}; exit ${n}`] })));
    for (const [i, run] of runs.entries()) {
      tools.assert.equal(await run.ended, i + 1);
      tools.assert.equal(run.stdout, `worker ${i + 1}\n`);
      tools.assert.equal(run.stderr, "");
    }
  },
  "a session leaves no variables to the next": async (tools, s) => {
    const first = await session(tools, s.box, { argv: ["sh", "-c", "export LEFT=yes"], env: ["GIVEN=yes"] });
    tools.assert.equal(await first.ended, 0);
    const next = await session(tools, s.box, { argv: ["sh", "-c", "echo [$LEFT$GIVEN]"] });
    tools.assert.equal(await next.ended, 0);
    tools.assert.equal(next.stdout, "[]\n");
  },
  "what a session writes is a file for the files API": async (tools, s) => {
    const { assert, call } = tools;
    const run = await session(tools, s.box, { argv: ["sh", "-c", "echo by a session > session.txt"] });
    assert.equal(await run.ended, 0);
    assert.equal(await s.box.files.read("session.txt"), "by a session\n");
    assert.equal((await call("GET", `${s.at}/files/stat?path=session.txt`)).json.type, "file");
    assert.equal((await call("POST", `${s.at}/files/remove`, { path: "session.txt" })).status, 200);
  },
  "a session without a command is refused": async (tools, s) => {
    await tools.assert.rejects(session(tools, s.box, {}), /cmd|argv|command/);
  },
  "the browser API is refused in a sentence": async ({ call, assert }, s) => {
    const tabs = await call("GET", `${s.at}/browser/tabs`);
    assert.equal(tabs.status, 501);
    assert.match(tabs.json.error, /no browser API.*public URL/);
    const box = await call("POST", "/v2/box", { browser: true });
    assert.equal(box.status, 422);
    assert.equal(box.json.pointer, "/browser");
  },
  "what belongs to an account is refused in a sentence": async ({ call, assert }) => {
    const credentials = await call("GET", "/v2/box/agent-credentials");
    assert.equal(credentials.status, 501);
    assert.match(credentials.json.error, /no built-in agents.*header rule/);
    const github = await call("GET", "/v2/box/github/status");
    assert.equal(github.status, 501);
    assert.match(github.json.error, /github_token/);
  },
  "a repository is cloned into a folder, as deep as asked": async ({ create, call, assert }) => {
    const box = await create({ git: { token: "ghp_the_token_of_the_test" } });
    const at = `/v2/box/${box.id}/git`;
    const clone = (body) => call("POST", `${at}/clone`, { repo: "https://github.com/acme/app", ...body });
    for (const [folder, body, commits] of [["my-app", { folder: "my-app", depth: 1 }, "1\n"], ["app", {}, "2\n"]]) {
      const cloned = await clone(body);
      assert.equal(cloned.status, 200, cloned.text);
      const counted = await call("POST", `${at}/exec`, { args: ["rev-list", "--count", "HEAD"], folder });
      assert.equal(counted.json.exit_code, 0, counted.text);
      assert.equal(counted.json.output, commits);
    }
    const again = await clone({ folder: "my-app" });
    assert.equal(again.status, 422, again.text);
    assert.match(again.json.error, /already exists/);
    const nowhere = await call("POST", `${at}/exec`, { args: ["log"] });
    assert.equal(nowhere.json.exit_code, 128, nowhere.text);
  },
  "who commits is changed by either path": async ({ create, call, assert }) => {
    const box = await create();
    for (const path of ["config/git", "git-config"]) {
      const name = `By ${path}`;
      const changed = await call("PUT", `/v2/box/${box.id}/${path}`, { git_user_name: name });
      assert.deepEqual(changed.json, { git_user_name: name, git_user_email: "box@upstash.com" }, changed.text);
      assert.equal((await box.git.exec({ args: ["config", "user.name"] })).output, `${name}\n`);
    }
  },
  "a schedule is changed": async ({ assert, call }, s) => {
    const made = await s.box.schedule.exec({ cron: "0 0 * * *", command: ["true"] });
    const changed = await call("PATCH", `${s.at}/schedules/${made.id}`, { cron: "0 9 * * *" });
    assert.equal(changed.status, 200, changed.text);
    assert.equal(changed.json.cron, "0 9 * * *");
    assert.deepEqual(changed.json.command, ["true"]);
  },
};
