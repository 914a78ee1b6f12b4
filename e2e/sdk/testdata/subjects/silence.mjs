// Node's fetch gives up after 300 s without a byte. Here it gives up after a few seconds, and the gateway has an interval to match.
const limit = 6_000;
const long = 15; // seconds of silence
await fetch("data:,"); // loads fetch, and with it the class of its connections
const dispatcher = Symbol.for("undici.globalDispatcher.1");
const Agent = globalThis[dispatcher].constructor;
globalThis[dispatcher] = new Agent({ headersTimeout: limit, bodyTimeout: limit });

const harness = `
const emit = (event, data) => process.stdout.write("event: " + event + "\\ndata: " + JSON.stringify(data) + "\\n\\n");
const wait = () => new Promise((done) => setTimeout(done, ${long * 1000}));
emit("text", { text: "first" });
await wait();
if (process.argv.includes("fail")) emit("error", { error: "on purpose" });
else emit("done", { output: "answer", input_tokens: 1, output_tokens: 2, session_id: "s" });
`;

// all runs calls at the same time, because each takes long.
const all = (calls) => Promise.all(calls.map((call) => call()));

export default {
  "commands and code that are silent for long": async ({ create, assert, collect, until }, s) => {
    s.box = await create({ runtime: "node" });
    await s.box.exec.command("git init -q -b main repo && cd repo && git config user.email a@example.com && git config user.name a && git commit -q --allow-empty -m first && git config alias.slow '!sleep " + long + "; echo slow'");
    await all([
      async () => {
        const run = await s.box.exec.command(`sleep ${long}; echo out; echo err >&2; exit 4`);
        assert.deepEqual([run.stdout, run.stderr, run.exitCode, run.status], ["out\n", "err\n", 4, "failed"]);
      },
      async () => {
        const run = await s.box.exec.code({ lang: "js", code: `setTimeout(() => console.log("out"), ${long * 1000})` });
        assert.deepEqual([run.stdout, run.exitCode, run.status], ["out\n", 0, "completed"]);
      },
      async () => {
        const run = await s.box.exec.code({ lang: "python", code: "import time; time.sleep(3600)", timeout: long * 1000 });
        assert.deepEqual([run.exitCode, run.status], [124, "failed"]);
      },
      async () => {
        const run = await s.box.exec.stream(`sleep ${long}; printf one; sleep ${long}; printf two; exit 5`);
        const { chunks, text } = await collect(run);
        assert.equal(text, "onetwo");
        assert.deepEqual([chunks.at(-1).exitCode, run.status], [5, "failed"]);
      },
      async () => {
        const run = await s.box.exec.streamCode({ lang: "python", code: `import time; time.sleep(${long}); print("out")` });
        assert.equal((await collect(run)).text, "out\n");
        assert.equal(run.status, "completed");
      },
      async () => {
        // A run that is cancelled after the status was sent is no success.
        const pending = s.box.exec.command("sleep 4712");
        const began = Date.now();
        const run = await until("the run", async () => Date.now() - began > 5_000 && (await s.box.listRuns()).find((r) => r.status === "running" && r.prompt.includes("4712")));
        await s.box._request("POST", `/v2/box/${s.box.id}/runs/${run.id}/cancel`);
        const ended = await pending;
        assert.deepEqual([ended.status, ended.exitCode], ["failed", -1]);
        assert.match(ended.result, /cancelled/);
      },
      async () => {
        assert.equal((await s.box.git.exec({ args: ["-C", "/workspace/home/repo", "slow"] })).output, "slow\n");
      },
    ]);
  },
  "agents that are silent for long": async ({ create, assert, collect, Agent, call }) => {
    const box = await create({ runtime: "node", agent: { harness: Agent.Custom, customHarness: { command: "node", args: ["/workspace/home/harness.mjs"] } } });
    await box.exec.command(`cat >harness.mjs <<'END'\n${harness}\nEND`);
    await all([
      async () => assert.equal((await box.agent.run({ prompt: "x" })).result, "answer"),
      async () => assert.rejects(box.agent.run({ prompt: "fail" }), /on purpose/),
      async () => {
        const { chunks, text } = await collect(await box.agent.stream({ prompt: "x" }));
        assert.equal(text, "first");
        assert.ok(chunks.every((c) => c.type !== "unknown"), JSON.stringify(chunks));
        assert.equal(chunks.find((c) => c.type === "finish").output, "answer");
      },
      async () => {
        const answer = await call("POST", `/v2/box/${box.id}/run`, { prompt: "fail" });
        assert.deepEqual([answer.status, answer.json.status, answer.json.error_message], [200, "failed", "on purpose"]);
      },
    ]);
  },
  "a failure that comes late is an error": async ({ create, assert }) => {
    const box = await create();
    const hook = (exit) => `printf '#!/bin/sh\\nsleep ${long}\\necho why >&2\\nexit ${exit}\\n' >.git/hooks/pre-push && chmod +x .git/hooks/pre-push`;
    await box.exec.command("git init -q --bare bare");
    for (const [dir, exit] of [["fails", 1], ["works", 0]]) {
      const made = await box.exec.command(`git init -q -b ${dir} ${dir} && cd ${dir} && git -c user.email=a@example.com -c user.name=a commit -q --allow-empty -m first && git remote add origin ../bare && ${hook(exit)}`);
      assert.equal(made.exitCode, 0, made.stderr);
    }
    await box.cd("works");
    const works = box.git.push();
    await box.cd("/workspace/home/fails");
    await assert.rejects(box.git.push());
    await works;
    assert.equal((await box.exec.command("git -C /workspace/home/bare branch --format='%(refname:short)'")).stdout, "works\n");
    assert.ok((await box.logs()).some((l) => l.level === "error" && /git push failed with exit code 1: why/.test(l.message)), JSON.stringify(await box.logs()));
  },
};
