const text = new TextEncoder(), decoded = new TextDecoder();

export default {
  "a sandbox is created": async ({ create }, s) => { s.box = await create({ timeoutMs: 300_000 }); },
  "a command with its output": async ({ assert }, s) => {
    const heard = [], warned = [];
    const done = await s.box.commands.run("echo out; echo err >&2; printf ü", { onStdout: (d) => heard.push(d), onStderr: (d) => warned.push(d) });
    assert.deepEqual([done.exitCode, done.stdout, done.stderr], [0, "out\nü", "err\n"]);
    assert.deepEqual([heard.join(""), warned.join("")], ["out\nü", "err\n"]);
  },
  "another exit code is an error with the output": async ({ assert, fails, observe, CommandExitError }, s) => {
    const error = await fails(s.box.commands.run("echo partial; echo why >&2; exit 42"), CommandExitError, /42/);
    observe(error);
    assert.deepEqual([error.exitCode, error.stdout, error.stderr], [42, "partial\n", "why\n"]);
    assert.match(error.error, /exit status 42/);
  },
  "directory and variables of a command": async ({ assert }, s) => {
    const done = await s.box.commands.run("pwd; echo $A", { cwd: "/tmp", envs: { A: "a 'quoted' value" } });
    assert.equal(done.stdout, "/tmp\na 'quoted' value\n");
  },
  "a directory that does not exist": async ({ fails, sdk }, s) => {
    await fails(s.box.commands.run("true", { cwd: "/nowhere" }), sdk.InvalidArgumentError, /nowhere/);
  },
  "in the background": async ({ assert }, s) => {
    const handle = await s.box.commands.run("sleep 0.3; echo later", { background: true });
    assert.ok(handle.pid > 0);
    assert.equal(handle.exitCode, undefined);
    const done = await handle.wait();
    assert.deepEqual([done.exitCode, handle.exitCode, handle.stdout, handle.stderr, handle.error], [0, 0, "later\n", "", done.error]);
  },
  "its PID is that in the sandbox": async ({ assert }, s) => {
    const handle = await s.box.commands.run("echo $$; exec sleep 1000", { background: true, timeoutMs: 0 });
    assert.equal((await s.box.commands.run(`cat /proc/${handle.pid}/comm`)).stdout, "sleep\n");
    assert.equal(handle.stdout, `${handle.pid}\n`);
    assert.equal(await handle.kill(), true);
  },
  "commands are listed": async ({ assert, until }, s) => {
    s.sleeper = await s.box.commands.run("sleep 1000", { background: true, timeoutMs: 0, cwd: "/tmp", envs: { B: "b" } });
    const found = (await s.box.commands.list()).find((p) => p.pid === s.sleeper.pid);
    assert.deepEqual([found?.cmd, found?.args, found?.cwd, found?.envs.B], ["/bin/bash", ["-l", "-c", "sleep 1000"], "/tmp", "b"]);
  },
  "a killed command": async ({ assert, fails, CommandExitError }, s) => {
    assert.equal(await s.box.commands.kill(s.sleeper.pid), true);
    const error = await fails(s.sleeper.wait(), CommandExitError, /killed/);
    assert.match(s.sleeper.error, /killed/);
    assert.equal(await s.box.commands.kill(s.sleeper.pid), false);
    assert.ok(!(await s.box.commands.list()).some((p) => p.pid === s.sleeper.pid));
    assert.notEqual(error.exitCode, 0);
  },
  "input, and its end": async ({ assert, until }, s) => {
    const handle = await s.box.commands.run("cat; echo over", { background: true, stdin: true });
    await s.box.commands.sendStdin(handle.pid, "one\n");
    await handle.sendStdin(text.encode("two\n"));
    await until("the echo", () => handle.stdout === "one\ntwo\n");
    await handle.closeStdin();
    assert.equal((await handle.wait()).stdout, "one\ntwo\nover\n");
  },
  "without stdin a command reads an end": async ({ assert }, s) => {
    assert.equal((await s.box.commands.run("cat; echo over")).stdout, "over\n");
  },
  "closeStdin by PID": async ({ assert }, s) => {
    const handle = await s.box.commands.run("wc -c", { background: true, stdin: true });
    await s.box.commands.sendStdin(handle.pid, "x".repeat(100_000));
    await s.box.commands.closeStdin(handle.pid);
    assert.equal((await handle.wait()).stdout.trim(), "100000");
  },
  "a command outlives its connection": async ({ assert, Sandbox }, s) => {
    const handle = await s.box.commands.run("read line; echo got $line", { background: true, stdin: true, timeoutMs: 0 });
    await handle.disconnect();
    const other = await Sandbox.connect(s.box.sandboxId);
    const again = await other.commands.connect(handle.pid, { timeoutMs: 60_000 });
    assert.equal(again.pid, handle.pid);
    await again.sendStdin("it\n");
    assert.equal((await again.wait()).stdout, "got it\n");
  },
  "two clients follow one command": async ({ assert }, s) => {
    const first = await s.box.commands.run("read line; seq 5", { background: true, stdin: true });
    const second = await s.box.commands.connect(first.pid);
    await first.sendStdin("\n");
    const [one, two] = await Promise.all([first.wait(), second.wait()]);
    assert.deepEqual([one.stdout, two.stdout], ["1\n2\n3\n4\n5\n", "1\n2\n3\n4\n5\n"]);
  },
  "a timeout ends a command": async ({ assert, fails, until, TimeoutError }, s) => {
    await fails(s.box.commands.run("exec sleep 1234", { timeoutMs: 500 }), TimeoutError, /timeoutMs|deadline/);
    await until("its end", async () => !(await s.box.commands.run("pgrep -f '[s]leep 1234' || true")).stdout);
  },
  "an aborted call": async ({ assert }, s) => {
    const stop = new AbortController();
    const running = s.box.commands.run("sleep 1000", { signal: stop.signal });
    setTimeout(() => stop.abort(), 200);
    await assert.rejects(running);
  },
  "a PID that does not exist": async ({ fails, assert, sdk }, s) => {
    assert.equal(await s.box.commands.kill(3_999_999), false);
    await fails(s.box.commands.connect(3_999_999), sdk.NotFoundError, /3999999|not found/);
    await fails(s.box.commands.sendStdin(3_999_999, "x"), sdk.NotFoundError, /3999999|not found/);
  },
  "megabytes of output arrive whole": async ({ assert, sha256 }, s) => {
    const done = await s.box.commands.run("head -c 3000000 /dev/zero | tr '\\0' 'x'");
    assert.equal(done.stdout.length, 3_000_000);
  },
  "a login shell": async ({ assert }, s) => {
    assert.match((await s.box.commands.run("shopt login_shell")).stdout, /on/);
  },
  "a terminal": async ({ assert, until }, s) => {
    let seen = "";
    s.pty = await s.box.pty.create({ cols: 90, rows: 30, onData: (d) => { seen += decoded.decode(d); }, timeoutMs: 0, cwd: "/tmp", envs: { C: "c" } });
    await s.box.pty.sendInput(s.pty.pid, text.encode("echo $((6*7))-$C-$TERM $(pwd); stty size\n"));
    await until("the answer", () => seen.includes("42-c-xterm-256color /tmp") && seen.includes("30 90"));
  },
  "its size changes": async ({ until }, s) => {
    await s.box.pty.resize(s.pty.pid, { cols: 120, rows: 40 });
    let seen = "";
    const again = await s.box.pty.connect(s.pty.pid, { onData: (d) => { seen += decoded.decode(d); } });
    await s.box.pty.sendInput(s.pty.pid, text.encode("stty size\n"));
    await until("the size", () => seen.includes("40 120"));
    await again.disconnect();
  },
  "its end": async ({ assert }, s) => {
    assert.equal(await s.box.pty.kill(s.pty.pid), true);
    await assert.rejects(s.pty.wait());
    assert.equal(await s.box.pty.kill(s.pty.pid), false);
  },
  "exit of a terminal": async ({ assert }, s) => {
    const pty = await s.box.pty.create({ cols: 80, rows: 24, onData: () => {} });
    await s.box.pty.sendInput(pty.pid, text.encode("exit\n"));
    assert.equal((await pty.wait()).exitCode, 0);
  },
  "many commands at a time": async ({ assert }, s) => {
    const done = await Promise.all(Array.from({ length: 12 }, (_, n) => s.box.commands.run(`echo ${n}`)));
    assert.deepEqual(done.map((d) => d.stdout), Array.from({ length: 12 }, (_, n) => `${n}\n`));
  },
};
