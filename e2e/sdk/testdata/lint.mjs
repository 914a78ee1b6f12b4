// Lints an OpenAPI description with every recommended rule as an error, and prints a line of JSON for each problem.
import { createConfig, lintFromString } from "@redocly/openapi-core";
import { readFile } from "node:fs/promises";

const config = await createConfig({ extends: ["recommended-strict"] });
const source = await readFile(process.argv[2], "utf8");
for (const p of await lintFromString({ source, absoluteRef: "/openapi.json", config })) {
  console.log(JSON.stringify({ rule: p.ruleId, at: p.location[0].pointer, message: p.message }));
}
