// Longer than the 300 s after which Node's fetch gives up.
const long = 320;
const harness = `
await new Promise((done) => setTimeout(done, ${long * 1000}));
process.stdout.write("event: done\\ndata: " + JSON.stringify({ output: "answer" }) + "\\n\\n");
`;

export default {
  "calls that are silent for more than five minutes": async ({ create, assert, collect, Agent }) => {
    const box = await create({ runtime: "node", agent: { harness: Agent.Custom, customHarness: { command: "node", args: ["/workspace/home/harness.mjs"] } } });
    await box.exec.command(`cat >harness.mjs <<'END'\n${harness}\nEND`);
    const [command, code, agent, streamed] = await Promise.all([
      box.exec.command(`sleep ${long}`),
      box.exec.code({ lang: "python", code: `import time; time.sleep(${long}); print("out")` }),
      box.agent.run({ prompt: "x" }),
      box.exec.stream(`sleep ${long}; echo out; exit 3`),
    ]);
    assert.deepEqual([command.status, command.exitCode], ["completed", 0]);
    assert.equal(code.stdout, "out\n");
    assert.equal(agent.result, "answer");
    assert.equal((await collect(streamed)).text, "out\n");
    assert.equal(streamed.exitCode, 3);
    const stream = await box.agent.stream({ prompt: "x" });
    assert.equal((await collect(stream)).chunks.find((c) => c.type === "finish").output, "answer");
  },
};
