// Prints the parameters and results of an SDK's methods as JSON, read from its type declarations by the TypeScript compiler:
// node shape.mjs DECLARATIONS [CLASS...], for the classes of @upstash/box if none is named.
//
// A shape is {type}, {value}, {array}, {any: [shapes]}, {object: {key: {shape, optional}}, index, name} or, for an instance of a
// class of the SDK, {instance, chunk}.
import { realpathSync } from "node:fs";
import { dirname } from "node:path";
import ts from "typescript";

const entry = realpathSync(process.argv[2]);
const program = ts.createProgram([entry], { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext, strict: true, skipLibCheck: true, types: [], lib: ["lib.es2022.d.ts"] });
const checker = program.getTypeChecker();
const exported = new Map(checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(entry))).map((s) => {
  return [s.name, s.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(s) : s];
}));
const classes = process.argv.length > 3 ? process.argv.slice(3) : ["Box", "EphemeralBox", "Run", "StreamRun"];

const home = dirname(entry) + "/";
const own = (symbol) => symbol?.declarations?.every((d) => d.getSourceFile().fileName.startsWith(home));
const typeOf = (symbol) => checker.getTypeOfSymbolAtLocation(symbol, symbol.valueDeclaration ?? symbol.declarations[0]);

// hidden tells private, protected and internal members, and those that no name reaches.
function hidden(symbol) {
  const private_ = symbol.declarations?.some((d) => ts.getCombinedModifierFlags(d) & (ts.ModifierFlags.Private | ts.ModifierFlags.Protected));
  return private_ || /^(_|prototype$)/.test(symbol.name) || symbol.getJsDocTags().some((t) => t.name === "internal");
}

// branches are the types that a deferred conditional type can become.
function branches(type) {
  const node = type.root.node;
  return [node.trueType, node.falseType].map((n) => checker.getTypeFromTypeNode(n));
}

const primitives = [
  [ts.TypeFlags.String, "string"], [ts.TypeFlags.Number, "number"], [ts.TypeFlags.BooleanLike, "boolean"], [ts.TypeFlags.Null, "null"],
  [ts.TypeFlags.Undefined | ts.TypeFlags.Void, "undefined"], [ts.TypeFlags.Unknown | ts.TypeFlags.Any | ts.TypeFlags.TypeParameter | ts.TypeFlags.NonPrimitive, "unknown"], [ts.TypeFlags.Never, "never"],
];

function shape(type) {
  if (type.isStringLiteral() || type.isNumberLiteral()) return { value: type.value };
  for (const [flag, name] of primitives) if (type.flags & flag) return { type: name };
  if (type.isUnion()) return { any: type.types.map((t) => named(shape(t), type.aliasSymbol?.name)) };
  if (type.flags & ts.TypeFlags.Conditional) return { any: branches(type).map(shape) };
  const symbol = type.getSymbol();
  if (checker.isArrayType(type)) return { array: shape(checker.getTypeArguments(type)[0]) };
  if (type.getCallSignatures().length > 0) return { type: "function" };
  if (type.getConstructSignatures().length > 0) return { type: "foreign" }; // a class
  if (symbol?.name === "Promise") return shape(checker.getTypeArguments(type)[0]);
  if (classes.includes(symbol?.name)) return { instance: symbol.name, chunk: symbol.name === "StreamRun" ? shape(checker.getTypeArguments(type)[1]) : undefined };
  if (symbol && !own(symbol) && !type.isIntersection() && !type.aliasSymbol) return { type: "foreign" };
  return object(type);
}

function named(s, name) {
  if (!s.object || s.name || !name) return s;
  return { ...s, name: s.object.type?.shape.value ? `${name}<${s.object.type.shape.value}>` : name };
}

function object(type) {
  const index = type.getStringIndexType();
  const name = type.aliasSymbol?.name ?? type.getSymbol()?.name;
  const members = type.getProperties().map((p) => [p.name, { shape: shape(typeOf(p)), optional: Boolean(p.flags & ts.SymbolFlags.Optional) }]);
  return { object: Object.fromEntries(members), index: index && shape(index), name: own(type.aliasSymbol ?? type.getSymbol()) && !name.startsWith("__") ? name : undefined };
}

// method describes a function, with the parameters of all its signatures.
function method(signatures) {
  const parameters = [];
  for (const signature of signatures) {
    for (const [i, p] of signature.getParameters().entries()) {
      const more = shape(typeOf(p));
      parameters[i] = parameters[i] ? { name: p.name, shape: { any: [parameters[i].shape, more] } } : { name: p.name, shape: more };
    }
  }
  const results = new Set(signatures.map((s) => JSON.stringify(shape(s.getReturnType()))));
  return { parameters, result: results.size === 1 ? shape(signatures[0].getReturnType()) : { any: [...results].map((r) => JSON.parse(r)) } };
}

// members describes the methods of a class or its prototype, those in its namespaces, and its fields.
function members(type, prefix, methods, fields) {
  for (const p of type.getProperties().filter((p) => !hidden(p))) {
    const t = typeOf(p);
    const inside = t.getConstructSignatures().length > 0 ? [] : t.getProperties().filter((m) => !hidden(m) && typeOf(m).getCallSignatures().length > 0);
    if (t.getCallSignatures().length > 0) methods[prefix + p.name] = method(t.getCallSignatures());
    else if (own(t.getSymbol()) && inside.length > 0) for (const m of inside) methods[`${prefix}${p.name}.${m.name}`] = method(typeOf(m).getCallSignatures());
    else fields[p.name] = { shape: shape(t), optional: false };
  }
}

const methods = {}, instances = {};
for (const name of classes) {
  const symbol = exported.get(name), fields = {};
  members(checker.getTypeOfSymbolAtLocation(symbol, symbol.valueDeclaration), name + ".", methods, {});
  members(checker.getDeclaredTypeOfSymbol(symbol), name + "#", methods, fields);
  instances[name] = { object: fields, name };
}
console.log(JSON.stringify({ methods, instances }));
