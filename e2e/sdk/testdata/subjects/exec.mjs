export default {
  "a command": async ({ create, assert }, s) => {
    s.box = await create({ env: { GREETING: "hello" } });
    const run = await s.box.exec.command("echo $GREETING; echo problem >&2; exit 3");
    assert.equal(run.stdout, "hello\n");
    assert.equal(run.stderr, "problem\n");
    assert.equal(run.exitCode, 3);
    assert.equal(run.status, "failed");
    assert.equal(run.result, "problem\n");
    assert.equal(typeof run.id, "string");
    assert.ok(run.cost.computeMs >= 0);
    assert.equal(run.cost.totalUsd, 0);
    assert.ok((await run.logs()).every((l) => typeof l.timestamp === "string"));
  },
  "warnings do not hide the result": async ({ assert }, s) => {
    const run = await s.box.exec.command("echo out; echo warning >&2");
    assert.equal(run.result, "out\n");
    assert.equal(run.status, "completed");
  },
  "JavaScript, TypeScript and Python": async ({ assert }, s) => {
    const js = await s.box.exec.code({ lang: "js", code: "console.log(JSON.stringify({ sum: 1 + 2, env: process.env.GREETING }))" });
    assert.deepEqual(JSON.parse(js.stdout), { sum: 3, env: "hello" });
    const ts = await s.box.exec.code({ lang: "ts", code: "const n: number = 6 * 7; console.log(n as number);" });
    assert.equal(ts.stdout, "42\n", ts.stderr);
    const py = await s.box.exec.code({ lang: "python", code: "import json; print(json.dumps({'two': 2 ** 10}))" });
    assert.deepEqual(JSON.parse(py.stdout), { two: 1024 });
    const wrong = await s.box.exec.code({ lang: "js", code: "throw new Error('on purpose')" });
    assert.equal(wrong.status, "failed");
    assert.notEqual(wrong.exitCode, 0);
    assert.match(wrong.result, /on purpose/);
  },
  "code runs in the working directory": async ({ assert }, s) => {
    await s.box.exec.command("mkdir -p work");
    await s.box.cd("work");
    assert.equal((await s.box.exec.code({ lang: "python", code: "import os; print(os.getcwd())" })).stdout, "/workspace/home/work\n");
    await s.box.cd("/workspace/home");
  },
  "code that takes too long is a failed run": async ({ assert, collect }, s) => {
    const slow = { lang: "python", code: "import time; print('so far', flush=True); time.sleep(3600)", timeout: 1500 };
    const run = await s.box.exec.code(slow);
    assert.equal(run.status, "failed");
    assert.equal(run.exitCode, 124);
    assert.equal(run.stdout, "so far\n");
    assert.match(run.result, /killed after its timeout of 1.5s/);
    const stream = await s.box.exec.streamCode(slow);
    const { chunks, text } = await collect(stream);
    assert.match(text, /^so far\n.*killed after its timeout of 1.5s\n$/s);
    assert.equal(chunks.at(-1).exitCode, 124);
    assert.equal(stream.status, "failed");
    const recorded = (await s.box.listRuns())[0];
    assert.equal(recorded.status, "failed");
    assert.match(recorded.error_message, /timeout/);
  },
  "JavaScript and TypeScript with import, require and await": async ({ assert }, s) => {
    await s.box.exec.command("printf 'export const local = 7' >local.mjs");
    const both = `
      import { sep } from "node:path";
      import { local } from "./local.mjs";
      const os = require("node:os");
      const later = await new Promise((done) => setTimeout(done, 1, "later"));
      console.log(sep, local, typeof os.cpus, later, typeof (await import("node:fs")).readFileSync);`;
    for (const [lang, code, want] of [
      ["js", both, "/ 7 function later function\n"],
      ["js", "console.log(await Promise.resolve(1), typeof require('fs').readFileSync)", "1 function\n"],
      ["js", "x = 5; console.log(x, typeof require, typeof module)", "5 function object\n"],
      ["ts", both.replace("const later", "const later: string"), "/ 7 function later function\n"],
      ["ts", "const n: number = await Promise.resolve(1); console.log(n, typeof require('fs').readFileSync)", "1 function\n"],
      ["ts", "const fs = require('fs'); type T = string; const t: T = 'sync'; console.log(t, typeof fs)", "sync object\n"],
    ]) {
      const run = await s.box.exec.code({ lang, code });
      assert.equal(run.stdout, want, `${lang} ${code}: ${run.stderr}`);
      assert.equal(run.stderr, "");
    }
    const wrong = await s.box.exec.code({ lang: "ts", code: "const n: number = ;" });
    assert.equal(wrong.status, "failed");
    assert.match(wrong.stderr, /SyntaxError|error/);
  },
  "an older node runs modules too": async ({ create, assert }) => {
    const node = (await (await create()).exec.command("command -v node")).stdout.trim();
    const box = await create({ env: { PATH: "/workspace/home/bin:/usr/local/bin:/usr/bin:/bin" } });
    await box.exec.command(`mkdir bin && printf '#!/bin/sh\\ncase "$1" in -p) echo 18 20 4;; *) exec ${node} "$@";; esac\\n' >bin/node && chmod +x bin/node`);
    for (const [lang, code, want] of [
      ["js", "import { sep } from 'node:path'; console.log(sep, await 1, typeof require('fs').readFileSync)\n", "/ 1 function\n"],
      ["js", "x = 5; console.log(x, typeof module, typeof require)", "5 object function\n"],
      ["ts", "import { sep } from 'node:path'; const n: number = await Promise.resolve(1); console.log(sep, n)", "/ 1\n"],
    ]) {
      const run = await box.exec.code({ lang, code });
      assert.equal(run.stdout, want, `${lang} ${code}: ${run.stderr}`);
    }
    assert.equal((await box.exec.code({ lang: "js", code: "process.exit(7)" })).exitCode, 7);
  },
  "a box cannot forge its result": async ({ assert, collect }, s) => {
    const forged = String.raw`event: exit\ndata: {"exit_code":0,"cpu_ns":1}\n\n`;
    for (const command of [`printf '${forged}'; echo after; exit 9`, `for c in event: ' ' exit; do printf "$c"; sleep 0.1; done; printf '\n'; sleep 0.1; printf 'data: {"exit_code":0}\n\nafter\n'; exit 9`]) {
      const run = await s.box.exec.stream(command);
      const { chunks, text } = await collect(run);
      assert.match(text, /^event: exit\r\ndata: {"exit_code":0[^]*after\n$/);
      assert.equal(chunks.at(-1).exitCode, 9);
      assert.equal(run.status, "failed");
    }
    const run = await s.box.exec.stream(String.raw`printf 'event: error\ndata: {"error":"forged"}\n\n'`);
    assert.equal((await collect(run)).text, 'event: error\r\ndata: {"error":"forged"}\n\n');
    assert.equal(run.status, "completed");
  },
  "the result of a stream does not get lost where the decoder divides it": async ({ assert, collect }, s) => {
    for (const size of [16384 - 60, 16384 - 40, 16384 - 20, 16384 - 12, 16384]) {
      const run = await s.box.exec.stream(`head -c ${size} /dev/zero | tr '\\0' x; exit 3`);
      const { text } = await collect(run);
      assert.equal(run.exitCode, 3, `${size} bytes`);
      assert.equal(text.trimEnd().length, size);
    }
  },
  "output that is cut off says so": async ({ assert, collect }, s) => {
    const run = await s.box.exec.command("head -c 17000000 /dev/zero | tr '\\0' x");
    assert.equal(run.exitCode, 0);
    assert.ok(run.stdout.length < 17000000);
    assert.match(run.stdout.slice(-200), /x\n\[boxgate: the output was cut off here, .*\]\n$/);
    assert.equal(run.result, run.stdout);
    const stream = await s.box.exec.stream("head -c 17000000 /dev/zero | tr '\\0' x");
    assert.equal((await collect(stream)).text.trimEnd().length, 17000000);
  },
  "the home directory of the vendor's boxes exists": async ({ assert }, s) => {
    const run = await s.box.exec.command("cd /home/boxuser && touch in-home && pwd -P && ls ~/in-home");
    assert.equal(run.stdout, "/workspace/home\n/workspace/home/in-home\n", run.stderr);
    assert.ok((await s.box.files.list("/home/boxuser")).some((f) => f.name === "in-home"));
  },
  "an unknown language is refused": async ({ refused }, s) => {
    await refused(s.box.exec.code({ lang: "cobol", code: "x" }), 422, /\/language/);
  },
  "a stream of a command": async ({ assert, collect, StreamRun }, s) => {
    const run = await s.box.exec.stream("for i in 1 2 3; do echo line $i; done; exit 4");
    assert.ok(run instanceof StreamRun);
    const { chunks, text } = await collect(run);
    assert.equal(text, "line 1\nline 2\nline 3\n");
    const last = chunks.at(-1);
    assert.equal(last.type, "exit");
    assert.equal(last.exitCode, 4);
    assert.ok(last.cpuNs > 0, `cpuNs: ${last.cpuNs}`);
    assert.equal(run.status, "failed");
    assert.equal(run.exitCode, 4);
  },
  "a stream comes as it is written": async ({ assert }, s) => {
    const run = await s.box.exec.stream("echo first; while [ ! -e go ]; do sleep 0.05; done; echo second");
    let seen = "";
    for await (const chunk of run) {
      if (chunk.type !== "output") continue;
      seen += chunk.data;
      if (seen === "first\n") await s.box.exec.command("touch go");
    }
    assert.equal(seen, "first\nsecond\n");
  },
  "a stream of code": async ({ assert, collect }, s) => {
    const run = await s.box.exec.streamCode({ lang: "js", code: "for (let i = 0; i < 3; i++) console.log('step ' + i)" });
    const { chunks, text } = await collect(run);
    assert.equal(text, "step 0\nstep 1\nstep 2\n");
    assert.equal(chunks.at(-1).exitCode, 0);
    assert.equal(run.status, "completed");
  },
  "a run is cancelled": async ({ assert, until, call }, s) => {
    const pending = s.box.exec.command("sleep 4711").catch((e) => e);
    const run = await until("the run", async () => (await s.box.listRuns()).find((r) => r.status === "running" && r.prompt.includes("4711")));
    const answer = await call("POST", `/v2/box/${s.box.id}/runs/${run.id}/cancel`);
    assert.equal(answer.status, 200, answer.text);
    await pending;
    assert.equal((await s.box.listRuns()).find((r) => r.id === run.id).status, "cancelled");
    assert.equal((await s.box.exec.command("pgrep -f 'sleep 471[1]' || echo none")).stdout, "none\n");
  },
  "cancelling a run that has ended is no error": async ({ assert }, s) => {
    const run = await s.box.exec.command("true");
    await run.cancel();
    assert.equal(run.status, "cancelled");
  },
};
