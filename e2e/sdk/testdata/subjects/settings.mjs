export default {
  "labels": async ({ create, assert, refused, Box }, s) => {
    s.box = await create({ labels: ["one"], agent: { harness: "claude-code", model: "anthropic/claude-sonnet-4-5", apiKey: "agent-key" } });
    assert.deepEqual(await s.box.labels.add("two"), ["one", "two"]);
    assert.deepEqual(await s.box.labels.list(), ["one", "two"]);
    assert.deepEqual(await s.box.labels.remove("one"), ["two"]);
    assert.equal((await Box.list({ label: "two" })).length, 1);
    await refused(s.box.labels.add("not a label"), 422, /label/);
  },
  "skills": async ({ assert }, s) => {
    assert.deepEqual(await s.box.skills.list(), []);
    await s.box.skills.add("upstash/qstash-js/qstash-js");
    assert.deepEqual(await s.box.skills.list(), ["upstash/qstash-js/qstash-js"]);
    await s.box.skills.remove("upstash/qstash-js/qstash-js");
    assert.deepEqual(await s.box.skills.list(), []);
  },
  "the model": async ({ assert, Box }, s) => {
    assert.equal(s.box.modelConfig.model, "anthropic/claude-sonnet-4-5");
    await s.box.configureModel("anthropic/claude-haiku-4-5");
    assert.equal(s.box.modelConfig.model, "anthropic/claude-haiku-4-5");
    const again = await Box.get(s.box.id);
    assert.equal(again.modelConfig.model, "anthropic/claude-haiku-4-5");
    assert.equal(again.modelConfig.harness, "claude-code");
  },
  "the network policy": async ({ assert, refused, Box }, s) => {
    assert.deepEqual(s.box.networkPolicy, { mode: "allow-all" });
    await s.box.updateNetworkPolicy({ mode: "custom", allowedDomains: ["api.example.com"], deniedCidrs: ["192.0.2.0/24"] });
    const fetched = (host) => s.box.exec.command(`curl -ksS -o /dev/null https://${host}/`);
    assert.equal((await fetched("api.example.com")).exitCode, 0);
    assert.equal((await fetched("www.example.com")).exitCode, 35); // curl's "TLS handshake failed": the name resolves, its connection is refused
    const again = (await Box.get(s.box.id)).networkPolicy;
    assert.equal(again.mode, "custom");
    assert.deepEqual(again.allowedDomains, ["api.example.com"]);
    await s.box.updateNetworkPolicy({ mode: "deny-all" });
    assert.equal((await fetched("api.example.com")).exitCode, 35);
    await refused(s.box.updateNetworkPolicy({ mode: "custom", allowedDomains: ["https://x/"] }), 422, /\/allowed_domains\/0/);
  },
  "MCP servers and headers are taken, and their values kept": async ({ create, assert, call }) => {
    const box = await create({
      mcpServers: [{ name: "remote", url: "https://mcp.example.com/sse", headers: { "X-Key": "mcp-value" } }, { name: "local", package: "@org/mcp" }],
      attachHeaders: { "api.example.com": { Authorization: "Bearer attached-value" } },
    });
    const { text } = await call("GET", `/v2/box/${box.id}`);
    assert.ok(text.includes("mcp.example.com") && !text.includes("mcp-value") && !text.includes("attached-value"), text);
    assert.equal((await box.exec.command("env | grep -c attached-value || true")).stdout, "0\n");
  },
};
