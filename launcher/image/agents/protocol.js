"use strict";
// The part of box-sse-v1 that the adapters share. The gateway runs an adapter as
//
//	ADAPTER -p PROMPT --model MODEL --stream [--session ID]
//
// in the folder of the run, with JSON_SCHEMA, AGENT_OPTIONS and PROMPT_FILES_PATH where a run has them. The adapter runs
// its CLI, and turns the CLI's lines of JSON into events on standard output.
//
// The key of the model is not in the box: a header rule of the gateway sets it in each request. The CLIs insist on a
// variable, which has a placeholder.

const { spawn } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");

const placeholder = "set-by-the-gateway";

// Bounds within those of the gateway, which ends a run after an event of 1 MiB, or 64 MiB in total.
const maxText = 256 << 10;
const maxTotal = 48 << 20;

// After its result, a CLI may go on for this time, and is killed after the second one, in milliseconds.
const linger = 1000;
const most = 3000;

let written = 0;
let ended = false;
let stop = () => {}; // ends the CLI

// write writes to standard output, which is a pipe that may be full.
function write(text) {
  let rest = Buffer.from(text);
  written += rest.length;
  while (rest.length > 0) {
    try {
      rest = rest.subarray(fs.writeSync(1, rest));
    } catch (err) {
      if (err.code !== "EAGAIN") throw err;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}

// emit writes an event. After the end of the run, and beyond the bound on the total, it does nothing.
function emit(name, data) {
  const end = name === "done" || name === "error";
  if (ended || (!end && written > maxTotal)) return;
  ended = end;
  write(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`);
  if (end) stop();
}

// clip shortens a text.
function clip(text) {
  return text.length <= maxText ? text : `${text.slice(0, maxText)}\n[${text.length - maxText} more characters]`;
}

// clipped shortens the texts in a value, or the value's JSON if it is still too long.
function clipped(value) {
  if (typeof value === "string") return clip(value);
  const text = JSON.stringify(value) ?? "null";
  return text.length <= maxText ? value : clip(text);
}

let said = false; // in this run
let fresh = true; // the next text begins a block

const events = {
  // text emits a piece of the answer. Blocks of text are separated.
  text(text) {
    if (!text) return;
    if (fresh && said) emit("text", { text: "\n\n" });
    said = true;
    fresh = false;
    for (let i = 0; i < text.length; i += maxText) emit("text", { text: text.slice(i, i + maxText) });
  },
  // block begins a block of text.
  block() {
    fresh = true;
  },
  thinking(text) {
    if (text) emit("thinking", { text: clip(text) });
  },
  tool(id, name, input) {
    fresh = true;
    const short = clipped(input ?? {});
    emit("tool", { tool_call_id: id, name, input: typeof short === "object" ? short : { input: short } });
  },
  toolResult(id, output, failed) {
    emit("tool_result", { tool_call_id: id, output: clipped(output ?? ""), ...(failed ? { is_error: true } : {}) });
  },
  // notice tells about the run itself.
  notice(text) {
    emit("notice", { text });
  },
  // done ends the run. Input includes cached tokens.
  done(output, usage, session) {
    remember(session);
    emit("done", {
      output: clip(output),
      input_tokens: usage.input,
      cached_input_tokens: usage.cached,
      output_tokens: usage.output,
      session_id: session ?? "",
    });
  },
  error(message) {
    emit("error", { error: clip(String(message)).slice(0, 4096) });
  },
};

// isOver reports whether the run has had its end.
const isOver = () => ended;

function fail(message) {
  events.error(message);
  process.exit(1);
}

// parse returns the JSON of a variable, or fails the run.
function parse(name) {
  const text = process.env[name];
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return fail(`${name} is not JSON`);
  }
}

// readRun returns what the gateway asks for.
function readRun() {
  const run = { prompt: "", model: "", session: "", schema: parse("JSON_SCHEMA"), options: parse("AGENT_OPTIONS") ?? {}, files: [] };
  const args = process.argv.slice(2);
  const names = { "-p": "prompt", "--model": "model", "--session": "session" };
  while (args.length > 0) {
    const name = args.shift();
    if (names[name] && args.length > 0) run[names[name]] = args.shift();
    else if (name !== "--stream") fail(`unknown argument ${JSON.stringify(name.slice(0, 100))}`);
  }
  run.model = process.env.BOXGATE_AGENT_MODEL || run.model;
  if (run.model === "custom") run.model = "";
  run.baseURL = process.env.BOXGATE_AGENT_BASE_URL ?? "";
  const list = process.env.PROMPT_FILES_PATH;
  if (list) {
    try {
      run.files = JSON.parse(fs.readFileSync(list, "utf8"));
    } catch (err) {
      fail(`the files of the prompt cannot be read: ${err.message}`);
    }
  }
  return run;
}

// modelOf returns a model's name without its provider, as the provider's own API wants it. "openrouter/x/y" is "x/y".
function modelOf(model, ...providers) {
  const [first, ...rest] = model.split("/");
  return rest.length > 0 && [...providers, "openrouter", "vercel"].includes(first) ? rest.join("/") : model;
}

// checkOptions fails the run if an option is unknown to the adapter, so that none is dropped silently.
function checkOptions(options, known) {
  for (const name of Object.keys(options)) {
    if (!known.includes(name)) fail(`unknown option ${JSON.stringify(name.slice(0, 100))}; known ones: ${known.join(", ")}`);
  }
}

// Some CLIs find a conversation only in the folder where it began: folders are the ones of the last conversations.
const record = path.join(os.homedir(), ".box-internal", "conversations.json");
const maxFolders = 100;

function folders() {
  try {
    return new Map(JSON.parse(fs.readFileSync(record, "utf8")));
  } catch {
    return new Map(); // none yet, or not ours
  }
}

// folderOf returns the folder where a conversation began, if it is another one than that of the run and still there.
function folderOf(session) {
  const folder = folders().get(session);
  return folder && folder !== process.cwd() && fs.existsSync(folder) ? folder : undefined;
}

function remember(session) {
  const all = folders();
  if (!session || all.has(session)) return;
  const last = [...all, [session, process.cwd()]].slice(-maxFolders);
  try {
    fs.mkdirSync(path.dirname(record), { recursive: true });
    fs.writeFileSync(record, JSON.stringify(last));
  } catch {
    // in another folder, the next run begins a conversation of its own
  }
}

// from tells an agent that works in the folder of its conversation about the folder of the run.
function from(folder, prompt) {
  return folder ? `The working directory is ${process.cwd()} from here on.\n\n${prompt}` : prompt;
}

// temporary returns a folder that is removed at the end.
function temporary() {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), "agent-"));
  process.on("exit", () => fs.rmSync(dir, { recursive: true, force: true }));
  return dir;
}

// savedFiles writes the files of the prompt to a folder, and returns their paths.
function savedFiles(files) {
  if (files.length === 0) return [];
  const dir = temporary();
  return files.map((file, i) => {
    const name = path.basename(file.filename || "") || `file.${(file.media_type || "application/octet-stream").split("/")[1].replace(/[^a-z0-9]/g, "")}`;
    const saved = path.join(dir, `${i + 1}-${name.replace(/[^A-Za-z0-9._-]/g, "_")}`);
    fs.writeFileSync(saved, Buffer.from(file.data, "base64"));
    return saved;
  });
}

const maxInlined = 64 << 10; // bytes of a prompt's files; a model with one turn left cannot read them by a tool

// withFiles adds the files of the prompt to it: their paths, and the content of short text files.
function withFiles(prompt, files) {
  const paths = savedFiles(files);
  let left = maxInlined;
  const parts = files.flatMap((file, i) => {
    const data = Buffer.from(file.data, "base64");
    const text = data.length <= left ? textIn(data) : undefined;
    if (text === undefined) return [];
    left -= data.length;
    return [`\n\nContent of ${paths[i]}:\n${text}`];
  });
  return paths.length ? `${prompt}\n\nAttached files: ${paths.join(", ")}${parts.join("")}` : prompt;
}

// textIn returns a text in UTF-8, or undefined for other data.
function textIn(data) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    return text.includes("\0") ? undefined : text;
  } catch {
    return undefined;
  }
}

// withSchema adds the schema of the answer to a prompt, for CLIs that have no option for it.
function withSchema(prompt, schema) {
  if (!schema) return prompt;
  return `${prompt}\n\nAnswer with one JSON value and nothing else: no code fence, no comment. It must match this JSON schema:\n${JSON.stringify(schema)}`;
}

// onlyJSON returns the JSON value in an answer that may have a fence or words around it, or else the answer itself.
function onlyJSON(text) {
  const fenced = /```(?:json)?\s*([\s\S]*?)```/.exec(text);
  const braces = /[[{][\s\S]*[\]}]/.exec(text);
  for (const candidate of [text, fenced?.[1], braces?.[0]]) {
    try {
      return JSON.stringify(JSON.parse(candidate));
    } catch {
      // the next one
    }
  }
  return text;
}

// run runs a CLI, calls each for every value of JSON that it prints on a line, and resolves with the exit status and the
// end of its standard error, which is also passed on. Once the run is over, the CLI is killed if it does not end.
function run(program, args, { stdin = "", env = {}, folder }, each) {
  return new Promise((resolve) => {
    const child = spawn(program, args, { stdio: ["pipe", "pipe", "pipe"], cwd: folder, env: { ...process.env, ...env } });
    const result = { status: 0, stderr: "", noise: "" };
    let line = "";
    stop = () => {
      setTimeout(() => child.kill("SIGTERM"), linger).unref();
      setTimeout(() => child.kill("SIGKILL"), most).unref();
    };
    const take = (text) => {
      let value;
      try {
        value = JSON.parse(text);
      } catch {
        result.noise = (result.noise + text + "\n").slice(-2048);
        return;
      }
      if (value && typeof value === "object") each(value);
    };
    child.stdout.setEncoding("utf8").on("data", (chunk) => {
      const lines = (line + chunk).split("\n");
      line = lines.pop();
      lines.forEach((text) => text.trim() && take(text));
    });
    child.stderr.setEncoding("utf8").on("data", (chunk) => {
      result.stderr = (result.stderr + chunk).slice(-2048);
      process.stderr.write(chunk);
    });
    child.on("error", (err) => {
      fail(err.code === "ENOENT" ? `this box has no ${program}: the image debian-agents has it` : `${program}: ${err.message}`);
    });
    child.on("exit", () => setTimeout(() => resolve(result), most).unref()); // a program that it left may hold its output
    child.on("close", (code, signal) => {
      if (line.trim()) take(line);
      resolve({ ...result, status: code ?? signal });
    });
    child.stdin.on("error", () => {}); // it need not read
    child.stdin.end(stdin);
    for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  });
}

// finish ends the adapter after its CLI has ended.
function finish(program, result) {
  const words = (result.stderr.trim() || result.noise.trim()).slice(-1024);
  events.error(`${program} ended with status ${result.status} and no result${words ? ": " + words : ""}`); // ignored after the end
  process.exit(0);
}

module.exports = { placeholder, events, isOver, fail, readRun, modelOf, checkOptions, folderOf, from, temporary, savedFiles, withFiles, withSchema, onlyJSON, run, finish };
