export default {
  "a repository is cloned": async ({ create, assert }, s) => {
    s.box = await create({ git: { token: "ghp_the_token_of_the_test", userName: "Ann", userEmail: "ann@example.com" } });
    await s.box.git.clone({ repo: "https://github.com/acme/app", branch: "main" });
    const found = (await s.box.exec.command("find . -name README.md -not -path '*/.git/*'")).stdout.trim();
    assert.ok(found, (await s.box.exec.command("ls -la . app")).stdout);
    await s.box.cd(found.replace(/\/?README.md$/, "") || ".");
  },
  "a branch is cloned": async ({ create, assert }) => {
    const box = await create({ git: { token: "ghp_the_token_of_the_test" } });
    await box.git.clone({ repo: "https://github.com/acme/app", branch: "older" });
    assert.equal((await box.exec.command("git -C app rev-list --count HEAD && git -C app branch --show-current")).stdout, "1\nolder\n");
  },
  "the token never enters the box": async ({ assert }, s) => {
    const found = await s.box.exec.command("grep -rls ghp_the_token /workspace/home /tmp /home /etc 2>/dev/null; env | grep ghp_; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep ghp_; true");
    assert.equal(found.stdout, "");
  },
  "status and diff": async ({ assert }, s) => {
    assert.equal(typeof (await s.box.git.status()), "string");
    await s.box.files.write({ path: "README.md", content: "changed by the test\n" });
    assert.match(await s.box.git.status(), /README\.md/);
    assert.match(await s.box.git.diff(), /\+changed by the test/);
  },
  "branches": async ({ assert }, s) => {
    await s.box.git.exec({ args: ["branch", "topic"] });
    await s.box.git.checkout({ branch: "topic" });
    const now = await s.box.git.exec({ args: ["branch", "--show-current"] });
    assert.equal(now.output.trim(), "topic");
  },
  "a commit has the configured author, or the given one": async ({ assert }, s) => {
    await s.box.git.exec({ args: ["add", "."] });
    const made = await s.box.git.commit({ message: "Change the readme" });
    assert.match(made.sha, /^[0-9a-f]{7,40}$/);
    assert.match(made.message, /Change the readme/);
    assert.equal((await s.box.git.exec({ args: ["log", "-1", "--format=%an <%ae>"] })).output.trim(), "Ann <ann@example.com>");
    await s.box.files.write({ path: "more.txt", content: "more\n" });
    await s.box.git.exec({ args: ["add", "."] });
    await s.box.git.commit({ message: "Add more", authorName: "Bob", authorEmail: "bob@example.com" });
    assert.equal((await s.box.git.exec({ args: ["log", "-1", "--format=%an <%ae>"] })).output.trim(), "Bob <bob@example.com>");
  },
  "the configuration is changed": async ({ assert }, s) => {
    const config = await s.box.git.updateConfig({ userName: "Cleo", userEmail: "cleo@example.com" });
    assert.equal(config.git_user_name, "Cleo");
    assert.equal(config.git_user_email, "cleo@example.com");
    assert.equal((await s.box.git.exec({ args: ["config", "user.name"] })).output.trim(), "Cleo");
  },
  "a push reaches the server, and a pull request is made": async ({ assert }, s) => {
    await s.box.git.push({ branch: "topic" });
    const pr = await s.box.git.createPR({ title: "Change", body: "Please", base: "main" });
    assert.equal(pr.url, "https://github.com/acme/app/pull/7");
    assert.equal(pr.number, 7);
  },
  "without configuration the author is the product's": async ({ create, assert }) => {
    const box = await create();
    await box.exec.command("git init -q . && echo x >x && git add x");
    await box.git.commit({ message: "first" });
    const author = async () => (await box.git.exec({ args: ["log", "-1", "--format=%an <%ae>"] })).output.trim();
    assert.equal(await author(), "Upstash Box <box@upstash.com>");
    const second = await box.exec.command("echo y >y && git add y && git commit -qm second");
    assert.equal(second.exitCode, 0, second.stderr);
    assert.equal(await author(), "Upstash Box <box@upstash.com>");
    await box.git.exec({ args: ["branch", "topic"] });
    await box.git.checkout({ branch: "topic" });
    await box.git.checkout({ branch: "master" }); // git's own default, which callers count on
  },
};
