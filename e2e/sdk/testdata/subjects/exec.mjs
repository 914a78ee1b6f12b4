export default {
  "a command": async ({ create, assert }, s) => {
    s.box = await create({ env: { GREETING: "hello" } });
    const run = await s.box.exec.command("echo $GREETING; echo problem >&2; exit 3");
    assert.equal(run.stdout, "hello\n");
    assert.equal(run.stderr, "problem\n");
    assert.equal(run.exitCode, 3);
    assert.equal(run.status, "failed");
    assert.equal(run.result, "problem\n");
    assert.equal(typeof run.id, "string");
    assert.ok(run.cost.computeMs >= 0);
    assert.equal(run.cost.totalUsd, 0);
    assert.ok((await run.logs()).every((l) => typeof l.timestamp === "string"));
  },
  "warnings do not hide the result": async ({ assert }, s) => {
    const run = await s.box.exec.command("echo out; echo warning >&2");
    assert.equal(run.result, "out\n");
    assert.equal(run.status, "completed");
  },
  "JavaScript, TypeScript and Python": async ({ assert }, s) => {
    const js = await s.box.exec.code({ lang: "js", code: "console.log(JSON.stringify({ sum: 1 + 2, env: process.env.GREETING }))" });
    assert.deepEqual(JSON.parse(js.stdout), { sum: 3, env: "hello" });
    const ts = await s.box.exec.code({ lang: "ts", code: "const n: number = 6 * 7; console.log(n as number);" });
    assert.equal(ts.stdout, "42\n", ts.stderr);
    const py = await s.box.exec.code({ lang: "python", code: "import json; print(json.dumps({'two': 2 ** 10}))" });
    assert.deepEqual(JSON.parse(py.stdout), { two: 1024 });
    const wrong = await s.box.exec.code({ lang: "js", code: "throw new Error('on purpose')" });
    assert.equal(wrong.status, "failed");
    assert.notEqual(wrong.exitCode, 0);
    assert.match(wrong.result, /on purpose/);
  },
  "code runs in the working directory": async ({ assert }, s) => {
    await s.box.exec.command("mkdir -p work");
    await s.box.cd("work");
    assert.equal((await s.box.exec.code({ lang: "python", code: "import os; print(os.getcwd())" })).stdout, "/workspace/home/work\n");
    await s.box.cd("/workspace/home");
  },
  "code that takes too long is stopped": async ({ assert, refused }, s) => {
    await refused(s.box.exec.code({ lang: "js", code: "setTimeout(() => {}, 1e9)", timeout: 500 }), 504, /timeout/);
  },
  "an unknown language is refused": async ({ refused }, s) => {
    await refused(s.box.exec.code({ lang: "cobol", code: "x" }), 422, /\/language/);
  },
  "a stream of a command": async ({ assert, collect, StreamRun }, s) => {
    const run = await s.box.exec.stream("for i in 1 2 3; do echo line $i; done; exit 4");
    assert.ok(run instanceof StreamRun);
    const { chunks, text } = await collect(run);
    assert.equal(text, "line 1\nline 2\nline 3\n");
    const last = chunks.at(-1);
    assert.equal(last.type, "exit");
    assert.equal(last.exitCode, 4);
    assert.ok(last.cpuNs > 0, `cpuNs: ${last.cpuNs}`);
    assert.equal(run.status, "failed");
    assert.equal(run.exitCode, 4);
  },
  "a stream comes as it is written": async ({ assert }, s) => {
    const run = await s.box.exec.stream("echo first; while [ ! -e go ]; do sleep 0.05; done; echo second");
    let seen = "";
    for await (const chunk of run) {
      if (chunk.type !== "output") continue;
      seen += chunk.data;
      if (seen === "first\n") await s.box.exec.command("touch go");
    }
    assert.equal(seen, "first\nsecond\n");
  },
  "a stream of code": async ({ assert, collect }, s) => {
    const run = await s.box.exec.streamCode({ lang: "js", code: "for (let i = 0; i < 3; i++) console.log('step ' + i)" });
    const { chunks, text } = await collect(run);
    assert.equal(text, "step 0\nstep 1\nstep 2\n");
    assert.equal(chunks.at(-1).exitCode, 0);
    assert.equal(run.status, "completed");
  },
  "a run is cancelled": async ({ assert, until, call }, s) => {
    const pending = s.box.exec.command("sleep 4711").catch((e) => e);
    const run = await until("the run", async () => (await s.box.listRuns()).find((r) => r.status === "running" && r.prompt.includes("4711")));
    const answer = await call("POST", `/v2/box/${s.box.id}/runs/${run.id}/cancel`);
    assert.equal(answer.status, 200, answer.text);
    await pending;
    assert.equal((await s.box.listRuns()).find((r) => r.id === run.id).status, "cancelled");
    assert.equal((await s.box.exec.command("pgrep -f 'sleep 471[1]' || echo none")).stdout, "none\n");
  },
  "cancelling a run that has ended is no error": async ({ assert }, s) => {
    const run = await s.box.exec.command("true");
    await run.cancel();
    assert.equal(run.status, "cancelled");
  },
};
