// Runs the tests of one subject, and prints a line of JSON for each, then one with the SDK's methods and getters that succeeded
// or were refused.
import * as sdk from "e2b";
import assert from "node:assert/strict";
import { AsyncLocalStorage } from "node:async_hooks";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { Recorder } from "../shapes.mjs";

const shapes = process.env.SHAPES ? JSON.parse(readFileSync(process.env.SHAPES, "utf8")) : { methods: {}, instances: {} };
const recorder = new Recorder(shapes);
const worked = new Set(), refusals = new Set();
const methods = new WeakMap(); // error of a call → its method

// calling is set during a call, so that calls that the SDK makes itself are not recorded.
const calling = new AsyncLocalStorage();

// ofErrors are the members that every error has.
const ofErrors = ["name", "message", "stack", "cause", "statusCode"];

// spelled returns the name of a member as users write it: Sandbox.create, sandbox.kill, commandHandle.wait.
function spelled(member) {
  const [, kind, of, name] = member.match(/^(\w+)([.#])(.*)$/);
  const type = kind.replace(/Base$/, "");
  return `${of === "#" && type !== "E2B" ? type[0].toLowerCase() + type.slice(1) : type}.${name}`;
}

const fieldsOf = (kind) => Object.keys(shapes.instances[kind]?.object ?? {}).filter((name) => !kind.endsWith("Error") || !ofErrors.includes(name));
const table = [...Object.keys(shapes.methods), ...Object.keys(shapes.instances).flatMap((kind) => fieldsOf(kind).map((name) => `${kind}#${name}`))];

// watch wraps a function to record a call that succeeds.
function watch(method, fn) {
  const note = (args, value) => {
    worked.add(method);
    recorder.called(method, args);
    recorder.answered(method, value);
    return observe(value);
  };
  const failed = (error) => {
    if (error instanceof Error) methods.set(error, method);
    throw error;
  };
  return function (...args) {
    if (calling.getStore()) return fn.apply(this, args);
    let value;
    try { value = calling.run(true, () => fn.apply(this, args)); } catch (error) { failed(error); }
    return value instanceof Promise ? value.then((v) => note(args, v), failed) : note(args, value);
  };
}

const watched = new WeakSet();

// watchMembers watches the methods that the types name of an object.
function watchMembers(owner, prefix) {
  if (watched.has(owner)) return;
  watched.add(owner);
  for (const member of Object.keys(shapes.methods)) {
    const name = member.startsWith(prefix) ? member.slice(prefix.length) : "";
    if (/^\w+$/.test(name) && typeof owner[name] === "function") Object.defineProperty(owner, name, { value: watch(member, owner[name]), writable: true, configurable: true });
  }
}

// watchGetters records the getters of a class that a test reads, once they have a value.
function watchGetters(prototype, kind) {
  for (; prototype && prototype !== Error.prototype && prototype !== Object.prototype; prototype = Object.getPrototypeOf(prototype)) {
    for (const name of fieldsOf(kind)) {
      const was = Object.getOwnPropertyDescriptor(prototype, name);
      if (!was?.get || watched.has(was.get)) continue;
      const get = function () {
        const value = was.get.call(this);
        const of = kinds.find((k) => this.constructor.name === k) ?? kind; // of a class below that of the getter
        if (value !== undefined && !calling.getStore()) worked.add(`${of}#${name}`);
        return value;
      };
      watched.add(get);
      Object.defineProperty(prototype, name, { ...was, get });
    }
  }
}

const kinds = Object.keys(shapes.instances);

// observe watches the methods of an instance of the SDK's classes, and records the fields that it has.
function observe(value) {
  if (Array.isArray(value)) value.forEach(observe);
  const kind = kinds.find((kind) => value?.constructor?.name === kind || sdk[kind] && typeof sdk[kind] === "function" && value?.constructor === sdk[kind]);
  if (!kind) return value;
  watchMembers(value.constructor.prototype, `${kind}#`);
  watchGetters(value.constructor.prototype, kind);
  const own = Object.keys(shapes.methods).filter((m) => m.startsWith(`${kind}#`)).map((m) => m.slice(kind.length + 1)).filter((name) => Object.hasOwn(value, name));
  for (const name of [...fieldsOf(kind), ...own]) if (value[name] !== undefined) worked.add(`${kind}#${name}`);
  return value;
}

for (const kind of ["Sandbox", "Secret", "Volume", "TemplateBase"]) if (shapes.instances[kind]) watchMembers(sdk[kind], `${kind}.`);
watchMembers(sdk.Sandbox.prototype, "Sandbox#");
const blank = new sdk.Sandbox({ sandboxId: "none", envdVersion: "0.6.4", apiKey: "none", domain: "none.invalid" });
for (const space of ["files", "commands", "pty", "git"]) watchMembers(blank[space].constructor.prototype, `Sandbox#${space}.`);

// admin makes a request to boxgate's own API.
async function admin(method, path, body) {
  const headers = { "X-Box-Api-Key": process.env.E2B_API_KEY, ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
  const answer = await fetch(process.env.BOXGATE_URL + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
  return answer.headers.get("Content-Type") === "application/json" ? JSON.parse(text) : text;
}

// fails asserts that a call fails with an error of a class, and a sentence that matches.
async function fails(promise, kind, sentence) {
  const error = await promise.then((v) => assert.fail(`did not fail: ${JSON.stringify(v)}`), (e) => e);
  assert.ok(error instanceof kind, `${error?.stack ?? error} is no ${kind.name}`);
  assert.match(String(error.message), sentence);
  return error;
}

// refused is fails for a method that the gateway refuses always.
async function refused(promise, kind, sentence) {
  const error = await fails(promise, kind, sentence);
  refusals.add(methods.get(error));
  return error;
}

// until waits for a condition.
async function until(what, holds) {
  let value, last;
  for (const end = Date.now() + 60_000; Date.now() < end; await new Promise((r) => setTimeout(r, 50))) {
    try { if ((value = await holds())) return value; } catch (e) { last = e; }
  }
  assert.fail(`waited in vain for ${what}${last ? `: ${last}` : ""}`);
}

const made = new Set();
const keep = (sandbox) => (made.add(sandbox.sandboxId), sandbox);
const tools = {
  ...sdk, sdk, assert, admin, fails, refused, until, observe, keep, domain: process.env.E2B_DOMAIN, key: process.env.E2B_API_KEY,
  sha256: (text) => createHash("sha256").update(text).digest("hex"),
  create: async (...args) => keep(await sdk.Sandbox.create(...args)),
};

// inTime bounds a test.
function inTime(test) {
  const late = new Promise((_, reject) => setTimeout(() => reject(new Error("the test does not end")), 120_000).unref());
  return Promise.race([test, late]);
}

const { default: tests } = await import(`./subjects/${process.argv[2]}.mjs`);
const only = process.env.ONLY && new RegExp(process.env.ONLY);
const without = process.env.WITHOUT ? process.env.WITHOUT.split(";") : [];
const state = {};
for (const [test, body] of Object.entries(tests)) {
  if (without.includes(test)) continue;
  if (only && !only.test(test) && test !== "a sandbox is created") continue;
  let error;
  recorder.begin();
  const from = Date.now();
  try {
    await inTime(body(tools, state));
    assert.deepEqual([...recorder.faults], [], "calls and answers do not match the SDK's types");
  } catch (e) { error = e?.stack ?? String(e); }
  console.log(JSON.stringify({ test, error, ms: Date.now() - from }));
}
await Promise.all([...made].map((id) => sdk.Sandbox.kill(id).catch(() => {})));
console.log(JSON.stringify({ table: table.map(spelled), worked: [...worked].map(spelled), refused: [...refusals].filter(Boolean).map(spelled) }));
process.exit(); // connections stay open
