// Compares calls of the SDK with the shapes that types/shape.mjs read from its type declarations.

// flat returns the alternatives of a shape.
const flat = (shape) => (shape.any ? shape.any.flatMap(flat) : [shape]);
const given = (shape) => flat(shape).some((s) => s.type !== "undefined" && s.type !== "never");
const literal = (shape) => typeof shape.value === "string";

// values are the strings of a closed union. Where any string is allowed, and below the options of an agent, which the
// gateway hands over as they are, there are none.
function values(shape, at) {
  const all = flat(shape);
  return all.some((s) => s.type === "string") || /\.options\b/.test(at) ? [] : all.filter(literal).map((s) => s.value);
}

// merged returns the members of all alternatives that are objects.
function merged(shape) {
  const members = {}, index = [];
  for (const s of flat(shape).filter((s) => s.object)) {
    for (const [key, m] of Object.entries(s.object)) if (given(m.shape)) members[key] = { any: [...(members[key]?.any ?? []), m.shape] };
    if (s.index) index.push(s.index);
  }
  return { members, index: index.length > 0 ? { any: index } : undefined };
}

const element = (shape) => ({ any: flat(shape).filter((s) => s.array).map((s) => s.array) });
const plain = (value) => typeof value === "object" && value !== null && [Object.prototype, null].includes(Object.getPrototypeOf(value));

// list adds all options of a shape.
function list(shape, at, out) {
  for (const value of values(shape, at)) out.add(`${at}=${value}`);
  if (element(shape).any.length > 0) list(element(shape), `${at}[]`, out);
  const { members, index } = merged(shape);
  for (const [key, member] of Object.entries(members)) list(member, `${at}.${key}`, out.add(`${at}.${key}`));
  if (index) list(index, `${at}.*`, out);
}

// use adds the options that a value has, and to unknown the ones that its shape lacks.
function use(shape, value, at, out, unknown) {
  if (values(shape, at).includes(value)) out.add(`${at}=${value}`);
  if (Array.isArray(value)) for (const v of value) use(element(shape), v, `${at}[]`, out, unknown);
  if (!plain(value) || flat(shape).some((s) => s.type === "unknown")) return;
  const { members, index } = merged(shape);
  for (const [key, v] of Object.entries(value).filter(([, v]) => v !== undefined)) {
    if (members[key]) use(members[key], v, `${at}.${key}`, out.add(`${at}.${key}`), unknown);
    else if (index) use(index, v, `${at}.*`, out, unknown);
    else unknown.add(`${at}.${key}`);
  }
}

// without returns a copy of a value that lacks an option, or has another value of a closed union.
function without(shape, value, at, option) {
  if (at === option) return undefined;
  if (!option.startsWith(at)) return value;
  if (option === `${at}=${value}`) return values(shape, at).find((v) => v !== value);
  if (Array.isArray(value)) return value.map((v) => without(element(shape), v, `${at}[]`, option));
  if (!plain(value)) return value;
  const { members, index } = merged(shape);
  return Object.fromEntries(Object.entries(value).map(([key, v]) => [key, without(members[key] ?? index ?? {}, v, members[key] ? `${at}.${key}` : `${at}.*`, option)]));
}

// seconds tells times in seconds since 1970, from a day ago to a week ahead.
const seconds = (n) => Math.abs(n - Date.now() / 1000 - 3 * 86400) < 4 * 86400;
const isTime = (key) => /(_at|[a-z]At|^timestamp)$/.test(key);

const kinds = {
  undefined: (v) => v === undefined, null: (v) => v === null, never: () => false, unknown: () => true, foreign: () => true,
  string: (v) => typeof v === "string", number: (v) => typeof v === "number" && Number.isFinite(v), boolean: (v) => typeof v === "boolean", function: (v) => typeof v === "function",
};

// check returns the faults of an answer, and adds its fields to seen.
function check(shape, value, at, seen) {
  if (shape.any) {
    const tried = flat(shape).map((s) => { const own = new Set(); return { own, faults: check(s, value, at, own) }; });
    const best = tried.reduce((a, b) => (b.faults.length <= a.faults.length ? b : a));
    for (const field of best.own) seen.add(field);
    return best.faults;
  }
  if ("value" in shape) return value === shape.value ? [] : [`${at} is ${JSON.stringify(value)}, not ${shape.value}`];
  if (shape.type) return kinds[shape.type](value) ? [] : [`${at} is ${JSON.stringify(value)}, not ${shape.type}`];
  if (shape.array) return Array.isArray(value) ? value.flatMap((v, i) => check(shape.array, v, `${at}[${i}]`, seen)) : [`${at} is no array`];
  if (shape.instance) return [];
  if (typeof value !== "object" || value === null) return [`${at} is ${JSON.stringify(value)}, no object`];
  const faults = [];
  for (const [key, m] of Object.entries(shape.object)) {
    const v = value[key];
    if (v === undefined && m.optional) continue;
    faults.push(...check(m.shape, v, `${at}.${key}`, seen));
    if (isTime(key) && typeof v === "number" && !seconds(v)) faults.push(`${at}.${key} is ${v}, no time in seconds`);
    if (v !== undefined && shape.name) seen.add(`${shape.name}.${key}`);
  }
  if (shape.index) for (const [key, v] of Object.entries(value)) if (!(key in shape.object)) faults.push(...check(shape.index, v, `${at}.${key}`, seen));
  return faults;
}

// fields adds the fields of all named objects of a shape.
function fields(shape, out) {
  for (const s of flat(shape)) {
    if (s.array) fields(s.array, out);
    for (const [key, m] of Object.entries(s.object ?? {})) {
      if (s.name && given(m.shape)) out.add(`${s.name}.${key}`);
      fields(m.shape, out);
    }
  }
}

// Recorder notes the options of calls that succeeded, the fields of their answers, and what no type has.
export class Recorder {
  used = new Set();
  seen = new Set();
  faults = new Set();

  constructor({ methods, instances }, drop = "") {
    Object.assign(this, { methods, instances, drop });
  }

  // begin begins a test.
  begin() {
    this.used.clear();
    this.faults.clear();
  }

  *parameters(method, args) {
    for (const [i, p] of (this.methods[method]?.parameters ?? []).entries()) yield { at: `${method}(${p.name})`, shape: p.shape, value: args?.[i] };
  }

  // args returns the arguments of a call without the option that is left out.
  args(method, args) {
    if (!this.drop.startsWith(`${method}(`)) return args;
    return [...this.parameters(method, args)].map(({ at, shape, value }) => without(shape, value, at, this.drop));
  }

  called(method, args) {
    for (const { at, shape, value } of this.parameters(method, args)) {
      const unknown = new Set();
      if (value !== undefined) use(shape, value, at, this.used.add(at), unknown);
      for (const option of unknown) this.faults.add(`${option} is no option of the SDK`);
    }
  }

  // answered checks the result of a method, or an instance, whose kind is that of its class.
  answered(method, value) {
    const result = this.methods[method]?.result;
    if (!result) return;
    // In the SDK's type, runs of schedules are over. The gateway lists the ones that run or were cancelled too.
    if (method === "Box#listRuns") value = value.map((r) => (/running|cancelled/.test(r.status) ? { ...r, schedule_id: undefined } : r));
    for (const fault of check(result, value, method, this.seen)) this.faults.add(fault);
  }

  instance(kind, value) {
    for (const fault of check(this.instances[kind], value, kind, this.seen)) this.faults.add(fault);
  }

  // chunks checks the chunks of a stream, and the run at its end.
  async *chunks(method, run, iterator) {
    const shape = flat(this.methods[method]?.result ?? {}).find((s) => s.chunk)?.chunk;
    for await (const chunk of iterator) {
      if (shape) for (const fault of check(shape, chunk, method, this.seen)) this.faults.add(fault);
      yield chunk;
    }
    this.instance("StreamRun", run);
  }

  // table returns the options of all methods, but those under another name of a method, and the fields of all results.
  table(aliases) {
    const options = new Set(), answers = new Set();
    for (const method of Object.keys(this.methods)) {
      if (method in aliases) continue;
      for (const { at, shape } of this.parameters(method)) list(shape, at, options.add(at));
      fields(this.methods[method].result, answers);
      for (const s of flat(this.methods[method].result)) if (s.chunk) fields(s.chunk, answers);
    }
    for (const shape of Object.values(this.instances)) fields(shape, answers);
    return { options: [...options], fields: [...answers] };
  }
}
