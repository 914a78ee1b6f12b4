import { randomUUID } from "node:crypto";
import http from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";

const sessions = {};
function makeServer() {
  const server = new McpServer({ name: "tools", version: "1" });
  for (const name of ["search", "read_file", "delete_file"]) server.registerTool(name, { description: name }, async () => {
    console.log("called " + name);
    const roots = name === "read_file" ? (await server.server.listRoots()).roots.map((r) => r.uri).join() : "";
    return { content: [{ type: "text", text: name + " " + roots }] };
  });
  return server;
}
http.createServer(async (req, res) => {
  console.log("received " + req.method);
  let transport = sessions[req.headers["mcp-session-id"]];
  if (!transport) {
    transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, onsessioninitialized: (id) => { sessions[id] = transport; } });
    await makeServer().connect(transport);
  }
  await transport.handleRequest(req, res);
}).listen(process.argv[2], () => console.log("listening"));
