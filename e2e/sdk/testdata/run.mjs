// Runs the tests of one subject, and prints a line of JSON for each, then one with the SDK methods that succeeded.
import * as sdk from "@upstash/box";
import assert from "node:assert/strict";

const internal = (name) => name.startsWith("_") || ["constructor", "log", "length", "name", "prototype", "WORKSPACE"].includes(name);
const worked = new Set();

// watch wraps a function to record its name when a call succeeds.
function watch(name, fn) {
  const note = (value) => (worked.add(name), value);
  return function (...args) {
    const value = fn.apply(this, args);
    return value instanceof Promise ? value.then((v) => note(instance(v))) : note(value);
  };
}

// watchMembers watches the methods and getters of a class or of its prototype, and returns their names.
function watchMembers(owner, prefix) {
  const names = [];
  for (const name of Object.getOwnPropertyNames(owner).filter((n) => !internal(n))) {
    const was = Object.getOwnPropertyDescriptor(owner, name);
    if (was.get) Object.defineProperty(owner, name, { ...was, get: watch(prefix + name, was.get) });
    else if (typeof was.value === "function") owner[name] = watch(prefix + name, was.value);
    else continue;
    names.push(prefix + name);
  }
  return names;
}

// namespaces lists the functions in the objects of an instance, such as box.files.read.
function* namespaces(object) {
  for (const [space, members] of Object.entries(object)) {
    if (space.startsWith("_") || Object.getPrototypeOf(members ?? 0) !== Object.prototype) continue;
    for (const [name, fn] of Object.entries(members)) if (typeof fn === "function") yield [space, name, fn];
  }
}

const watched = new WeakSet();

// instance watches the namespaces of a box that a method returned.
function instance(value) {
  const kind = value instanceof sdk.Box ? "Box#" : value instanceof sdk.EphemeralBox ? "EphemeralBox#" : "";
  if (!kind || watched.has(value)) return value;
  watched.add(value);
  const own = {};
  for (const [space, name, fn] of namespaces(value)) (own[space] ??= {})[name] = watch(`${kind}${space}.${name}`, fn);
  return Object.assign(value, own);
}

// The table of methods is read from the package's classes.
const table = [];
for (const kind of ["Box", "EphemeralBox", "Run", "StreamRun"]) {
  table.push(...watchMembers(sdk[kind], kind + "."), ...watchMembers(sdk[kind].prototype, kind + "#"));
}
const blank = new sdk.Box({ id: "none" }, { baseUrl: "", headers: {} });
const blankEphemeral = new sdk.EphemeralBox(blank, 0);
for (const [space, name] of namespaces(blank)) table.push(`Box#${space}.${name}`);
for (const [space, name] of namespaces(blankEphemeral)) table.push(`EphemeralBox#${space}.${name}`);

const base = process.env.UPSTASH_BOX_BASE_URL;
const key = process.env.UPSTASH_BOX_API_KEY;

// call makes requests that only newer versions of the SDK than the registry's make.
async function call(method, path, body) {
  const headers = { "X-Box-Api-Key": key, ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
  const answer = await fetch(base + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  let json;
  try { json = JSON.parse(text); } catch {}
  return { status: answer.status, json, text, headers: answer.headers };
}

// refused asserts that a call fails with an error of the SDK, with a status, and a sentence that matches.
async function refused(promise, status, sentence) {
  const error = await promise.then((v) => assert.fail(`was not refused: ${JSON.stringify(v)}`), (e) => e);
  assert.ok(error instanceof sdk.BoxError, String(error));
  assert.equal(error.statusCode, status, error.message);
  assert.match(error.message, sentence);
}

// until waits for a condition.
async function until(what, holds) {
  for (const end = Date.now() + 120_000; Date.now() < end; await new Promise((r) => setTimeout(r, 100))) {
    const value = await holds();
    if (value) return value;
  }
  assert.fail(`waited in vain for ${what}`);
}

// collect reads a stream to its end and returns its chunks and its text.
async function collect(run) {
  const chunks = [];
  for await (const chunk of run) chunks.push(chunk);
  return { chunks, text: chunks.map((c) => (c.type === "output" ? c.data : c.type === "text-delta" ? c.text : "")).join("") };
}

const boxes = [];
const keep = (box) => (boxes.push(box), box);
const tools = {
  ...sdk, assert, base, key, call, refused, until, collect,
  create: async (config) => keep(await sdk.Box.create(config)),
  ephemeral: async (config) => keep(await sdk.EphemeralBox.create(config)),
  keep,
};

const { default: tests } = await import(`./subjects/${process.argv[2]}.mjs`);
const state = {};
for (const [test, body] of Object.entries(tests)) {
  let error;
  try { await body(tools, state); } catch (e) { error = e?.stack ?? String(e); }
  console.log(JSON.stringify({ test, error }));
}
for (const box of boxes) await box.delete().catch(() => {});
console.log(JSON.stringify({ table, worked: [...worked] }));
