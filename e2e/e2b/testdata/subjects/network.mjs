const secret = "sk-the-secret-of-the-network-test";
const digests = process.env.DIGESTS;
const code = (box, url, options = "") => box.commands.run(`curl -sS -m 20 -o /dev/null -w '%{http_code}' ${options} ${url} || echo failed`).then((d) => d.stdout);
const reaches = async (assert, box, url) => assert.equal(await code(box, url), "200", url);
const blocked = async (assert, box, url) => assert.match(await code(box, url), /failed|^403/, url);

// serve starts a server that shows the headers of each request.
const serve = (box, port) => box.commands.run(`exec python3 -c '
import http.server, json
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"path": self.path, "headers": dict(self.headers)}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("0.0.0.0", ${port}), H).serve_forever()
'`, { background: true, timeoutMs: 0 });
const get = (box, port, headers, path = "/") => fetch(`https://${box.getHost(port)}${path}`, { headers });
const token = (box) => ({ "e2b-traffic-access-token": box.trafficAccessToken });

export default {
  "a sandbox without options reaches the internet": async ({ create, assert }) => {
    const box = await create({ timeoutMs: 120_000 });
    await reaches(assert, box, "https://www.example.com/");
    assert.notEqual((await box.getInfo()).allowInternetAccess, false);
  },
  "without internet access it reaches nothing": async ({ create, assert }) => {
    const box = await create({ allowInternetAccess: false, timeoutMs: 120_000 });
    await blocked(assert, box, "https://www.example.com/");
    await blocked(assert, box, "http://198.51.100.12/");
    assert.equal((await box.getInfo()).allowInternetAccess, false);
  },
  "only the allowed hosts": async ({ create, assert, ALL_TRAFFIC }, s) => {
    s.box = await create({ network: { allowOut: ["www.example.com"], denyOut: [ALL_TRAFFIC] }, timeoutMs: 300_000 });
    await reaches(assert, s.box, "https://www.example.com/");
    await blocked(assert, s.box, "https://evil.example.net/");
    await blocked(assert, s.box, "http://198.51.100.12/");
    const { network } = await s.box.getInfo();
    assert.deepEqual([network.allowOut, network.denyOut], [["www.example.com"], [ALL_TRAFFIC, "::/0"]]);
  },
  "selectors are functions": async ({ create, assert }) => {
    const box = await create({ network: { allowOut: ({ rules }) => [...rules.keys()], denyOut: ({ allTraffic }) => [allTraffic], rules: { [digests]: [{}] } }, timeoutMs: 120_000 });
    await reaches(assert, box, `https://${digests}/`);
    await blocked(assert, box, "https://www.example.com/");
  },
  "denied addresses": async ({ create, assert }) => {
    const box = await create({ network: { denyOut: ["198.51.100.12/32"] }, timeoutMs: 120_000 });
    await blocked(assert, box, "http://198.51.100.12/");
    await reaches(assert, box, "https://www.example.com/");
  },
  "the network of a running sandbox changes": async ({ assert, Sandbox }, s) => {
    await s.box.updateNetwork({ allowOut: ["plain.example.com"], denyOut: ["0.0.0.0/0"] });
    await reaches(assert, s.box, "http://plain.example.com/");
    await blocked(assert, s.box, "https://www.example.com/");
    await Sandbox.updateNetwork(s.box.sandboxId, { allowInternetAccess: false });
    await blocked(assert, s.box, "http://plain.example.com/");
    await s.box.updateNetwork({});
    await reaches(assert, s.box, "https://www.example.com/");
  },
  "a rule sets a header that never enters the sandbox": async ({ create, assert, sha256 }, s) => {
    s.injected = await create({ network: { allowOut: [digests], denyOut: ["0.0.0.0/0"], rules: { [digests]: [{ transform: { headers: { Authorization: `Bearer ${secret}` } } }] } }, timeoutMs: 300_000 });
    assert.equal((await s.injected.commands.run(`curl -sS -H 'Authorization: own' https://${digests}/`)).stdout, sha256(`Bearer ${secret}`));
    const found = await s.injected.commands.run(`grep -rls ${secret.slice(0, 12)} /home /tmp /etc /workspace 2>/dev/null | grep -v '^/proc'; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -v '^_' | grep sk-the-secret; true`);
    assert.equal(found.stdout, "");
    const { network } = await s.injected.getInfo();
    assert.ok(!JSON.stringify(network).includes(secret), "the API shows the secret");
    assert.deepEqual(Object.keys(network.rules), [digests]);
  },
  "a header with a secret of the operator's": async ({ create, assert, sha256, Secret }) => {
    const box = await create({ network: { rules: { [digests]: [{ transform: { headers: { Authorization: `Bearer ${Secret.fill("openai")}` } } }] } }, timeoutMs: 120_000 });
    assert.equal((await box.commands.run(`curl -sS https://${digests}/`)).stdout, sha256("Bearer sk-of-the-operator"));
  },
  "a header with a secret of the API key": async ({ admin, assert, sha256, sdk, fails }) => {
    const own = await admin("POST", "/v2/api-keys", { name: "secrets-own", role: "box-creator" });
    const foreign = await admin("POST", "/v2/api-keys", { name: "secrets-foreign", role: "box-creator" });
    const mine = new sdk.E2B({ apiKey: own.key }), theirs = new sdk.E2B({ apiKey: foreign.key });
    const network = (name, host = digests) => ({ rules: { [host]: [{ transform: { headers: { Authorization: `Bearer ${mine.Secret.fill(name)}` } } }] } });
    const made = await mine.Secret.create("openai", "sk-of-the-tenant", { metadata: { of: "tenant" } });
    assert.deepEqual([made.name, made.version, made.metadata], ["openai", 1, { of: "tenant" }]);
    assert.deepEqual((await mine.Secret.list().nextItems()).map((i) => i.name), ["openai"]);
    const box = await mine.Sandbox.create({ network: network("openai"), timeoutMs: 120_000 });
    const seen = async () => (await box.commands.run(`curl -sS https://${digests}/`)).stdout;
    try {
      assert.equal(await seen(), sha256("Bearer sk-of-the-tenant"));
      // Another key neither sees, uses, changes nor deletes it, by its name or its ID.
      assert.deepEqual(await theirs.Secret.list().nextItems(), []);
      assert.equal(await theirs.Secret.exists("openai"), false);
      assert.equal(await theirs.Secret.destroy("openai"), false);
      await fails(theirs.Secret.update("openai", "stolen"), sdk.SecretNotFoundError, /not found/);
      for (const name of ["openai", `${own.id}:openai`]) await fails(theirs.Sandbox.create({ network: network(name) }), sdk.SandboxError, /^400: .*secret/);
      assert.deepEqual(await theirs.Sandbox.list().nextItems(), []);
      // The next request has a new value.
      assert.equal((await mine.Secret.update("openai", "sk-second")).version, 2);
      assert.equal(await seen(), sha256("Bearer sk-second"));
      assert.ok(!JSON.stringify([await mine.Secret.getInfo("openai"), await box.getInfo(), await admin("GET", "/v2/key-secrets"), await admin("GET", "/v2/audit"), await admin("GET", `/v2/box/${box.sandboxId}/config/attach-headers`)]).match(/sk-second|sk-of-the-tenant/), "a value is shown");
      // A secret for one host goes to no other.
      const bound = await fetch(`${process.env.BOXGATE_URL}/v2/key-secrets`, { method: "POST", headers: { "X-Box-Api-Key": own.key, "Content-Type": "application/json" }, body: JSON.stringify({ name: "bound", value: "sk-bound", hosts: ["other.example.com"] }) });
      assert.equal(bound.status, 201, await bound.text());
      await fails(box.updateNetwork(network("bound")), sdk.SandboxError, /^400: .*other\.example\.com/);
      assert.equal(await seen(), sha256("Bearer sk-second"));
      // Without the secret there is no request.
      assert.equal(await mine.Secret.destroy("openai"), true);
      assert.match((await box.commands.run(`curl -sS -i https://${digests}/`)).stdout, /^HTTP\S+ 502[^]*secret_unavailable/);
      await mine.Secret.create("openai", "sk-third");
      assert.equal(await seen(), sha256("Bearer sk-third"));
      // It ends with its key.
      await admin("DELETE", `/v2/api-keys/${own.id}`);
      assert.ok(!(await admin("GET", "/v2/key-secrets")).key_secrets.some((s) => s.key_id === own.id));
    } finally {
      await sdk.Sandbox.kill(box.sandboxId);
      await admin("DELETE", `/v2/api-keys/${foreign.id}`);
    }
  },
  "rules of a running sandbox change": async ({ assert, sha256 }, s) => {
    await s.injected.updateNetwork({ allowOut: [digests], denyOut: ["0.0.0.0/0"], rules: { [digests]: [{ transform: () => ({ headers: { Authorization: "second" } }) }] } });
    assert.equal((await s.injected.commands.run(`curl -sS https://${digests}/`)).stdout, sha256("second"));
    await s.injected.updateNetwork({ allowOut: [digests], denyOut: ["0.0.0.0/0"] });
    assert.equal((await s.injected.commands.run(`curl -sS https://${digests}/`)).stdout, sha256(""));
  },
  "what restricts nothing is refused": async ({ fails, sdk, Sandbox }) => {
    await fails(Sandbox.create({ network: { allowOut: ["www.example.com"] } }), sdk.SandboxError, /^4\d\d: /);
    await fails(Sandbox.create({ network: { allowOut: ["https://www.example.com/"], denyOut: ["0.0.0.0/0"] } }), sdk.SandboxError, /^4\d\d: /);
  },
  "a refused network leaves no sandbox": async ({ assert, fails, sdk, Sandbox }) => {
    const metadata = { of: "refused" };
    await fails(Sandbox.create({ metadata, network: { allowOut: ["a b"], denyOut: ["0.0.0.0/0"] } }), sdk.SandboxError, /^4\d\d: /);
    assert.deepEqual(await Sandbox.list({ query: { metadata } }).nextItems(), []);
  },
  "a port with the traffic token": async ({ create, assert, until }, s) => {
    s.web = await create({ timeoutMs: 300_000, network: { allowPublicTraffic: false } });
    assert.ok(s.web.trafficAccessToken);
    await serve(s.web, 3000);
    const answer = await until("the server", async () => { const r = await get(s.web, 3000, token(s.web), "/a?b=c"); return r.status === 200 && r.json(); });
    assert.equal(answer.path, "/a?b=c");
    assert.ok(!JSON.stringify(answer.headers).includes(s.web.trafficAccessToken), "the token reached the sandbox");
  },
  "without it, or with a wrong one, not": async ({ assert }, s) => {
    assert.ok([401, 403].includes((await get(s.web, 3000)).status));
    assert.ok([401, 403].includes((await get(s.web, 3000, { "e2b-traffic-access-token": "wrong" })).status));
  },
  "a port where nothing listens": async ({ assert }, s) => {
    assert.equal((await get(s.web, 3999, token(s.web))).status, 502);
  },
  "connect gives the traffic token again": async ({ assert, Sandbox }, s) => {
    const again = await Sandbox.connect(s.web.sandboxId);
    assert.ok(again.trafficAccessToken);
    assert.equal((await get(s.web, 3000, token(again))).status, 200);
  },
  "the Host that the sandbox sees": async ({ create, assert, until }) => {
    const outcome = await create({ timeoutMs: 120_000, network: { maskRequestHost: "localhost:${PORT}" } }).catch((e) => e);
    if (outcome instanceof Error) { assert.match(outcome.message, /maskRequestHost/); return; }
    await serve(outcome, 3000);
    const answer = await until("the server", async () => { const r = await get(outcome, 3000, token(outcome)); return r.status === 200 && r.json(); });
    assert.equal(answer.headers.Host ?? answer.headers.host, "localhost:3000");
  },
  "a proxy with a password is refused as an address": async ({ fails, sdk, Sandbox }) => {
    await fails(Sandbox.create({ network: { egressProxy: { address: "198.51.100.7:1080", username: "u", password: "p" } } }), sdk.SandboxError, /^4\d\d: /);
  },
};
