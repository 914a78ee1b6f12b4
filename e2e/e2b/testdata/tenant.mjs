// A program of a tenant: it knows E2B's SDK and two variables, E2B_API_KEY and E2B_DOMAIN. It prints each step.
import { ALL_TRAFFIC, CommandExitError, Sandbox, SandboxNotFoundError } from "e2b";
import assert from "node:assert/strict";

const step = (text) => console.log(text);
const key = "sk-key-of-the-tenant";
const server = `
import http.server, json, os
class H(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_GET(self):
        H.count += 1
        body = json.dumps({"count": H.count, "headers": list(self.headers.keys()), "greeting": os.environ["GREETING"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), H).serve_forever()
`;

step("create from a template");
const sandbox = await Sandbox.create("base", {
  timeoutMs: 300_000,
  metadata: { tenant: "acme", job: "report" },
  envs: { GREETING: "hello" },
  lifecycle: { onTimeout: "pause", autoResume: true },
  network: {
    allowOut: ({ rules }) => [...rules.keys(), "www.example.com"],
    denyOut: [ALL_TRAFFIC],
    allowPublicTraffic: false,
    rules: { "api.example.com": [{ transform: { headers: { Authorization: `Bearer ${key}` } } }] },
  },
});

step("files");
await sandbox.files.write("app/server.py", server);
await sandbox.files.write([{ path: "app/data.json", data: JSON.stringify({ n: 7 }) }, { path: "app/script.py", data: "import json\nprint(json.load(open('app/data.json'))['n'] * 6)\n" }]);
assert.deepEqual((await sandbox.files.list("app")).map((e) => e.name).sort(), ["data.json", "script.py", "server.py"]);
const changes = [];
const watch = await sandbox.files.watchDir("app", (e) => { changes.push(`${e.type} ${e.name}`); });

step("commands");
assert.equal((await sandbox.commands.run("python3 app/script.py > app/out && cat app/out")).stdout, "42\n");
const failure = await sandbox.commands.run("exit 3").catch((e) => e);
assert.ok(failure instanceof CommandExitError && failure.exitCode === 3, String(failure));
await until("the change", () => changes.includes("create out"));
await watch.stop();

step("network: a header set outside, a denied host");
const digest = (await sandbox.commands.run("curl -sS https://api.example.com/")).stdout;
assert.equal(digest, await sha256(`Bearer ${key}`));
assert.equal((await sandbox.commands.run("grep -rl sk-key-of-the /home/user /tmp /etc 2>/dev/null; env | grep sk-key-of-the; true")).stdout, "");
assert.equal((await sandbox.commands.run("curl -sS -m 10 -o /dev/null https://www.example.com/ && echo reached")).stdout, "reached\n");
assert.match((await sandbox.commands.run("curl -sS -f -m 10 -o /dev/null https://evil.example.net/ && echo reached || echo denied")).stdout, /denied/);

step("a server on a port, with the token");
await sandbox.commands.run("exec python3 app/server.py", { background: true, timeoutMs: 0 });
const visit = (headers) => fetch(`https://${sandbox.getHost(8080)}/`, { headers });
const withToken = { "e2b-traffic-access-token": sandbox.trafficAccessToken };
const first = await until("the server", async () => { const r = await visit(withToken); return r.status === 200 && r.json(); });
assert.equal(first.greeting, "hello");
assert.ok(!first.headers.some((h) => /traffic-access-token/i.test(h)));
assert.ok([401, 403].includes((await visit({})).status));

step("pause, and resume by traffic");
await sandbox.pause();
assert.equal((await sandbox.getInfo()).state, "paused");
const again = await until("the server again", async () => { const r = await visit(withToken); return r.status === 200 && r.json(); });
assert.equal(again.count, first.count + 1, "the server was started anew");
assert.equal((await sandbox.getInfo()).state, "running");

step("a snapshot, and a sandbox from it");
const snapshot = await sandbox.createSnapshot();
await sandbox.files.write("app/data.json", "changed");
const copy = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 120_000 });
assert.equal(JSON.parse(await copy.files.read("app/data.json")).n, 7);
await copy.kill();

step("a link to a result");
const link = await sandbox.downloadUrl("app/out", { useSignatureExpiration: 60 });
assert.equal(await (await fetch(link)).text(), "42\n");

step("list, connect, kill");
const [listed] = await Sandbox.list({ query: { metadata: { tenant: "acme" } } }).nextItems();
assert.equal(listed.sandboxId, sandbox.sandboxId);
const other = await Sandbox.connect(listed.sandboxId);
assert.equal(await other.files.read("app/data.json"), "changed");
assert.equal(await other.kill(), true);
await assert.rejects(Sandbox.getInfo(sandbox.sandboxId), SandboxNotFoundError);
assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true);
step("done");
process.exit();

async function sha256(text) {
  return Buffer.from(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text))).toString("hex");
}

async function until(what, holds) {
  for (const end = Date.now() + 60_000; Date.now() < end; await new Promise((r) => setTimeout(r, 100))) {
    const value = await holds();
    if (value) return value;
  }
  assert.fail(`waited in vain for ${what}`);
}
