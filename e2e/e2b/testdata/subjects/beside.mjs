// The two dialects on one gateway, with the SDK of each.
import { Box } from "@upstash/box";

process.env.UPSTASH_BOX_BASE_URL = process.env.BOXGATE_URL;
process.env.UPSTASH_BOX_API_KEY = process.env.E2B_API_KEY;

export default {
  "a box of Upstash's SDK is a sandbox": async ({ assert, Sandbox, keep, admin }, s) => {
    s.box = await Box.create({ name: "from-upstash" });
    await s.box.files.write({ path: "note", content: "by Upstash's" });
    await admin("PUT", `/v2/box/${s.box.id}/config/labels`, { team: "blue" }).catch(() => {});
    const pages = Sandbox.list();
    const listed = [];
    while (pages.hasNext) listed.push(...(await pages.nextItems()));
    assert.ok(listed.some((i) => i.sandboxId === s.box.id), "it is not listed");
    const same = keep(await Sandbox.connect(s.box.id));
    const pwd = (await same.commands.run("pwd")).stdout.trim();
    assert.equal(await same.files.read(`${(await s.box.exec.command("pwd")).stdout.trim()}/note`), "by Upstash's");
    await same.files.write("answer", "by E2B's");
    assert.equal((await s.box.exec.command(`cat ${pwd}/answer`)).stdout, "by E2B's");
  },
  "a sandbox is a box of Upstash's SDK": async ({ assert, create }, s) => {
    s.sandbox = await create({ timeoutMs: 300_000, network: { allowOut: ["www.example.com"], denyOut: ["0.0.0.0/0"] } });
    await s.sandbox.files.write("note", "by E2B's");
    assert.ok((await Box.list()).some((b) => b.id === s.sandbox.sandboxId), "it is not listed");
    const same = await Box.get(s.sandbox.sandboxId);
    assert.equal((await same.exec.command("cat /home/user/note; whoami")).stdout, "by E2B'suser\n");
    assert.deepEqual(same.networkPolicy.allowedDomains, ["www.example.com"]);
  },
  "a policy set by one applies to the other": async ({ assert }, s) => {
    const same = await Box.get(s.sandbox.sandboxId);
    await same.updateNetworkPolicy({ mode: "deny-all" });
    const info = await s.sandbox.getInfo();
    assert.equal(info.allowInternetAccess, false);
    assert.match((await s.sandbox.commands.run("curl -sS -m 10 -o /dev/null -w '%{http_code}' https://www.example.com/ || echo failed")).stdout, /failed|403/);
  },
  "paused by one, resumed by the other": async ({ assert }, s) => {
    await s.sandbox.pause();
    const same = await Box.get(s.sandbox.sandboxId);
    assert.equal((await same.getStatus()).status, "paused");
    await same.resume();
    assert.equal((await s.sandbox.getInfo()).state, "running");
    await s.box.pause();
    const { state } = await s.sandbox.constructor.getInfo(s.box.id);
    assert.equal(state, "paused");
  },
  "a snapshot of one is a template of the other": async ({ assert, create }, s) => {
    await s.box.resume();
    const snapshot = await s.box.snapshot({ name: "both" });
    const box = await create(snapshot.id, { timeoutMs: 120_000 });
    assert.match((await box.commands.run("cat note /workspace/home/note 2>/dev/null || true")).stdout, /by Upstash's/);
    await box.kill();
  },
  "deleted by one, gone for the other": async ({ assert, Sandbox }, s) => {
    assert.equal(await Sandbox.kill(s.box.id), true);
    await assert.rejects(Box.get(s.box.id), /no box has/);
    await (await Box.get(s.sandbox.sandboxId)).delete();
    assert.equal(await s.sandbox.isRunning(), false);
  },
};
