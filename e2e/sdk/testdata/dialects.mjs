// Prints the network policies that the SDKs of other products send, using their code: a line of JSON for each request, with
// the name of the case, how it is sent (create or update) and the part that becomes a box's policy.
import http from "node:http";
import { Sandbox as Vercel } from "@vercel/sandbox";
import { Sandbox as E2B, Secret } from "e2b";

const { APIClient } = await import(new URL("node_modules/@vercel/sandbox/dist/api-client/api-client.js", import.meta.url));
const { API, API6, EVIL } = process.env; // addresses

const vercel = {
  open: "allow-all",
  closed: "deny-all",
  list: { allow: ["*.example.com"], subnets: { allow: [EVIL + "/32"], deny: [API + "/32", API6 + "/128"] } },
  rules: {
    allow: {
      "api.example.com": [
        {
          match: {
            method: ["POST"], path: { startsWith: "/v1/" },
            headers: [{ key: { exact: "x-api-key" }, value: { exact: "placeholder" } }],
          },
          transform: [{ headers: { authorization: "Bearer canary" } }],
        },
        { match: { queryString: [{ key: { exact: "model" }, value: { regex: "^small" } }] }, transform: [{ headers: { "x-model": "small" } }] },
        { match: { path: { startsWith: "/in/" } }, forwardURL: "https://proxy.example.net:8443/sandbox" },
        { match: { path: { exact: "/open" } }, transform: [] },
        { response: { statusCode: 403 } },
      ],
      "www.example.com": [],
    },
  },
  "another response": { allow: { "api.example.com": [{ response: { statusCode: 404, body: "no", contentType: "text/plain" } }] } },
};

const e2b = {
  rules: {
    network: {
      allowOut: ({ rules }) => [...rules.keys()],
      denyOut: ({ allTraffic }) => [allTraffic],
      rules: new Map([["api.example.com", [
        { transform: () => ({ headers: { Authorization: "Bearer canary", "X-Tenant": "first" } }) },
        { transform: { headers: { "X-Tenant": "second" } } },
      ]]]),
    },
  },
  "denied address": { network: { denyOut: [API, API6 + "/128"] } },
  "no internet": { allowInternetAccess: false },
  "no internet but one host": { allowInternetAccess: false, network: { allowOut: ["www.example.com"] } },
  "identity tokens": {
    iam: { tokens: { aws: Secret.iamToken({ audience: "sts", tokenType: "jwt" }) } },
    network: { allowOut: ["api.example.com"], denyOut: ["0.0.0.0/0"], rules: { "api.example.com": [{ transform: ({ iam }) => ({ headers: { Authorization: iam.tokens.aws } }) }] } },
  },
  "nothing denied": { network: { allowOut: ["www.example.com"] } },
  "HTTPS ports": { network: { httpsPorts: [3000] } },
  "another host": { network: { maskRequestHost: "${PORT}-box.example.com" } },
  "private URLs": { network: { allowPublicTraffic: false } },
};

const print = (dialect, name, how, policy) => console.log(JSON.stringify({ case: dialect + ": " + name, how, policy }));

// request returns the body that an SDK sends. The SDK's request fails.
async function request(send) {
  let body;
  const server = http.createServer(async (req, res) => {
    let text = "";
    for await (const part of req) text += part;
    body ??= JSON.parse(text);
    res.writeHead(400, { "content-type": "application/json" }).end('{"code": 400, "message": "recorded"}');
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  try {
    await send("http://127.0.0.1:" + server.address().port);
  } catch (e) {
    if (!body) throw e;
  } finally {
    server.closeAllConnections();
    server.close();
  }
  return body;
}

// through returns a fetch that uses another server instead of Vercel's.
const through = (at) => (url, init) => fetch(at + new URL(url).pathname, { ...init, dispatcher: undefined });

for (const [name, networkPolicy] of Object.entries(vercel)) {
  const who = { token: "t", teamId: "team", projectId: "p" };
  const made = await request((at) => Vercel.create({ ...who, networkPolicy, fetch: through(at) }));
  print("vercel", name, "create", made.networkPolicy);
  print("vercel", name, "update", await request((at) => new APIClient({ ...who, fetch: through(at) }).updateNetworkPolicy({ sessionId: "s", networkPolicy })));
}
for (const [name, options] of Object.entries(e2b)) {
  const made = await request((at) => E2B.create({ apiKey: "e2b_" + "0".repeat(40), apiUrl: at, ...options }));
  print("e2b", name, "create", { ...made.network, allow_internet_access: made.allow_internet_access });
  const { iam, network, ...rest } = options;
  print("e2b", name, "update", await request((at) => E2B.updateNetwork("sandbox", { ...network, ...rest }, { apiKey: "e2b_" + "0".repeat(40), apiUrl: at })));
}
