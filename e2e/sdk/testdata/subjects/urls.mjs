import http from "node:http";
import https from "node:https";

// No DNS server resolves the names of public URLs here.
const visit = (url, headers = {}) => new Promise((resolve, reject) => (url.startsWith("https:") ? https : http).get(url, {
  headers, lookup: (_, o, cb) => (o.all ? cb(null, [{ address: "127.0.0.1", family: 4 }]) : cb(null, "127.0.0.1", 4)),
}, (r) => {
  let text = "";
  r.on("data", (b) => (text += b)).on("end", () => resolve({ status: r.statusCode, text }));
}).on("error", reject));

export default {
  "a port has a public URL": async ({ create, assert }, s) => {
    s.box = await create();
    await s.box.exec.command("echo page >index.html; setsid python3 -m http.server 9000 >/dev/null 2>&1 & until curl -s -o /dev/null http://127.0.0.1:9000/; do sleep 0.05; done");
    s.made = await s.box.getPublicURL(9000, { bearerToken: true, basicAuth: true });
    assert.equal(s.made.port, 9000);
    assert.ok(s.made.token && s.made.username && s.made.password);
    assert.equal((await visit(s.made.url)).status, 401);
    assert.equal((await visit(s.made.url, { Authorization: `Bearer ${s.made.token}` })).text, "page\n");
    const basic = Buffer.from(`${s.made.username}:${s.made.password}`).toString("base64");
    assert.equal((await visit(s.made.url, { Authorization: `Basic ${basic}` })).status, 200);
  },
  "it is listed without credentials": async ({ assert }, s) => {
    const { publicURLs } = await s.box.listPublicURLs();
    assert.equal(publicURLs.length, 1);
    assert.equal(publicURLs[0].url, s.made.url);
    assert.equal(publicURLs[0].token, undefined);
    assert.deepEqual(await s.box.listPreviews(), { previews: publicURLs });
  },
  "a visit wakes the box": async ({ assert }, s) => {
    await s.box.pause();
    assert.equal((await visit(s.made.url)).status, 401);
    assert.equal((await s.box.getStatus()).status, "paused");
    assert.equal((await visit(s.made.url, { Authorization: `Bearer ${s.made.token}` })).text, "page\n");
    assert.notEqual((await s.box.getStatus()).status, "paused");
  },
  "it is deleted, by the old names as well": async ({ assert }, s) => {
    await s.box.deletePublicURL(9000);
    assert.equal((await visit(s.made.url)).status, 404);
    const open = await s.box.getPreviewUrl(9000);
    assert.equal((await visit(open.url)).status, 200);
    await s.box.deletePreview(9000);
    assert.deepEqual((await s.box.listPublicURLs()).publicURLs, []);
  },
};
