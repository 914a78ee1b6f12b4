// Runs the tests of one subject, and prints a line of JSON for each, then one with the SDK methods that succeeded.
import * as sdk from "@upstash/box";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Recorder } from "./shapes.mjs";

const internal = (name) => name.startsWith("_") || ["constructor", "log", "length", "name", "prototype", "WORKSPACE"].includes(name);
const worked = new Set();

// With SHAPES, calls are compared with the SDK's types. WITHOUT is an option that is left out of all calls; then only the
// tests that use it run (ONLY, as JSON) and the ones that these need, until one fails.
const shapes = process.env.SHAPES ? JSON.parse(readFileSync(process.env.SHAPES, "utf8")) : { methods: {}, instances: {} };
const recorder = new Recorder(shapes, process.env.WITHOUT);
const aliases = {};
const attempts = new WeakMap(); // error of a call -> records its options

// watch wraps a function to record a call that succeeds.
function watch(name, fn) {
  const method = () => aliases[name] ?? name;
  const note = (args, value) => {
    worked.add(name);
    recorder.called(method(), args);
    recorder.answered(method(), value);
    return instance(value, method());
  };
  const failed = (args, error) => {
    attempts.set(error, () => recorder.called(method(), args));
    throw error;
  };
  return function (...args) {
    const value = fn.apply(this, recorder.args(method(), args));
    return value instanceof Promise ? value.then((v) => note(args, v), (e) => failed(args, e)) : note(args, value);
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
const kinds = { Box: sdk.Box, EphemeralBox: sdk.EphemeralBox, Run: sdk.Run, StreamRun: sdk.StreamRun };

// instance checks a box or run that a method returned, and watches the namespaces of a box.
function instance(value, method) {
  const kind = Object.keys(kinds).find((kind) => value?.constructor === kinds[kind]);
  if (!kind) return value;
  if (kind !== "StreamRun" && kind in recorder.instances) recorder.instance(kind, value);
  if (watched.has(value)) return value;
  watched.add(value);
  if (kind === "StreamRun" && kind in recorder.instances) value[Symbol.asyncIterator] = watchChunks(value, method);
  if (!kind.endsWith("Box")) return value;
  const own = {};
  for (const [space, name, fn] of namespaces(value)) (own[space] ??= {})[name] = watch(`${kind}#${space}.${name}`, fn);
  return Object.assign(value, own);
}

function watchChunks(run, method) {
  const chunks = recorder.chunks(method, run, run[Symbol.asyncIterator]());
  return () => chunks;
}

// Functions under two names have their options under the first.
for (const [name, other] of [["EphemeralBox.getByName", "Box.get"], ["EphemeralBox.delete", "Box.delete"], ["EphemeralBox.deleteSnapshots", "Box.deleteSnapshots"], ["Box.getByName", "Box.get"]]) {
  const at = (path) => path.split(".").reduce((o, key) => o[key], sdk);
  if (at(name) === at(other)) aliases[name] = other;
}

// The table of methods is read from the package's classes.
const table = [];
for (const kind of Object.keys(kinds)) {
  table.push(...watchMembers(sdk[kind], kind + "."), ...watchMembers(sdk[kind].prototype, kind + "#"));
}
const blank = new sdk.Box({ id: "none" }, { baseUrl: "", headers: {} });
const blankEphemeral = new sdk.EphemeralBox(blank, 0);
for (const [space, name] of namespaces(blank)) table.push(`Box#${space}.${name}`);
for (const [space, name, fn] of namespaces(blankEphemeral)) {
  table.push(`EphemeralBox#${space}.${name}`);
  if (fn === blank[space]?.[name]) aliases[`EphemeralBox#${space}.${name}`] = `Box#${space}.${name}`;
}

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

// stopped asserts that a call fails because of its options, which are thereby used.
async function stopped(promise, sentence) {
  const error = await promise.then((v) => assert.fail(`was not stopped: ${JSON.stringify(v)}`), (e) => e);
  assert.match(String(error), sentence);
  attempts.get(error)?.();
  return error;
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

// passMinute has the gateway's clock set forward by a minute, for schedules.
const passMinute = () => console.log(JSON.stringify({ minute: true }));

const boxes = [];
const keep = (box) => (boxes.push(box), box);
const tools = {
  ...sdk, assert, base, key, call, refused, stopped, until, passMinute, collect,
  create: async (config) => keep(await sdk.Box.create(config)),
  ephemeral: async (config) => keep(await sdk.EphemeralBox.create(config)),
  keep,
};

// inTime bounds a test from which an option is missing, such as a timeout.
function inTime(test) {
  if (!process.env.WITHOUT) return test;
  const late = new Promise((_, reject) => setTimeout(() => reject(new Error("the test does not end")), 150_000).unref());
  return Promise.race([test, late]);
}

// wanted tells whether a test is among ONLY or needed by one of these: by the table of its subject, or else any earlier test.
function wanted(test) {
  if (!process.env.ONLY) return true;
  const only = JSON.parse(process.env.ONLY), names = Object.keys(tests);
  if (!needs) return only.some((name) => names.indexOf(name) >= names.indexOf(test));
  return only.some((name) => name === test || (needs[name] ?? needs[""] ?? []).includes(test));
}

const { default: tests, needs } = await import(`./subjects/${process.argv[2]}.mjs`);
const state = {};
for (const [test, body] of Object.entries(tests).filter(([test]) => wanted(test))) {
  let error;
  recorder.begin();
  try {
    await inTime(body(tools, state));
    assert.deepEqual([...recorder.faults], [], "calls and answers do not match the SDK's types");
  } catch (e) { error = e?.stack ?? String(e); }
  console.log(JSON.stringify({ test, error, used: [...recorder.used] }));
  if (error && process.env.WITHOUT) break;
}
for (const box of boxes) await box.delete().catch(() => {});
const { options, fields } = recorder.table(aliases);
console.log(JSON.stringify({ table, worked: [...worked], options, fields, seen: [...recorder.seen] }));
if (process.env.WITHOUT) process.exit(); // a test may go on
