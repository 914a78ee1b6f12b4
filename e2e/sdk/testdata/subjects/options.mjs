// Each option of the calls that make boxes or belong to no box, with its effect.
const token = "ghp_the_token_of_the_test", modelKey = "sk-ant-the-key-of-the-test";
const model = "https://models.example.com/v1/messages";
const custom = {
  mode: "custom", allowedDomains: ["mcp.example.com", "models.example.com", "github.com", "api.anthropic.com"],
  allowedCidrs: ["198.51.100.86/32"], deniedCidrs: ["198.51.100.82/32", "2001:db8:1::82/128"],
};
const policies = [[custom, "0 1 1 0"], [{ mode: "deny-all" }, "1 1 1 1"], [{ mode: "allow-all" }, "0 0 0 0"]];

// probe asks for an allowed name, another name, an allowed name with denied addresses, and an allowed address.
const probe = "for u in https://mcp.example.com https://www.example.com https://api.anthropic.com http://198.51.100.86; do case $(curl -ks -o /dev/null -w '%{http_code}' $u/) in 000|403) echo 1;; *) echo 0;; esac; done | paste -sd' '";

// alone makes a call where only its options lead to the gateway, and returns its result with what it sent and logged.
async function alone({ base, key }, call) {
  const { UPSTASH_BOX_BASE_URL, UPSTASH_BOX_API_KEY, UPSTASH_DISABLE_TELEMETRY } = process.env;
  const { fetch } = globalThis, { log } = console;
  const sent = [], logged = [];
  Object.assign(process.env, { UPSTASH_BOX_BASE_URL: "http://127.0.0.1:9", UPSTASH_BOX_API_KEY: "wrong" });
  delete process.env.UPSTASH_DISABLE_TELEMETRY;
  globalThis.fetch = (url, init) => (sent.push(new Headers(init?.headers)), fetch(url, init));
  console.log = (...words) => logged.push(words.join(" "));
  try {
    return { value: await call({ apiKey: key, baseUrl: `${base}/`, enableTelemetry: false }), sent, logged };
  } finally {
    Object.assign(process.env, { UPSTASH_BOX_BASE_URL, UPSTASH_BOX_API_KEY, UPSTASH_DISABLE_TELEMETRY });
    Object.assign(globalThis, { fetch });
    Object.assign(console, { log });
  }
}

// anonymous asserts that requests have no telemetry.
const anonymous = (assert, sent) => assert.deepEqual([sent.length > 0, sent.some((h) => h.has("Upstash-Telemetry-Sdk"))], [true, false]);

// made makes a box whose options alone lead to the gateway, with a timeout and a debug log, and returns the box without them.
async function made(tools, make, config) {
  const { assert, stopped, Box, keep } = tools;
  const { value: box, sent } = await alone(tools, (connection) => make({ ...config, ...connection, timeout: 500, debug: true }));
  anonymous(assert, sent);
  const { logged } = await alone(tools, () => stopped(box.exec.command("sleep 15"), /Request timeout/));
  assert.match(logged.join("\n"), /^\[Box\] POST http/);
  return keep(await Box.get(box.id));
}

// alike asserts the options that all calls have which make a box.
async function alike({ assert, Box }, box, config, reached) {
  const [data] = (await Box.list({ label: config.labels[0] })).filter((b) => b.id === box.id);
  assert.deepEqual([data?.name, data.labels, data.size, data.runtime], [config.name, config.labels, config.size, config.runtime]);
  assert.deepEqual(box.networkPolicy, config.networkPolicy);
  assert.equal((await box.exec.command(`${probe}; echo $STAGE`)).stdout, `${reached}\n${config.env.STAGE}\n`);
  assert.equal(await attached(box), config.networkPolicy.mode === "deny-all" ? "000" : "200");
}

// attached returns the status of a request that needs the header of attachHeaders.
const attached = async (box) => (await box.exec.command(`curl -sS -o /dev/null -w '%{http_code}' -d '{"prompt":"hi"}' ${model}`)).stdout;
const attachHeaders = { "models.example.com": { "X-Api-Key": modelKey } };

const agents = (apiKey) => [
  { harness: "claude-code", model: "anthropic/claude-sonnet-4-5", apiKey },
  { provider: "codex", model: "openrouter/openai/o3", apiKey },
  { runner: "opencode", model: "openrouter/openai/o3", apiKey },
];
const harness = { command: "sh", args: ["-c", "printf 'event: strange\\ndata: {\"a\":1}\\n\\nevent: done\\ndata: {\"output\":\"own\"}\\n\\n'"], protocol: "box-sse-v1" };

// common are the options that all calls have which make a box, with one of the policies.
const common = (name, runtime, size, networkPolicy) => ({ name, runtime, size, networkPolicy, labels: ["of", name], env: { STAGE: name }, attachHeaders });

// variants makes boxes by a call with each policy and size, and then checks them, also with holds.
async function variants(tools, name, make, runtime, more = [{}, {}, {}], holds = () => {}) {
  const all = [];
  for (const [i, size] of ["small", "medium", "large"].entries()) {
    const config = { ...common(`${name}-${size}`, runtime, size, policies[i][0]), ...more[i] };
    all.push([i === 0 ? await made(tools, make, config) : await tools.Box.get(tools.keep(await make(config)).id), config, policies[i][1]]);
  }
  await Promise.all(all.map(async ([box, config, reached]) => {
    await alike(tools, box, config, reached);
    await holds(box, config);
  }));
}

// needs are the tests that others need.
export const needs = { "EphemeralBox.fromSnapshot": ["Box.fromSnapshot"], "calls of no box lead to the gateway by their options": ["Box.fromSnapshot", "Box.get"] };

export default {
  "Box.create": async (tools, s) => {
    const { assert, Box, until, call } = tools;
    const mcpServers = [{ name: "local", package: "@org/mcp", args: ["--fast"] }, { name: "far", url: "https://mcp.example.com/sse", headers: { "X-Mcp-Key": "of-mcp" } }];
    const [first, second, third] = agents(modelKey);
    await variants(tools, "create", (c) => Box.create(c), "node", [
      { agent: first, keepAlive: true, initCommand: "echo begun >begun", git: { token, userName: "Ann", userEmail: "ann@example.com" }, skills: ["acme/skills/one"], mcpServers },
      { agent: second }, { agent: third },
    ], async (box, config) => {
      const { harness, model } = box.modelConfig;
      assert.deepEqual([harness, model, box.keepAlive], [config.agent.harness ?? config.agent.provider ?? config.agent.runner, config.agent.model, config.keepAlive ?? false]);
      if (!config.keepAlive) return;
      assert.equal(await box.getInitCommand(), config.initCommand);
      await until("the init command", async () => (await box.exec.command("cat begun")).stdout === "begun\n");
      assert.deepEqual(await box.skills.list(), config.skills);
      const { mcp_servers } = (await call("GET", `/v2/box/${box.id}`)).json;
      assert.deepEqual(mcp_servers, [
        { name: "local", source: "npm", package_or_url: "@org/mcp", args: ["--fast"] }, { name: "far", source: "url", package_or_url: "https://mcp.example.com/sse", header_names: ["X-Mcp-Key"] },
      ]);
      assert.equal((await box.exec.command("curl -sS https://mcp.example.com/")).stdout, "[of-mcp]");
      const cloned = await box.exec.command("git clone -q https://github.com/acme/app && cd app && git config user.name && git config user.email");
      assert.equal(cloned.stdout, "Ann\nann@example.com\n", cloned.stderr);
    });
  },  "EphemeralBox.create": async (tools) => {
    const { EphemeralBox, assert } = tools;
    await variants(tools, "ephemeral", (c) => EphemeralBox.create({ ttl: 300, ...c }), "python");
    const box = tools.keep(await EphemeralBox.create({ ttl: 300 }));
    assert.ok(Math.abs(box.expiresAt - Date.now() / 1000 - 300) < 60);
  },
  "each runtime": async ({ assert, keep, Box }) => {
    const runtimes = ["node", "python", "golang", "ruby", "rust"].flatMap((r) => [r, `${r}-alpine`]);
    const all = await Promise.all(runtimes.map(async (runtime) => keep(await Box.create({ runtime, labels: ["runtimes"] }))));
    const listed = await Box.list({ label: "runtimes" });
    assert.deepEqual(all.map((box) => listed.find((b) => b.id === box.id)?.runtime), runtimes);
    const ruby = all[runtimes.indexOf("ruby")]; // an image of its own
    assert.equal((await ruby.exec.command("ls /usr/lib/boxgate/agents/codex")).exitCode, 0);
  },
  "Box.fromSnapshot": async (tools, s) => {
    const { assert, Box, until, keep, call } = tools;
    const plain = keep(await Box.create({ runtime: "node" }));
    s.plain = (await plain.snapshot({ name: "plain" })).id;
    s.agent = (await keep(await Box.create({ agent: agents(modelKey)[0] })).snapshot({ name: "with an agent" })).id;
    await variants(tools, "restored", (c) => Box.fromSnapshot(s.plain, c), "node", [
      { keepAlive: true, initCommand: "echo begun >begun", git: { token } }, { agent: agents(modelKey)[1] }, { agent: agents(modelKey)[2] },
    ], async (box, config) => {
      assert.equal(box.modelConfig.harness, config.agent?.provider ?? config.agent?.runner);
      assert.equal(box.modelConfig.model, config.agent?.model);
      if (!config.keepAlive) return;
      assert.equal(await box.getInitCommand(), config.initCommand);
      await until("the init command", async () => (await box.exec.command("cat begun")).stdout === "begun\n");
      assert.equal((await box.exec.command("git clone -q https://github.com/acme/app")).exitCode, 0);
    });
    const restored = keep(await Box.fromSnapshot(s.agent, { agent: agents(modelKey)[0] })); // a snapshot has no keys
    assert.equal(JSON.parse((await restored.agent.run({ prompt: "hello" })).result).prompt, "hello");
    const own = keep(await Box.fromSnapshot(s.plain, { agent: { harness: "custom", model: "own-model", customHarness: harness } }));
    assert.deepEqual((await call("GET", `/v2/box/${own.id}`)).json.custom_runner, harness);
    assert.deepEqual([own.modelConfig.harness, own.modelConfig.model, (await own.agent.run({ prompt: "x" })).result], ["custom", "own-model", "own"]);
  },
  "EphemeralBox.fromSnapshot": async (tools, s) => {
    await variants(tools, "brief", (c) => tools.EphemeralBox.fromSnapshot(s.plain, { ttl: 300, ...c }), "node");
    const box = tools.keep(await tools.EphemeralBox.fromSnapshot(s.plain, { ttl: 300 }));
    tools.assert.ok(Math.abs(box.expiresAt - Date.now() / 1000 - 300) < 60);
  },
  "a harness of one's own": async ({ assert, keep, collect, call, Box }) => {
    const box = keep(await Box.create({ agent: { harness: "custom", model: "own-model", customHarness: harness } }));
    const stored = async () => (await call("GET", `/v2/box/${box.id}`)).json.custom_runner;
    assert.deepEqual([box.modelConfig.model, await stored()], ["own-model", harness]);
    const { chunks } = await collect(await box.agent.stream({ prompt: "x" }));
    assert.deepEqual(chunks.filter((c) => c.type === "unknown").map((c) => [c.event, c.data]), [["strange", { a: 1 }]]);
    const other = { ...harness, args: ["-c", harness.args[1].replace("own", "other")] };
    await box.configureCustomHarness(other);
    assert.deepEqual(await stored(), other);
    assert.equal((await box.agent.run({ prompt: "x" })).result, "other");
  },
  "Box.get": async (tools, s) => {
    const { assert, Box, keep, stopped } = tools;
    s.box = keep(await Box.create({ labels: ["got"] }));
    const box = await made(tools, (options) => Box.get(s.box.id, options));
    assert.equal(box.id, s.box.id);
    assert.equal((await box.exec.command("git clone -q https://github.com/acme/app once")).exitCode, 128);
    await assert.rejects(box.git.clone({ repo: "https://github.com/acme/app" }));
    await (await Box.get(s.box.id, { gitToken: token })).git.clone({ repo: "https://github.com/acme/app" });
    assert.equal(await box.files.read("app/README.md"), "An application.\n");
  },
  "calls of no box lead to the gateway by their options": async (tools, s) => {
    const { assert, Box, EphemeralBox } = tools;
    const by = async (call) => {
      const { value, sent } = await alone(tools, call);
      anonymous(assert, sent);
      return value;
    };
    assert.deepEqual((await by((o) => Box.list({ ...o, label: "got" }))).map((b) => b.id), [s.box.id]);
    await by((o) => Box.setEnv("ONE", "1", o));
    assert.deepEqual(Object.keys(await by((o) => Box.listEnv(o))), ["ONE"]);
    await by((o) => Box.deleteEnv("ONE", o));
    await by((o) => Box.setAllEnv({ TWO: "2" }, o));
    assert.deepEqual(Object.keys(await by((o) => Box.listEnv(o))), ["TWO"]);
    await Box.setAllEnv({});
    assert.deepEqual(await by((o) => Box.deleteSnapshots({ ...o, snapshotIds: [s.agent] })), { deleted: 1 });
    await by((o) => Box.delete({ ...o, boxIds: s.box.id }));
    await assert.rejects(Box.get(s.box.id), /no box/);
  },
  "telemetry is taken": async (tools) => {
    const { sent } = await alone(tools, (options) => tools.Box.list({ ...options, enableTelemetry: true }));
    tools.assert.match(sent[0].get("Upstash-Telemetry-Sdk"), /^@upstash\/box@/);
  },
};
