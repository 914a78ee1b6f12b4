// Each option of runs, schedules, public URLs and policies of a box, with its effect.
import { createHash, randomBytes } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { z } from "zod/v3";

const apiKey = "sk-ant-the-key-of-the-test";

// harnesses are the agents with all of their options, in the SDK's names and as the harness gets them.
const harnesses = {
  "claude-code": {
    model: "anthropic/claude-sonnet-4-5", other: "anthropic/claude-haiku-4-5",
    options: {
      maxTurns: 3, maxBudgetUsd: 1.5, effort: "max", thinking: { type: "enabled", budgetTokens: 1024 }, disallowedTools: ["Bash"], agents: { one: { prompt: "x" } },
      promptSuggestions: true, fallbackModel: "claude-haiku-4-5", systemPrompt: "Be brief.",
    },
  },
  "codex": {
    model: "vercel/openai/o3", other: "vercel/openai/o4-mini", options: { modelReasoningEffort: "xhigh", modelReasoningSummary: "concise", personality: "pragmatic", webSearch: "live" },
    sent: { model_reasoning_effort: "xhigh", model_reasoning_summary: "concise", personality: "pragmatic", web_search: "live" },
  },
  "opencode": { model: "anthropic/claude-sonnet-4-5", other: "anthropic/claude-haiku-4-5", options: { reasoningEffort: "low", textVerbosity: "high", reasoningSummary: "auto", thinking: { type: "enabled", budgetTokens: 9 } } },
};

const received = async (box, url) => JSON.parse((await box.exec.command(`curl -sS ${url}`)).stdout);
const picture = Buffer.from([0, 255, 128, 10, 13]).toString("base64");
const inline = [{ data: picture, mediaType: "image/png", filename: "ünïcode name.png" }];

// needs are the tests that others need: here all need the first.
export const needs = { "": ["schedules begin"] };

export default {
  "schedules begin": async ({ create, assert, passMinute }, s) => {
    for (const [harness, { model }] of Object.entries(harnesses)) s[harness] = await create({ agent: { harness, model, apiKey } });
    s.box = s["claude-code"];
    s.own = (name) => `https://receiver.example.com/own/${s.box.id}/${name}`;
    await s.box.exec.command("mkdir -p project");
    s.exec = await s.box.schedule.exec({
      cron: "* * * * *", command: ["pwd"], folder: "project", webhookUrl: s.own("exec"), webhookHeaders: { "X-Own": "of-exec" },
    });
    assert.deepEqual([s.exec.folder, s.exec.webhook_url, s.exec.webhook_headers], ["/workspace/home/project", s.own("exec"), { "X-Own": "of-exec" }]);
    s.slow = await s.box.schedule.agent({ cron: "* * * * *", prompt: "wait", timeout: 1000 });
    assert.equal(s.slow.timeout, 1000);
    s.agents = {};
    for (const [harness, { other, options, sent }] of Object.entries(harnesses)) {
      s.agents[harness] = await s[harness].schedule.agent({
        cron: "* * * * *", prompt: "tick", folder: "/workspace", model: other, options,
        webhookUrl: s.own(harness), webhookHeaders: { "X-Own": harness },
      });
      const { folder, model, agent_options, webhook_url, webhook_headers } = s.agents[harness];
      assert.deepEqual([folder, model, agent_options, webhook_url, webhook_headers], ["/workspace", other, sent ?? options, s.own(harness), { "X-Own": harness }]);
    }
    passMinute();
  },
  "options reach the harness": async ({ assert, collect }, s) => {
    for (const [harness, { options, sent }] of Object.entries(harnesses)) {
      const run = await s[harness].agent.run({ prompt: "hello", options });
      assert.deepEqual(JSON.parse(run.result).options, sent ?? options);
      const { text } = await collect(await s[harness].agent.stream({ prompt: "hello", options }));
      assert.deepEqual(JSON.parse(text).options, sent ?? options);
    }
    const { result } = await s.box.agent.run({ prompt: "hello", options: { thinking: { type: "adaptive" }, systemPrompt: { type: "preset", append: "x" } } });
    assert.deepEqual(JSON.parse(result).options, { thinking: { type: "adaptive" }, systemPrompt: { type: "preset", append: "x" } });
  },
  "files reach the harness, from memory and from a disk": async ({ assert, collect }, s) => {
    const dir = await mkdtemp(join(tmpdir(), "sdk-prompt-"));
    try {
      const path = join(dir, "a picture.png");
      await writeFile(path, Buffer.from(picture, "base64"));
      for (const [files, filename] of [[inline, "ünïcode name.png"], [[path], "a picture.png"]]) {
        const want = [{ data: picture, media_type: "image/png", filename }];
        assert.deepEqual(JSON.parse((await s.box.agent.run({ prompt: "look", files })).result).files, want);
        assert.deepEqual(JSON.parse((await collect(await s.box.agent.stream({ prompt: "look", files }))).text).files, want);
      }
      const all = await s.box.agent.run({ prompt: "look", files: [path], options: { maxTurns: 2 } });
      assert.deepEqual(JSON.parse(all.result).options, { maxTurns: 2 }); // a field of a form
    } finally {
      await rm(dir, { recursive: true });
    }
  },
  "ten files of 10 MiB at most": async ({ create, assert, refused }, s) => {
    const program = "import base64, hashlib, json, os; f = json.load(open(os.environ['PROMPT_FILES_PATH'])); out = ' '.join(hashlib.sha256(base64.b64decode(x['data'])).hexdigest() for x in f); print('event: done\\ndata: ' + json.dumps({'output': out}) + '\\n')";
    const box = await create({ agent: { harness: "custom", customHarness: { command: "python3", args: ["-c", program] } } });
    const large = randomBytes(10 << 20), sum = createHash("sha256").update(large).digest("hex");
    const dir = await mkdtemp(join(tmpdir(), "sdk-prompt-"));
    try {
      await writeFile(join(dir, "a.png"), large);
      assert.equal((await box.agent.run({ prompt: "x", files: [join(dir, "a.png"), join(dir, "a.png")] })).result, `${sum} ${sum}`);
    } finally {
      await rm(dir, { recursive: true });
    }
    assert.equal((await box.agent.run({ prompt: "x", files: [{ data: large.toString("base64"), mediaType: "image/png" }] })).result, sum);
    await refused(box.agent.run({ prompt: "x", files: Array(11).fill(inline[0]) }), 422, /files: at most 10/);
    await refused(box.agent.run({ prompt: "x", files: [{ ...inline[0], data: randomBytes((10 << 20) + 3).toString("base64") }] }), 422, /larger than/);
  },
  "an answer has the form that its schema requires": async ({ assert }, s) => {
    const run = await s.box.agent.run({ prompt: "structured", responseSchema: z.object({ message: z.string(), messageSize: z.number() }) });
    assert.deepEqual(run.result, { message: "hi", messageSize: 2 });
  },
  "tools are reported": async ({ assert, collect }, s) => {
    for (const start of ["run", "stream"]) {
      const tools = [];
      const run = await s.box.agent[start]({ prompt: "hello", onToolUse: (t) => tools.push(t), onToolResult: (t) => tools.push(t) });
      if (start === "stream") await collect(run);
      assert.deepEqual(tools, [{ toolCallId: "t1", name: "Read", input: { path: "a" } }, { toolCallId: "t1", output: "seen" }]);
    }
  },
  "a run that fails is tried again": async ({ assert }, s) => {
    const prompt = `overloaded once ${s.box.id}`;
    assert.equal(JSON.parse((await s.box.agent.run({ prompt, maxRetries: 1 })).result).prompt, prompt);
  },
  "a run that takes too long is given up, goes on, and can be cancelled": async ({ assert, call, stopped, until, collect }, s) => {
    await stopped(s.box.agent.run({ prompt: "wait", timeout: 1500 }), /Run timed out|aborted/);
    const aborted = (e) => { if (e.name !== "AbortError") throw e; }; // the SDK leaves its reader's rejection to the process
    process.on("unhandledRejection", aborted);
    const run = await s.box.agent.stream({ prompt: "wait", timeout: 1500 });
    await stopped(collect(run), /Stream timed out/);
    const running = async () => (await s.box.listRuns()).filter((r) => r.prompt === "wait" && r.status === "running" && !r.schedule_id);
    const left = await running();
    assert.equal(left.length, 2);
    for (const { id } of left) assert.equal((await call("POST", `/v2/box/${s.box.id}/runs/${id}/cancel`)).status, 200);
    await until("the end of both", async () => (await running()).length === 0);
    process.off("unhandledRejection", aborted);
  },
  "a webhook gets the result, with its fields": async ({ assert, until }, s) => {
    const run = await s.box.agent.run({ prompt: "later", webhook: { url: s.own("run"), headers: { "X-Own": "of-run" } } });
    const [got] = await until("the webhook", async () => { const all = await received(s.box, s.own("run")); return all.length > 0 && all; });
    assert.deepEqual([got.own, got.body.run_id, got.body.box_id, got.body.status, JSON.parse(got.body.output).prompt], ["of-run", run.id, s.box.id, "completed", "later"]);
  },
  "totals of a box": async ({ assert, Box }, s) => {
    const data = (await Box.list()).find((b) => b.id === s.box.id);
    assert.ok(data.total_prompts > 0 && data.total_input_tokens > 0 && data.total_output_tokens > 0 && data.session_id === "conversation-1", JSON.stringify(data));
    const run = (await s.codex.listRuns()).find((r) => r.status === "completed"); // not metered: as the harness reports it
    assert.equal(run.cached_input_tokens, 2);
  },
  "code that takes too long is stopped": async ({ stopped, collect, assert, until }, s) => {
    const long = { js: "setTimeout(() => {}, 20471)", ts: "const n: number = 20471; setTimeout(() => {}, n)", python: "import time; time.sleep(20.471)" };
    for (const [lang, code] of Object.entries(long)) {
      const begun = Date.now();
      await s.box.exec.code({ lang, code, timeout: 500 }).then((run) => assert.equal(run.status, "failed"), (e) => stopped(Promise.reject(e), /timeout/));
      const run = await s.box.exec.streamCode({ lang, code, timeout: 500 });
      await collect(run).catch((e) => assert.match(String(e), /timeout/));
      assert.ok(run.status === "failed" && Date.now() - begun < 60_000, run.status);
    }
    await until("their end", async () => (await s.box.exec.command("pgrep -f '20.?47[1]' || echo none")).stdout === "none\n");
  },
  "code of each language is streamed": async ({ assert, collect }, s) => {
    for (const [lang, code] of Object.entries({ js: "console.log(6 * 7)", ts: "const n: number = 42; console.log(n)", python: "print(6 * 7)" })) {
      assert.equal((await collect(await s.box.exec.streamCode({ lang, code }))).text, "42\n");
    }
  },
  "public URLs by the old name are protected": async ({ assert }, s) => {
    const plain = await s.box.getPreviewUrl(9000, { bearerToken: false, basicAuth: false });
    assert.deepEqual([plain.port, plain.token, plain.username, plain.password], [9000, undefined, undefined, undefined]);
    const all = await s.box.getPreviewUrl(9001, { bearerToken: true, basicAuth: true });
    assert.ok(all.token && all.username && all.password);
    const { publicURLs } = await s.box.listPublicURLs();
    assert.deepEqual(publicURLs.map((u) => u.port).sort(), [9000, 9001]);
  },
  "a policy is replaced by addresses, and opened": async ({ create, assert }) => {
    const box = await create({ networkPolicy: { mode: "deny-all" } });
    const ask = async (at) => (await box.exec.command(`curl -sS -o /dev/null -w '%{http_code}' http://${at}/`)).stdout;
    assert.match(await ask("198.51.100.86"), /000|403/);
    await box.updateNetworkPolicy({ mode: "custom", allowedCidrs: ["198.51.100.86/32"] });
    assert.deepEqual([await ask("198.51.100.86"), /000|403/.test(await ask("www.example.com"))], ["200", true]);
    await box.updateNetworkPolicy({ mode: "custom", allowedDomains: ["receiver.example.com"], deniedCidrs: ["198.51.100.86/32", "2001:db8:1::86/128"] });
    assert.match(await ask("receiver.example.com"), /000|403/);
    await box.updateNetworkPolicy({ mode: "allow-all" });
    assert.equal(await ask("receiver.example.com"), "200");
  },
  "schedules have run": async ({ assert, until }, s) => {
    const ran = (box, made) => until(`a run of ${made.prompt ?? made.command}`, async () => { const now = await box.schedule.get(made.id); return now.total_runs > 0 && now; });
    const [exec, slow] = [await ran(s.box, s.exec), await ran(s.box, s.slow)];
    assert.deepEqual([exec.last_run_status, exec.total_failures], ["completed", 0]);
    assert.ok(exec.last_run_at >= exec.created_at && exec.last_run_id);
    const [got] = await until("the webhook", async () => { const all = await received(s.box, s.own("exec")); return all.length > 0 && all; });
    assert.deepEqual([got.own, got.body.status, got.body.output], ["of-exec", "completed", "/workspace/home/project\n"]);
    assert.deepEqual([slow.last_run_status, slow.total_failures > 0], ["failed", true]);
    for (const [harness, { other, options, sent }] of Object.entries(harnesses)) {
      const done = await ran(s[harness], s.agents[harness]);
      const run = (await s[harness].listRuns()).find((r) => r.id === done.last_run_id);
      assert.equal(run.schedule_id, done.id);
      const { prompt, model, cwd, options: passed } = JSON.parse(run.output);
      assert.deepEqual([prompt, cwd, passed], ["tick", "/workspace", sent ?? options]);
      assert.equal(run.model, other);
      const [hook] = await until("the webhook", async () => { const all = await received(s[harness], s.own(harness)); return all.length > 0 && all; });
      assert.deepEqual([hook.own, hook.body.status], [harness, "completed"]);
    }
    for (const [box, made] of [[s.box, s.exec], [s.box, s.slow], ...Object.keys(harnesses).map((h) => [s[h], s.agents[h]])]) await box.schedule.delete(made.id);
  },
};
