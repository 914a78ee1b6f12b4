// The SDK runs git in the sandbox, as commands.
const remote = "https://git.example.com/app.git";
const who = { username: "ada", password: process.env.GIT_PASSWORD };

export default {
  "a sandbox is created": async ({ create }, s) => { s.box = await create({ timeoutMs: 300_000 }); s.git = s.box.git; },
  "a repository with a commit": async ({ assert }, s) => {
    await s.git.init("repo", { initialBranch: "main" });
    await s.git.configureUser("Ada", "ada@example.com");
    assert.equal(await s.git.getConfig("user.name"), "Ada");
    await s.git.setConfig("core.abbrev", "12", { scope: "local", path: "repo" });
    assert.equal(await s.git.getConfig("core.abbrev", { scope: "local", path: "repo" }), "12");
    assert.equal(await s.git.getConfig("no.such"), undefined);
    await s.box.files.write("repo/one", "1");
    await s.git.add("repo");
    const status = await s.git.status("repo");
    assert.deepEqual([status.currentBranch, status.fileStatus.map((f) => [f.name, f.staged])], ["main", [["one", true]]]);
    assert.match((await s.git.commit("repo", "First")).stdout, /First/);
    assert.match((await s.git.commit("repo", "Second", { allowEmpty: true, authorName: "Bob", authorEmail: "bob@example.com" })).stdout, /Second/);
    assert.equal((await s.box.commands.run("git -C repo log --format=%an")).stdout, "Bob\nAda\n");
  },
  "branches": async ({ assert }, s) => {
    await s.git.createBranch("repo", "topic");
    assert.deepEqual([(await s.git.branches("repo")).currentBranch, (await s.git.branches("repo")).branches.sort()], ["topic", ["main", "topic"]]);
    await s.git.checkoutBranch("repo", "main");
    await s.git.deleteBranch("repo", "topic", { force: true });
    assert.deepEqual((await s.git.branches("repo")).branches, ["main"]);
  },
  "reset and restore": async ({ assert }, s) => {
    await s.box.files.write("repo/one", "changed");
    await s.git.add("repo", { files: ["one"] });
    await s.git.restore("repo", { paths: ["one"], staged: true });
    await s.git.restore("repo", { paths: ["one"] });
    assert.equal(await s.box.files.read("repo/one"), "1");
    await s.git.reset("repo", { mode: "hard", target: "HEAD~1" });
    assert.equal((await s.box.commands.run("git -C repo rev-list --count HEAD")).stdout, "1\n");
  },
  "push with a password, and pull": async ({ assert, fails, sdk }, s) => {
    await s.git.remoteAdd("repo", "origin", remote);
    await s.git.remoteAdd("repo", "origin", remote, { overwrite: true });
    assert.equal(await s.git.remoteGet("repo", "origin"), remote);
    await fails(s.git.push("repo", { remote: "origin", branch: "main" }), sdk.GitAuthError, /authentication|credentials/i);
    await s.git.push("repo", { remote: "origin", branch: "main", ...who });
    assert.equal(await s.git.remoteGet("repo", "origin"), remote, "the password stayed in the address");
    await s.git.pull("repo", { remote: "origin", branch: "main", ...who });
    await s.git.init("alone");
    await fails(s.git.pull("alone"), sdk.GitUpstreamError, /upstream/);
  },
  "clone with a password": async ({ assert, fails, sdk }, s) => {
    await fails(s.git.clone(remote, { path: "denied" }), sdk.GitAuthError, /authentication|credentials/i);
    await s.git.clone(remote, { path: "cloned", branch: "main", depth: 1, ...who });
    assert.equal(await s.box.files.read("cloned/one"), "1");
    assert.ok(!(await s.box.files.read("cloned/.git/config")).includes(who.password));
  },
  "stored credentials": async ({ assert }, s) => {
    await s.git.dangerouslyAuthenticate({ host: "git.example.com", ...who });
    await s.git.clone(remote, { path: "stored" });
    assert.equal(await s.box.files.exists("stored/one"), true);
  },
};
