// Tests of shapes.mjs: an answer or a call that does not fit its type is noticed.
import assert from "node:assert/strict";
import { Recorder } from "./shapes.mjs";

const now = Math.floor(Date.now() / 1000);
const string = { type: "string" }, optional = (shape) => ({ shape: { any: [{ type: "undefined" }, shape] }, optional: true }), required = (shape) => ({ shape, optional: false });
const status = { any: [{ value: "idle" }, { value: "paused" }] };
const box = { name: "BoxData", object: { id: required(string), status: required(status), created_at: required({ type: "number" }), labels: optional({ array: string }), env: optional({ object: {}, index: string }) } };
const config = { any: [{ type: "undefined" }, {
  object: {
    name: optional(string), size: optional({ any: [{ value: "small" }, { value: "large" }] }), env: optional({ object: {}, index: string }),
    agent: optional({ any: [{ object: { harness: required({ value: "custom" }), key: optional({ type: "undefined" }) } }, { object: { harness: required(string), key: optional(string) } }] }),
    servers: optional({ array: { object: { url: required(string) } } }), on: optional({ type: "function" }),
  },
}] };
const table = { methods: { "Box.create": { parameters: [{ name: "config", shape: config }], result: box } }, instances: {} };

const good = { id: "a", status: "idle", created_at: now };
for (const [value, fault] of [
  [good, ""], [{ ...good, labels: ["x"], env: { A: "b" }, more: 1 }, ""], [{ ...good, labels: undefined }, ""],
  [{ ...good, id: undefined }, "id is undefined, not string"], [{ ...good, id: 1 }, "id is 1, not string"], [{ ...good, id: null }, "id is null, not string"],
  [{ ...good, status: "gone" }, 'status is "gone"'], [{ ...good, labels: null }, "labels"], [{ ...good, labels: [1] }, "labels[0] is 1, not string"], [{ ...good, env: { A: 1 } }, "env.A is 1"],
  [{ ...good, created_at: now * 1000 }, "no time in seconds"], [{ ...good, created_at: 0 }, "no time in seconds"], [{ ...good, created_at: "today" }, "not number"],
  [[], "id is undefined"], [null, "no object"],
]) {
  const r = new Recorder(table);
  r.answered("Box.create", value);
  const faults = [...r.faults].join("; ");
  assert.ok(fault === "" ? faults === "" : faults.includes(fault), `${JSON.stringify(value)}: ${faults}`);
}

const all = {
  name: "a", size: "large", env: { A: "b" }, agent: { harness: "codex", key: "k" }, servers: [{ url: "u" }], on: () => {},
};
const options = ["", ".name", ".size", ".size=small", ".size=large", ".env", ".agent", ".agent.harness", ".agent.key", ".servers", ".servers[].url", ".on"].map((o) => `Box.create(config)${o}`);
const recorder = new Recorder(table);
assert.deepEqual(recorder.table({}).options, options);
assert.deepEqual(recorder.table({}).fields, ["id", "status", "created_at", "labels", "env"].map((f) => `BoxData.${f}`));
recorder.called("Box.create", [{ ...all, sizes: 1, servers: [{ url: "u", port: 1 }] }]);
assert.deepEqual([...recorder.used].sort(), options.filter((o) => !o.endsWith("=small")).sort());
assert.deepEqual([...recorder.faults], ["Box.create(config).servers[].port is no option of the SDK", "Box.create(config).sizes is no option of the SDK"]);

for (const [option, want] of [
  ["", undefined], [".name", { ...all, name: undefined }], [".size=large", { ...all, size: "small" }], [".agent.key", { ...all, agent: { harness: "codex", key: undefined } }],
  [".servers[].url", { ...all, servers: [{ url: undefined }] }], [".none", all],
]) assert.deepEqual(new Recorder(table, `Box.create(config)${option}`).args("Box.create", [all]), [want]);
assert.deepEqual(new Recorder(table, "Box.list(options)").args("Box.create", [all]), [all]);
