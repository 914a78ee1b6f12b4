import { z } from "zod/v3";

const apiKey = "sk-ant-the-key-of-the-test";
const mcpKey = "the-mcp-key-of-the-test";
const agent = { harness: "claude-code", model: "anthropic/claude-sonnet-4-5", apiKey };

export default {
  "an agent answers, and its key is outside of the box": async ({ create, assert, call, Box }, s) => {
    s.box = await create({ name: "agent", agent });
    const tools = [];
    const run = await s.box.agent.run({ prompt: "hello", options: { maxTurns: 3 }, onToolUse: (t) => tools.push(t.name, t.toolCallId), onToolResult: (t) => tools.push(t.output) });
    assert.equal(run.status, "completed");
    const { prompt, model, variable, cwd, session, options } = JSON.parse(run.result);
    assert.deepEqual([prompt, model, variable, cwd, session, options], ["hello", "anthropic/claude-sonnet-4-5", "anthropic/claude-sonnet-4-5", "/workspace/home", undefined, { maxTurns: 3 }]);
    assert.deepEqual(tools, ["Read", "t1", "seen"]);
    assert.deepEqual([run.cost.inputTokens, run.cost.outputTokens, run.cost.totalUsd], [7, 5, 0]);
    assert.equal((await Box.get(s.box.id)).modelConfig.harness, "claude-code");
    const recorded = (await s.box.listRuns()).find((r) => r.id === run.id);
    assert.deepEqual([recorded.type, recorded.status, recorded.input_tokens, recorded.session_id], ["agent", "completed", 7, "conversation-1"]);
  },
  "the second turn continues the conversation": async ({ assert, collect, call }, s) => {
    await s.box.exec.command("mkdir -p project");
    await s.box.cd("project");
    const { chunks, text } = await collect(await s.box.agent.stream({ prompt: "and then?" }));
    const { prompt, session, cwd } = JSON.parse(text);
    assert.deepEqual([prompt, session, cwd], ["and then?", "conversation-1", "/workspace/home/project"]);
    assert.deepEqual(chunks.map((c) => c.type), ["start", "reasoning", "tool-call", "tool-result", "text-delta", "finish", "stats"]);
    assert.equal(chunks.find((c) => c.type === "finish").sessionId, "conversation-1");
    await s.box.cd("/workspace/home");
    const { json } = await call("GET", `/v2/box/${s.box.id}`);
    assert.deepEqual([json.total_prompts, json.total_input_tokens, json.total_output_tokens, json.session_id], [2, 14, 10, "conversation-1"]);
  },
  "the key is nowhere in the box": async ({ assert, call }, s) => {
    const look = await s.box.exec.command(`env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; grep -rlF ${apiKey.slice(0, 12)}""${apiKey.slice(12)} /workspace /etc /tmp /var /home /root /usr/lib/boxgate 2>/dev/null; echo end`);
    assert.match(look.stdout, /ANTHROPIC_API_KEY=set-by-the-gateway/);
    assert.ok(look.stdout.endsWith("end\n") && !look.stdout.includes(apiKey) && !/^\//m.test(look.stdout), look.stdout);
    for (const path of ["", "/runs", "/logs", "/config/attach-headers", "/schedules"]) {
      const answer = await call("GET", `/v2/box/${s.box.id}${path}`);
      assert.ok(answer.status === 200 && !answer.text.includes(apiKey), path + answer.text);
    }
    const rules = (await call("GET", `/v2/box/${s.box.id}/config/attach-headers`)).json.attach_headers;
    assert.deepEqual(rules, { "api.anthropic.com": ["X-Api-Key"] });
  },
  "a structured answer is checked, and asked for once more": async ({ assert, call }, s) => {
    const responseSchema = z.object({ message: z.string(), messageSize: z.number() });
    const run = await s.box.agent.run({ prompt: "structured please", responseSchema });
    assert.deepEqual(run.result, { message: "hi", messageSize: 2 });
    assert.deepEqual([run.cost.inputTokens, run.cost.outputTokens], [14, 10]); // of both attempts
    await assert.rejects(s.box.agent.run({ prompt: "stubborn", responseSchema }), /does not match the schema: it is not JSON/);
    const failed = (await s.box.listRuns())[0];
    assert.deepEqual([failed.status, failed.input_tokens], ["failed", 14]);
    const { json } = await call("POST", `/v2/box/${s.box.id}/run`, { prompt: "x", json_schema: [1] });
    assert.equal(json.problems?.[0]?.pointer ?? json.errors?.[0]?.pointer ?? "/json_schema", "/json_schema");
  },
  "files reach the agent": async ({ assert }, s) => {
    const run = await s.box.agent.run({ prompt: "look", files: [{ data: Buffer.from("picture").toString("base64"), mediaType: "image/png", filename: "a.png" }] });
    assert.deepEqual(JSON.parse(run.result).files, [{ data: Buffer.from("picture").toString("base64"), media_type: "image/png", filename: "a.png" }]);
  },
  "an error of the model is the error of the run": async ({ assert }, s) => {
    await assert.rejects(s.box.agent.run({ prompt: "overloaded" }), /the model answered 529/);
    const failed = (await s.box.listRuns())[0];
    assert.deepEqual([failed.status, failed.error_message, failed.input_tokens], ["failed", "the model answered 529", 3]);
  },
  "a run is cancelled": async ({ assert, until }, s) => {
    const stream = await s.box.agent.stream({ prompt: "wait" });
    const chunks = stream[Symbol.asyncIterator]();
    for (let chunk; (chunk = await chunks.next()).value?.type !== "text-delta"; ) assert.ok(!chunk.done);
    await stream.cancel();
    await until("the end of the run", async () => (await s.box.listRuns()).find((r) => r.id === stream.id)?.status === "cancelled");
  },
  "a webhook gets the result in the SDK's form": async ({ assert, until }, s) => {
    const run = await s.box.agent.run({ prompt: "later", webhook: { url: "https://receiver.example.com/run", headers: { "X-Own": "1" } } });
    assert.equal(run.status, "running");
    const got = await until("the webhook", async () => JSON.parse((await s.box.exec.command("curl -sS https://receiver.example.com/run")).stdout)[0]);
    assert.deepEqual([got.box_id, got.status, got.run_id, got.error, JSON.parse(got.output).prompt], [s.box.id, "completed", run.id, undefined, "later"]);
    assert.deepEqual([got.metadata.input_tokens, got.metadata.output_tokens, got.metadata.session_id], [7, 5, "conversation-1"]);
    await s.box.agent.run({ prompt: "overloaded", webhook: { url: "https://receiver.example.com/failed" } });
    const failed = await until("the webhook", async () => JSON.parse((await s.box.exec.command("curl -sS https://receiver.example.com/failed")).stdout)[0]);
    assert.deepEqual([failed.status, failed.error, failed.id, failed.error_message], ["failed", "the model answered 529", undefined, undefined]);
  },
  "a schedule runs the agent": async ({ assert, until, passMinute }, s) => {
    const made = await s.box.schedule.agent({ cron: "* * * * *", prompt: "tick", folder: "project", model: "anthropic/claude-haiku-4-5", options: { maxTurns: 1 }, webhookUrl: "https://receiver.example.com/tick" });
    passMinute();
    const done = await until("a run", async () => { const now = await s.box.schedule.get(made.id); return now.total_runs > 0 && now; });
    assert.deepEqual([done.last_run_status, done.last_error, done.total_failures], ["completed", undefined, 0]);
    await s.box.schedule.delete(made.id);
    const run = (await s.box.listRuns()).find((r) => r.schedule_id === made.id);
    const { prompt, model, cwd, options } = JSON.parse(run.output);
    assert.deepEqual([prompt, model, cwd, options, run.model], ["tick", "anthropic/claude-haiku-4-5", "/workspace/home/project", { maxTurns: 1 }, "anthropic/claude-haiku-4-5"]);
    const got = await until("the webhook", async () => JSON.parse((await s.box.exec.command("curl -sS https://receiver.example.com/tick")).stdout)[0]);
    assert.deepEqual([got.status, got.run_id, got.metadata.schedule_id, got.metadata.input_tokens, JSON.parse(got.output).prompt], ["completed", run.id, made.id, 7, "tick"]);
  },
  "without an agent there are neither runs nor schedules of one": async ({ create, refused }) => {
    const box = await create();
    await refused(box.schedule.agent({ cron: "0 0 * * *", prompt: "x" }), 501, /the box has no agent: .*claude-code/);
  },
  "a wrong key is the model's refusal, and a new one works": async ({ create, assert, call }) => {
    const box = await create({ agent: { ...agent, apiKey: "wrong" } });
    await assert.rejects(box.agent.run({ prompt: "hello" }), /the model answered 401/);
    const { status, json } = await call("PUT", `/v2/box/${box.id}/config/model`, { model: agent.model, agent_api_key: apiKey });
    assert.deepEqual([status, json.warnings], [200, undefined]);
    assert.equal(JSON.parse((await box.agent.run({ prompt: "hello" })).result).prompt, "hello");
    await call("PUT", `/v2/box/${box.id}/config/model`, { model: "openrouter/anthropic/claude-sonnet-4", agent_api_key: apiKey });
    assert.equal(JSON.parse((await box.agent.run({ prompt: "elsewhere" })).result).model, "openrouter/anthropic/claude-sonnet-4");
  },
  "models of other servers": async ({ create, assert, call, keep, Box }) => {
    const box = await create({ agent: { ...agent, model: "openrouter/anthropic/claude-opus-4-5" }, env: {} });
    assert.equal(JSON.parse((await box.agent.run({ prompt: "hello" })).result).prompt, "hello");
    assert.match((await box.exec.command("env")).stdout, /ANTHROPIC_BASE_URL=https:\/\/openrouter.ai\/api\n/);
    const own = await create({ agent, env: { ANTHROPIC_BASE_URL: "https://models.example.com" } });
    assert.equal(JSON.parse((await own.agent.run({ prompt: "own" })).result).prompt, "own");
    assert.ok(!(await call("GET", `/v2/box/${own.id}`)).text.includes("models.example.com")); // the value of a variable
    const { json } = await call("POST", "/v2/box", { agent: "claude-code", model: "x", agent_api_key: apiKey, agent_base_url: "https://models.example.com:443" });
    assert.equal(json.agent_base_url, "https://models.example.com:443");
    assert.equal(JSON.parse((await keep(await Box.get(json.id)).agent.run({ prompt: "field" })).result).prompt, "field");
    for (const bad of ["http://models.example.com", "https://10.0.0.1", "https://*.example.com", "https://u:p@models.example.com", "https://models.example.com/?a=b", "nonsense"]) {
      const refused = await call("POST", "/v2/box", { agent: "claude-code", model: "x", agent_api_key: apiKey, agent_base_url: bad });
      assert.ok(refused.status === 422 && !refused.text.includes(apiKey), bad + refused.text);
    }
  },
  "warnings name what the agent lacks": async ({ call, assert, keep, Box }) => {
    const made = async (body) => { const { status, json } = await call("POST", "/v2/box", { agent: "claude-code", model: agent.model, ...body }); assert.equal(status, 201); keep(await Box.get(json.id)); return json.warnings ?? []; };
    const at = (warnings) => warnings.map((w) => w.pointer);
    assert.deepEqual(await made({ agent_api_key: apiKey }), []);
    assert.deepEqual(at(await made({})), ["/agent_api_key"]);
    assert.deepEqual(at(await made({ agent_api_key: "STORED_KEY" })), ["/agent_api_key"]);
    assert.ok(at(await made({ agent_api_key: apiKey, network_policy: { mode: "custom", allowed_domains: ["api.example.com"] } })).includes("/network_policy"));
    assert.ok(at(await made({ agent_api_key: apiKey, skills: ["acme/skills"], network_policy: { mode: "custom", allowed_domains: ["api.anthropic.com"] } })).includes("/skills"));
    const limits = { model: { tokens: 100_000, per: "day" } };
    assert.deepEqual(await made({ agent_api_key: apiKey, limits }), []);
    assert.deepEqual(at(await made({ agent_api_key: apiKey, limits, agent_base_url: "https://models.example.com" })), ["/limits/model"]);
  },
  "MCP servers are in the files of the harnesses, and their keys are not": async ({ create, assert }) => {
    const box = await create({ agent, mcpServers: [{ name: "remote", url: "https://mcp.example.com/mcp", headers: { "X-Mcp-Key": mcpKey } }, { name: "local", package: "@org/mcp-server@1.2.3", args: ["--root", "/a \"b\""] }] });
    const common = JSON.parse(await box.files.read(".box-internal/mcp-config.json"));
    assert.deepEqual(common, { mcpServers: {
      local: { type: "stdio", command: "npx", args: ["-y", "@org/mcp-server@1.2.3", "--root", "/a \"b\""] },
      remote: { type: "http", url: "https://mcp.example.com/mcp", headers: { "X-Mcp-Key": "set-by-the-gateway" } },
    } });
    assert.deepEqual(JSON.parse(await box.files.read(".claude.json")), common);
    assert.equal(JSON.parse(await box.files.read(".config/opencode/opencode.json")).mcp.remote.headers["X-Mcp-Key"], "set-by-the-gateway");
    const toml = await box.exec.command("python3 -c 'import tomllib,json; print(json.dumps(tomllib.load(open(\".codex/config.toml\",\"rb\"))))'");
    assert.deepEqual(JSON.parse(toml.stdout), { mcp_servers: {
      remote: { url: "https://mcp.example.com/mcp", http_headers: { "X-Mcp-Key": "set-by-the-gateway" } },
      local: { command: "npx", args: ["-y", "@org/mcp-server@1.2.3", "--root", "/a \"b\""] },
    } });
    assert.equal((await box.exec.command("stat -c '%U %a' .claude.json .codex .codex/config.toml")).stdout, "boxuser 600\nboxuser 755\nboxuser 600\n");
    const got = await box.exec.command("curl -sS -H 'X-Mcp-Key: set-by-the-gateway' https://mcp.example.com/mcp");
    assert.equal(got.stdout, `[${mcpKey}]`);
    assert.equal((await box.exec.command(`grep -rlF the-mcp-key"-of" / --include=* -s --exclude-dir=proc --exclude-dir=sys; env | grep -F the-mcp-key`)).stdout, "");
  },
  "wrong MCP servers and skills are refused with their place": async ({ call, assert }) => {
    const url = "https://mcp.example.com/";
    const server = (more) => ({ mcp_servers: [{ name: "a", source: "url", package_or_url: url, ...more }] });
    for (const [body, pointer] of [
      [server({ name: "../../etc/passwd" }), "/mcp_servers/0/name"],
      [server({ name: "a\"]\n[x" }), "/mcp_servers/0/name"],
      [server({ source: "file" }), "/mcp_servers/0/source"],
      [server({ headers: { "X-A": "a\r\nX-B: b" } }), "/mcp_servers/0/headers/X-A"],
      [server({ headers: { "X-A: b\r\nX-B": mcpKey } }), "/mcp_servers/0/headers/X-A: b\r\nX-B"],
      [server({ headers: { Host: "other" } }), "/mcp_servers/0/headers/Host"],
      [server({ package_or_url: "http://mcp.example.com/", headers: { "X-A": mcpKey } }), "/mcp_servers/0/headers"],
      [server({ package_or_url: "https://u:p@mcp.example.com/" }), "/mcp_servers/0/package_or_url"],
      [server({ package_or_url: "https://*.com/", headers: { "X-A": mcpKey } }), "/mcp_servers/0/package_or_url"],
      [server({ package_or_url: "file:///etc/passwd" }), "/mcp_servers/0/package_or_url"],
      [server({ source: "npm", package_or_url: "../evil" }), "/mcp_servers/0/package_or_url"],
      [server({ source: "npm", package_or_url: "--eval=x" }), "/mcp_servers/0/package_or_url"],
      [{ mcp_servers: [{ name: "a", source: "npm", package_or_url: "b", args: ["a\u0000b"] }] }, "/mcp_servers/0/args/0"],
      [{ mcp_servers: Array.from({ length: 33 }, (_, i) => ({ name: "n" + i, source: "npm", package_or_url: "x" })) }, "/mcp_servers"],
      [{ ...server({ headers: { "X-A": "1" } }), attach_headers: { "mcp.example.com:443": { "X-A": "2" } } }, "/mcp_servers/0/headers/X-A"],
      [{ skills: ["../../etc/passwd"] }, "/skills/0"],
      [{ skills: ["acme/../../x"] }, "/skills/0"],
      [{ skills: ["acme/skills/.."] }, "/skills/0"],
      [{ skills: ["-acme/--upload-pack=x"] }, "/skills/0"],
      [{ agent: "claude-code", model: "nowhere/model", agent_api_key: apiKey }, "/model"],
      [{ agent: "claude-code", model: agent.model, agent_api_key: apiKey + "\r\nX: y" }, "/agent_api_key"],
      [{ agent: "claude-code", model: agent.model, agent_api_key: apiKey, attach_headers: { "api.anthropic.com": { "X-Api-Key": "k" } } }, "/agent_api_key"],
    ]) {
      const { status, text } = await call("POST", "/v2/box", body);
      assert.equal(status, 422, JSON.stringify(body) + text);
      assert.ok(text.includes(JSON.stringify(pointer).slice(1, -1)) && !text.includes(apiKey) && !text.includes(mcpKey), pointer + text);
    }
  },
  "skills are installed, added and removed": async ({ create, assert }) => {
    const box = await create({ agent, skills: ["acme/skills/one", "acme/missing"] });
    const list = async () => (await box.exec.command("cd ~ && cat .claude/skills/*/SKILL.md .codex/skills/*/SKILL.md; ls .claude/skills")).stdout;
    assert.equal(await list(), "firstfirstone\n");
    assert.ok((await box.logs()).some((l) => /skills are installed: .*acme\/missing: it could not be installed/.test(l.message)), JSON.stringify(await box.logs()));
    await box.skills.remove("acme/missing");
    await box.skills.add("acme/skills");
    await box.agent.run({ prompt: "x" });
    assert.equal(await list(), "firstsecondfirstsecondone\ntwo\n");
    await box.skills.remove("acme/skills");
    await box.skills.remove("acme/skills/one");
    await box.agent.run({ prompt: "x" });
    assert.equal(await list(), "");
  },
  "a box from a snapshot has the agent and its conversation, and needs the key again": async ({ keep, assert, Box, call }, s) => {
    const { id } = await s.box.snapshot({ name: "agent" });
    const without = keep(await Box.fromSnapshot(id));
    await assert.rejects(without.agent.run({ prompt: "hello" }), /the model answered 401/);
    const box = keep(await Box.fromSnapshot(id, { agent }));
    assert.equal(JSON.parse((await box.agent.run({ prompt: "hello" })).result).session, "conversation-1");
    const { json } = await call("GET", `/v2/box/${box.id}`);
    assert.deepEqual([json.total_prompts, json.total_input_tokens, json.session_id], [1, 7, "conversation-1"]);
    await Box.deleteSnapshots({ snapshotIds: id });
  },
};
