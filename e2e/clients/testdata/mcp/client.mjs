import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ListResourcesResultSchema, ListRootsRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const client = new Client({ name: "agent", version: "1" }, { capabilities: { roots: {} } });
client.setRequestHandler(ListRootsRequestSchema, async () => ({ roots: [{ uri: "file:///work" }] }));
const transport = new StreamableHTTPClientTransport(new URL(process.argv[2]));
await client.connect(transport);
const show = async (what, f) => console.log(what + "=" + await f().catch((e) => "refused " + /unreadable_content|request_rule/.exec(e.message)));
await show("tools", async () => (await client.listTools()).tools.map((t) => t.name).join());
for (const name of ["search", "read_file", "delete_file"]) await show(name, async () => (await client.callTool({ name, arguments: {} })).content[0].text);
await show("resources", async () => (await client.request({ method: "resources/list" }, ListResourcesResultSchema)).resources.length);
await show("ping", async () => JSON.stringify(await client.ping()));
await show("end", async () => String(await transport.terminateSession()));
await client.close();
