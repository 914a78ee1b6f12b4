import { readFile } from "node:fs/promises";

const harness = `
const args = process.argv.slice(2);
const value = (name) => args[args.indexOf(name) + 1];
const emit = (event, data) => process.stdout.write("event: " + event + "\\ndata: " + JSON.stringify(data) + "\\n\\n");
emit("thinking", { text: "hm" });
emit("tool", { name: "Read", input: { path: "a" }, tool_call_id: "t1" });
emit("tool_result", { tool_call_id: "t1", output: "seen" });
emit("text", { text: "You said " + value("-p") });
emit("done", { output: "You said " + value("-p"), input_tokens: 3, output_tokens: 5, session_id: "s1" });
`;

export default {
  "a custom harness runs": async ({ create, Agent, assert, Box }, s) => {
    s.box = await create({ runtime: "node", agent: { harness: Agent.Custom, customHarness: { command: "node", args: ["/workspace/home/harness.mjs"] } } });
    assert.equal(s.box.modelConfig.model, "custom");
    assert.equal((await Box.get(s.box.id)).modelConfig.harness, Agent.Custom);
    await s.box.exec.command(`cat >harness.mjs <<'END'\n${harness}\nEND`);
    const tools = [];
    const run = await s.box.agent.run({ prompt: "hello", onToolUse: (t) => tools.push(t.name), onToolResult: (t) => tools.push(t.output) });
    assert.equal(run.result, "You said hello");
    assert.equal(run.status, "completed");
    assert.equal(run.exitCode, null);
    assert.deepEqual(tools, ["Read", "seen"]);
    assert.equal(run.cost.inputTokens, 3);
    assert.equal(run.cost.outputTokens, 5);
    const recorded = (await s.box.listRuns()).find((r) => r.id === run.id);
    assert.ok(recorded, "the run is not listed under the ID that the SDK has");
    assert.equal(recorded.status, "completed");
  },
  "a custom harness streams": async ({ assert, collect }, s) => {
    const run = await s.box.agent.stream({ prompt: "streamed" });
    const { chunks, text } = await collect(run);
    assert.equal(text, "You said streamed");
    const kinds = chunks.map((c) => c.type);
    assert.equal(kinds[0], "start");
    for (const kind of ["reasoning", "tool-call", "tool-result", "text-delta", "finish"]) assert.ok(kinds.includes(kind), `${kind} in ${kinds}`);
    assert.equal(chunks.find((c) => c.type === "finish").sessionId, "s1");
    assert.equal(run.status, "completed");
  },
  "a schedule runs the harness, and the box has the sums of its runs": async ({ assert, until, call }, s) => {
    const made = await s.box.schedule.agent({ cron: "* * * * *", prompt: "tick" });
    const done = await until("a run", async () => { const now = await s.box.schedule.get(made.id); return now.total_runs > 0 && now; });
    await s.box.schedule.delete(made.id);
    assert.deepEqual([done.last_run_status, done.total_failures], ["completed", 0]);
    const run = (await s.box.listRuns()).find((r) => r.schedule_id === made.id);
    assert.deepEqual([run.status, run.input_tokens, run.output_tokens, run.session_id], ["completed", 3, 5, "s1"]);
    const { json } = await call("GET", `/v2/box/${s.box.id}`);
    assert.ok(json.total_prompts >= 3);
    assert.deepEqual([json.total_input_tokens, json.total_output_tokens, json.session_id], [3 * json.total_prompts, 5 * json.total_prompts, "s1"]);
  },
  "the SDK's own helper speaks the protocol": async ({ create, Agent, assert, collect }) => {
    const box = await create({ agent: { harness: Agent.Custom, customHarness: { command: "node", args: ["/workspace/home/own.mjs"] } } });
    await box.files.write({ path: "helper.mjs", content: await readFile(new URL("../node_modules/@upstash/box/dist/custom-harness.js", import.meta.url), "utf8") });
    await box.files.write({ path: "own.mjs", content: `
      import { runCustomHarness } from "./helper.mjs";
      await runCustomHarness(async ({ prompt, model, sessionId, stream }, emit) => {
        if (prompt === "fail") throw new Error("on purpose");
        emit.reasoning("hm");
        emit.tool({ toolCallId: "t1", name: "Look", input: { at: "x" } });
        emit.toolResult({ toolCallId: "t1", output: { seen: [1] } });
        emit.text("h\u00e9llo");
        emit.emit("custom_event", { a: 1 });
        return { output: JSON.stringify([prompt, model, sessionId, stream]), inputTokens: 3, outputTokens: 5, cachedInputTokens: 2, totalCostUsd: 1, sessionId: "c1" };
      });` });
    const { chunks } = await collect(await box.agent.stream({ prompt: "ünï" }));
    assert.deepEqual(chunks.slice(1, -1), [
      { type: "reasoning", text: "hm" }, { type: "tool-call", toolCallId: "t1", toolName: "Look", input: { at: "x" } }, { type: "tool-result", toolCallId: "t1", output: { seen: [1] } },
      { type: "text-delta", text: "héllo" }, { type: "unknown", event: "custom_event", data: { a: 1 } },
      { type: "finish", output: JSON.stringify(["ünï", "custom", undefined, true]), usage: { inputTokens: 3, outputTokens: 5, cachedInputTokens: 2 }, sessionId: "c1" },
    ]);
    assert.deepEqual(JSON.parse((await box.agent.run({ prompt: "again" })).result), ["again", "custom", "c1", true]);
    await assert.rejects(box.agent.run({ prompt: "fail" }), /on purpose/);
  },
  "the harness is changed": async ({ create, assert }, s) => {
    await s.box.configureCustomHarness({ command: "sh", args: ["-c", "printf 'event: done\\ndata: {\"output\":\"other\"}\\n\\n'", "sh"], protocol: "box-sse-v1" });
    assert.equal((await s.box.agent.run({ prompt: "x" })).result, "other");
    const plain = await create();
    await assert.rejects(plain.configureCustomHarness({ command: "node" }), /custom agent boxes/);
  },
};
