// Who may not, and how it looks. envd makes a call to the API inside a sandbox.
async function envd(box, path, { body, headers, method = "POST" } = {}) {
  const answer = await fetch(`https://${box.getHost(49983)}${path}`, { method, headers: { "Content-Type": "application/json", "E2b-Sandbox-Id": box.sandboxId, ...headers }, body: method === "GET" ? undefined : JSON.stringify(body ?? {}) });
  return { status: answer.status, text: await answer.text() };
}
const stat = (box, token) => envd(box, "/filesystem.Filesystem/Stat", { body: { path: "/etc/passwd" }, headers: token === undefined ? {} : { "X-Access-Token": token } });

export default {
  "two sandboxes, and a key with one of its own": async ({ create, admin, E2B, domain, keep }, s) => {
    [s.box, s.other] = await Promise.all([create({ timeoutMs: 300_000 }), create({ timeoutMs: 300_000 })]);
    s.made = await admin("POST", "/v2/api-keys", { name: "tenant", role: "box-creator" });
    s.tenant = new E2B({ apiKey: s.made.key, domain });
    s.theirs = keep(await s.tenant.Sandbox.create({ timeoutMs: 300_000 }));
  },
  "a wrong key": async ({ fails, sdk, Sandbox }) => {
    await fails(Sandbox.create({ apiKey: "e2b_0000" }), sdk.AuthenticationError, /Unauthorized/);
    await fails(Sandbox.list({ apiKey: "e2b_0000" }).nextItems(), sdk.AuthenticationError, /Unauthorized/);
  },
  "the API of E2B's host is no other API": async ({ assert, domain, key }) => {
    for (const path of ["/v2/box", "/v2/api-keys", "/openapi.json", "/ui", "/healthz", "/metrics"]) {
      const answer = await fetch(`https://api.${domain}${path}`, { headers: { "X-API-KEY": key, "X-Box-Api-Key": key } });
      assert.equal(answer.status, 404, path);
    }
  },
  "another key's sandbox does not exist": async ({ assert, fails, sdk }, s) => {
    await fails(s.tenant.Sandbox.getInfo(s.box.sandboxId), sdk.SandboxNotFoundError, /not found/);
    await fails(s.tenant.Sandbox.connect(s.box.sandboxId), sdk.SandboxNotFoundError, /not found/);
    await fails(s.tenant.Sandbox.updateNetwork(s.box.sandboxId, {}), sdk.SandboxNotFoundError, /not found/);
    assert.equal(await s.tenant.Sandbox.kill(s.box.sandboxId), false);
    assert.ok(!(await s.tenant.Sandbox.list().nextItems()).some((i) => i.sandboxId === s.box.sandboxId));
    assert.equal(await s.box.isRunning(), true);
  },
  "a key that only reads": async ({ admin, fails, sdk, E2B, domain, assert }, s) => {
    const { key } = await admin("POST", "/v2/api-keys", { name: "reader", role: "read-only" });
    const reader = new E2B({ apiKey: key, domain }).Sandbox;
    assert.equal((await reader.getInfo(s.box.sandboxId)).sandboxId, s.box.sandboxId);
    await fails(reader.create(), sdk.SandboxError, /^403: /);
    const outcome = await reader.connect(s.box.sandboxId).then((box) => box.commands.run("true"), (e) => e).catch((e) => e);
    assert.ok(outcome instanceof Error && /403|nauthorized|nauthenticated/.test(outcome.message), String(outcome));
    await fails(reader.pause(s.box.sandboxId), sdk.SandboxError, /^403: /);
  },
  "calls without an access token": async ({ assert }, s) => {
    assert.equal((await stat(s.box)).status, 401);
    assert.equal((await envd(s.box, "/process.Process/List")).status, 401);
    assert.equal((await envd(s.box, "/files?path=/etc/passwd", { method: "GET" })).status, 401);
  },
  "a wrong access token": async ({ assert }, s) => {
    const own = s.box.envdAccessToken;
    assert.equal((await stat(s.box, own)).status, 200);
    assert.equal((await stat(s.box, "wrong")).status, 401);
    assert.equal((await stat(s.box, own.slice(0, -2) + (own.endsWith("aa") ? "bb" : "aa"))).status, 401);
  },
  "another sandbox's access token": async ({ assert }, s) => {
    assert.equal((await stat(s.box, s.other.envdAccessToken)).status, 401);
    assert.equal((await stat(s.box, s.theirs.envdAccessToken)).status, 401);
    const body = { path: "/etc/passwd" }, headers = { "X-Access-Token": s.other.envdAccessToken, "E2b-Sandbox-Id": s.other.sandboxId };
    const answer = await envd(s.box, "/filesystem.Filesystem/Stat", { body, headers });
    assert.ok(answer.status >= 400, "the header names another sandbox than the host");
  },
  "an API key is no access token, nor the traffic token": async ({ assert, key }, s) => {
    assert.equal((await stat(s.box, key)).status, 401);
    assert.equal((await stat(s.box, s.box.trafficAccessToken ?? "none")).status, 401);
  },
  "a signature for another path, another sandbox, another operation": async ({ assert }, s) => {
    await s.box.files.write("/tmp/signed", "x");
    const url = new URL(await s.box.downloadUrl("/tmp/signed", { useSignatureExpiration: 60 }));
    assert.equal((await fetch(url)).status, 200);
    const changed = (change) => { const u = new URL(url); change(u); return fetch(u).then((r) => r.status); };
    assert.equal(await changed((u) => u.searchParams.set("path", "/etc/passwd")), 401);
    assert.equal(await changed((u) => { u.hostname = s.other.getHost(49983); }), 401);
    assert.equal(await changed((u) => u.searchParams.set("username", "root")), 401);
    assert.equal(await changed((u) => u.searchParams.set("signature_expiration", "99999999999")), 401);
    assert.equal(await changed((u) => u.searchParams.delete("signature_expiration")), 401);
    assert.equal((await fetch(url, { method: "POST", body: "x", headers: { "Content-Type": "application/octet-stream" } })).status, 401);
  },
  "an expired signature": async ({ assert, getSignature }, s) => {
    const { signature, expiration } = await getSignature({ path: "/tmp/signed", operation: "read", user: undefined, expirationInSeconds: -10, envdAccessToken: s.box.envdAccessToken });
    const url = `https://${s.box.getHost(49983)}/files?path=/tmp/signed&signature=${encodeURIComponent(signature)}&signature_expiration=${expiration}`;
    assert.equal((await fetch(url)).status, 401);
  },
  "paths of another sandbox and of the host": async ({ assert, fails, sdk }, s) => {
    await s.other.files.write("private", "x");
    await fails(s.box.files.read("/home/user/private"), sdk.FileNotFoundError, /private/);
    await fails(s.box.files.read("/proc/1/root/../../var/lib/boxgate/api-key"), Error, /./);
    await s.box.commands.run("ln -sf /proc/1/root/etc link && ln -s / up");
    assert.equal(await s.box.files.read("up/etc/passwd"), await s.box.files.read("/etc/passwd"));
  },
  "initialising the API is refused": async ({ assert }, s) => {
    const answer = await envd(s.box, "/init", { body: { accessToken: "mine", envVars: {} }, headers: { "X-Access-Token": s.box.envdAccessToken } });
    assert.ok([403, 404, 501].includes(answer.status), `${answer.status} ${answer.text}`);
    assert.equal((await stat(s.box, s.box.envdAccessToken)).status, 200);
  },
  "what a call of an unknown method looks like": async ({ assert }, s) => {
    const headers = { "X-Access-Token": s.box.envdAccessToken };
    const answer = await envd(s.box, "/process.Process/Explode", { headers });
    assert.ok([403, 404, 501].includes(answer.status), String(answer.status));
    const bad = await envd(s.box, "/filesystem.Filesystem/Stat", { headers, body: { path: 7 } });
    assert.equal(JSON.parse(bad.text).code, "invalid_argument");
  },
  "a revoked key": async ({ admin, assert, fails, until, sdk }, s) => {
    let ended;
    const stream = await s.theirs.commands.run("sleep 1000", { background: true, timeoutMs: 0 });
    stream.wait().then(() => { ended = true; }, (e) => { ended = e; });
    const url = await s.theirs.downloadUrl("/etc/passwd");
    assert.equal((await fetch(url)).status, 200);
    await admin("DELETE", `/v2/api-keys/${s.made.id}`);
    await until("the end of its streams", () => ended);
    assert.equal((await stat(s.theirs, s.theirs.envdAccessToken)).status, 401);
    assert.equal((await fetch(url)).status, 401);
    await fails(s.tenant.Sandbox.list().nextItems(), sdk.AuthenticationError, /Unauthorized/);
    await fails(s.theirs.commands.run("true"), sdk.AuthenticationError, /./);
  },
  "a killed sandbox": async ({ assert, Sandbox }, s) => {
    const token = s.other.envdAccessToken;
    await s.other.kill();
    const answer = await stat(s.other, token);
    assert.ok([401, 404, 502, 503].includes(answer.status), `${answer.status} ${answer.text}`);
    assert.equal(await s.other.isRunning(), false);
  },
  "calls are in the audit trail": async ({ admin, assert, until }, s) => {
    await s.box.commands.run("true");
    await until("the call", async () => (await admin("GET", "/v2/audit")).includes(s.box.sandboxId));
  },
};
