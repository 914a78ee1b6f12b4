export default {
  "templates that exist": async ({ assert, Template }) => {
    assert.equal(await Template.exists("base"), true);
    assert.equal(await Template.exists("no-such-template"), false);
    assert.equal(await Template.aliasExists("base"), true);
  },
  "tags of a template": async ({ assert, Template, refused, sdk }) => {
    await refused(Template.assignTags("base:latest", "stable"), Error, /template|tag/i);
    await refused(Template.removeTags("base", "stable"), Error, /template|tag/i);
    const [tag, ...more] = await Template.getTags("base");
    assert.deepEqual([tag.tag, more], ["default", []]);
  },
  "a build is refused, with what to do": async ({ Template, refused }) => {
    const template = Template().fromImage("debian:12").runCmd("true");
    await refused(Template.build(template, "made-here"), Error, /image/);
    await refused(Template.buildInBackground(template, "made-here"), Error, /image/);
    await refused(Template.getBuildStatus({ templateId: "base", buildId: "none" }), Error, /build|image/);
  },
  "a template is described without the gateway": async ({ assert, Template, observe, waitForPort, waitForURL, waitForProcess, waitForFile, waitForTimeout, ReadyCmd }) => {
    const from = [
      (t) => t.fromDebianImage(), (t) => t.fromUbuntuImage(), (t) => t.fromFedoraImage(), (t) => t.fromAlpineImage(), (t) => t.fromArchImage(), (t) => t.fromPythonImage(), (t) => t.fromNodeImage(),
      (t) => t.fromBunImage(), (t) => t.fromBaseImage(), (t) => t.fromImage("debian:12", { username: "u", password: "p" }), (t) => t.fromTemplate("base"), (t) => t.fromDockerfile("FROM debian:12\nRUN true"),
      (t) => t.fromAWSRegistry("1.dkr.ecr.eu-west-1.amazonaws.com/a:1", { accessKeyId: "a", secretAccessKey: "s", region: "eu-west-1" }), (t) => t.fromGCPRegistry("gcr.io/a/b:1", { serviceAccountJSON: { type: "service_account" } }),
    ];
    for (const f of from) {
      const t = Template({ fileContextPath: import.meta.dirname });
      observe(t);
      const json = JSON.parse(await Template.toJSON(f(t).runCmd("true"), false));
      assert.ok(json.fromImage ?? json.fromTemplate, JSON.stringify(json));
    }
    const built = Template({ fileContextPath: import.meta.dirname }).fromImage("debian:12").copy("catalog.mjs", "/a").copyItems([{ src: "catalog.mjs", dest: "/b" }]).remove("/a").rename("/b", "/c").makeDir("/d")
      .makeSymlink("/c", "/e").runCmd(["true", "true"]).setWorkdir("/d").setUser("user").pipInstall("six").npmInstall("ws").bunInstall("ws").aptInstall("jq").gitClone("https://git.example.com/app.git").setEnvs({ A: "b" })
      .skipCache().setStartCmd("serve", waitForPort(3000));
    assert.match(Template.toDockerfile(Template().fromImage("debian:12").runCmd("true")), /FROM debian:12\nRUN true/);
    assert.equal(JSON.parse(await Template.toJSON(built, false)).startCmd, "serve");
    Template().fromTemplate("mcp-gateway").addMcpServer("brave");
    Template().fromTemplate("devcontainer").betaDevContainerPrebuild("/d").betaSetDevContainerStart("/d");
    Template().fromBaseImage().setReadyCmd(waitForFile("/ready"));
    for (const ready of [waitForURL("http://localhost:3000"), waitForProcess("serve"), waitForTimeout(1000)]) assert.ok(ready instanceof ReadyCmd && ready.getCmd());
  },
  "secrets": async ({ assert, Secret, refused, fails, sdk, observe }, s) => {
    const outcome = await Secret.create("driver-key", "sk-of-the-driver", { metadata: { of: "driver" } }).catch((e) => e);
    assert.ok(!(outcome instanceof Error), String(outcome));
    await fails(Secret.create("driver-key", "again"), sdk.SecretError, /already/);
    await fails(Secret.create("driver-second", "two\nlines"), sdk.SecretError, /^4\d\d: /);
    assert.deepEqual([outcome.name, outcome.version, outcome.metadata], ["driver-key", 1, { of: "driver" }]);
    assert.equal((await Secret.update("driver-key", "another")).version, 2);
    assert.equal((await Secret.getInfo("driver-key")).version, 2);
    assert.equal(await Secret.exists("driver-key"), true);
    assert.equal(await Secret.destroy("driver-key"), true);
    assert.equal(await Secret.destroy("driver-key"), false);
    await fails(Secret.update("driver-key", "late"), sdk.SecretNotFoundError, /not found/);
  },
  "secrets that exist": async ({ assert, Secret, fails, sdk }) => {
    assert.equal(await Secret.exists("no-such-secret"), false);
    await fails(Secret.getInfo("no-such-secret"), sdk.SecretNotFoundError, /not found/);
    const pages = Secret.list({ limit: 1 });
    const names = [];
    while (pages.hasNext) { names.push(...(await pages.nextItems()).map((i) => i.name)); if (pages.hasNext) assert.ok(pages.nextToken); }
    assert.deepEqual(names.sort(), ["openai", "other"]);
    assert.equal((await Secret.getInfo("openai")).name, "openai");
    assert.equal(await Secret.exists("openai"), true);
  },
  "placeholders": async ({ assert, Secret }) => {
    assert.equal(Secret.fill("openai"), "${e2b.secrets.openai}");
    assert.deepEqual(Secret.iamToken({ audience: "sts.example.com", tokenType: "JWT-SVID" }), { audience: "sts.example.com", tokenType: "JWT-SVID" });
  },
  "volumes are refused, with what to do": async ({ assert, Volume, refused, fails, sdk, Sandbox }) => {
    const sentence = /volume|snapshot/i;
    await refused(Volume.create("data"), sdk.VolumeError, sentence);
    await refused(Volume.list(), sdk.VolumeError, sentence);
    await refused(Volume.getInfo("vol"), sdk.VolumeError, sentence);
    await refused(Volume.connect("vol"), sdk.VolumeError, sentence);
    const destroyed = await Volume.destroy("vol").catch((e) => e);
    if (destroyed instanceof Error) await refused(Volume.destroy("vol"), sdk.VolumeError, sentence);
    await fails(Sandbox.create({ volumeMounts: { "/data": "data" } }), sdk.SandboxError, sentence);
  },
  "the contents of a volume likewise": async ({ assert, Volume, refused, observe }) => {
    let v = observe(new Volume("vol", "data", "token", process.env.E2B_DOMAIN, false, "http://proxy.example"));
    assert.equal(v.proxy, "http://proxy.example");
    v = observe(new Volume("vol", "data", "token", process.env.E2B_DOMAIN, false));
    for (const call of [() => v.list("/"), () => v.makeDir("/d"), () => v.getInfo("/f"), () => v.exists("/f"), () => v.updateMetadata("/f", { mode: 0o600 }), () => v.readFile("/f"), () => v.writeFile("/f", "x"), () => v.remove("/f")]) {
      await refused(call(), Error, /./);
    }
  },
  "a client with its own options": async ({ assert, E2B, fails, sdk, key, domain, observe, keep }) => {
    const client = observe(new E2B({ apiKey: key, domain }));
    const box = keep(await client.Sandbox.create({ timeoutMs: 60_000 }));
    assert.equal((await box.commands.run("echo hello")).stdout, "hello\n");
    assert.equal(await client.Template.exists("base"), true);
    assert.equal(await client.Secret.exists("no-such-secret"), false);
    await fails(new E2B({ apiKey: "wrong", domain }).Sandbox.create(), sdk.AuthenticationError, /Unauthorized/);
  },
  "options of a connection": async ({ assert, ConnectionConfig, observe, domain }) => {
    const c = observe(new ConnectionConfig({ apiKey: "k", domain, apiUrl: "https://a.example", sandboxUrl: "https://s.example", debug: false, requestTimeoutMs: 1000, retries: 1, headers: { a: "b" }, proxy: "http://p.example", validateApiKey: true, logger: console }));
    assert.equal(c.getHost("id", 80, domain), `80-id.${domain}`);
    assert.equal(c.getSandboxUrl("id", { sandboxDomain: domain, envdPort: 49983 }), "https://s.example");
    assert.equal(c.getSandboxDirectUrl("id", { sandboxDomain: domain, envdPort: 49983 }), "https://s.example");
    assert.ok(c.getSignal(10) instanceof AbortSignal);
    assert.equal(new ConnectionConfig().apiUrl, `https://api.${domain}`);
  },
  "MCP needs a template with its gateway": async ({ assert, create, fails, refused, sdk }) => {
    await fails(create({ mcp: {} , timeoutMs: 60_000 }), Error, /mcp/i);
    const box = await create({ timeoutMs: 60_000 });
    await refused(box.getMcpToken(), Error, /./);
  },
};
