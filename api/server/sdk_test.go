package server

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/api/apitest"
	"boxgate/policy"
	"boxgate/rule/header"
)

// sdkScript is a program that uses the SDK and prints its observations as JSON.
const sdkScript = `
import { Box, EphemeralBox, BoxError } from "@upstash/box";
const seen = {};
const box = await Box.create({
  name: "sdk", labels: ["beta"], runtime: "node", size: "small", env: { A: "b" },
  attachHeaders: { "api.example.com": { Authorization: "Bearer sk-sdk" } },
  networkPolicy: { mode: "custom", allowedDomains: ["api.example.com"], deniedCidrs: ["192.0.2.0/24"] },
});
seen.id = box.id;
seen.policy = box.networkPolicy;
seen.status = (await box.getStatus()).status;
const run = await box.exec.command("echo out; echo err >&2; exit 3");
seen.run = { stdout: run.stdout, stderr: run.stderr, exit: run.exitCode, status: run.status };
const stream = await box.exec.stream("echo one; echo two");
seen.chunks = ""; 
for await (const c of stream) { if (c.type === "output") seen.chunks += c.data; else seen.exit = c; }
seen.streamStatus = stream.status;
await run.cancel();
seen.logs = (await box.logs({ limit: 50 })).map((l) => l.message);
seen.runs = (await box.listRuns()).map((r) => r.status);
await box.updateNetworkPolicy({ mode: "deny-all" });
const again = await Box.getByName("sdk");
seen.again = { id: again.id, policy: again.networkPolicy };
try { await box.updateNetworkPolicy({ mode: "custom", allowedDomains: ["https://x/"] }); }
catch (e) { seen.refusal = { ours: e instanceof BoxError, code: e.statusCode, message: e.message }; }
seen.url = await box.getPublicURL(3000, { bearerToken: true, basicAuth: true });
seen.urls = (await box.listPublicURLs()).publicURLs;
await box.deletePublicURL(3000);
seen.urlsAfter = (await box.listPublicURLs()).publicURLs.length;
seen.listed = (await Box.list({ label: "beta" })).map((b) => b.id);
const short = await EphemeralBox.create({ ttl: 60 });
seen.expires = short.expiresAt;
const agent = await Box.create({ agent: { harness: "claude-code", model: "anthropic/claude-sonnet-5", apiKey: "sk-a" } });
seen.model = agent.modelConfig.model;
try { await agent.agent.run({ prompt: "hi" }); } catch (e) { seen.agent = { code: e.statusCode, message: e.message }; }
await Box.delete({ boxIds: [short.id, agent.id] });
await box.delete();
try { await Box.get(box.id); } catch (e) { seen.gone = e.statusCode; }
console.log(JSON.stringify(seen));
`

// TestSDK drives the API with the unmodified npm package.
func TestSDK(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("installs the SDK from the npm registry (make test)")
	}
	dir := t.TempDir()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("this test needs Node.js and npm: apt-get install nodejs npm")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline", "@upstash/box@0.5.5")
	install.Dir = dir
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type":"module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "main.js"), []byte(sdkScript), 0o600); err != nil {
		t.Fatal(err)
	}
	f := serve(t)
	cmd := exec.CommandContext(ctx, node, "main.js")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "UPSTASH_BOX_BASE_URL="+f.URL, "UPSTASH_BOX_API_KEY="+apitest.Key)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, &stderr)
	}
	checkSDK(t, f, out)
}

func checkSDK(t *testing.T, f *fixture, out []byte) {
	t.Helper()
	var seen map[string]json.RawMessage
	if err := json.Unmarshal(out, &seen); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	for field, want := range map[string]string{
		"id":           `"box1"`,
		"policy":       `{"mode":"custom","allowedDomains":["api.example.com"],"deniedCidrs":["192.0.2.0/24"]}`,
		"status":       `"idle"`,
		"run":          `{"stdout":"out\n","stderr":"err\n","exit":3,"status":"failed"}`,
		"chunks":       `"one\ntwo\n"`,
		"exit":         `{"type":"exit","exitCode":0,"cpuNs":1500}`,
		"streamStatus": `"completed"`,
		"runs":         `["completed","failed"]`,
		"again":        `{"id":"box1","policy":{"mode":"deny-all"}}`,
		"url": `{"url":"https://box1-3000.preview.test","port":3000,"bearer_token":true,"basic_auth":true,` +
			`"token":"url-token-secret","username":"box","password":"url-password-secret","created_at":1700000000}`,
		"urls":      `[{"url":"https://box1-3000.preview.test","port":3000,"bearer_token":true,"basic_auth":true,"created_at":1700000000}]`,
		"urlsAfter": `0`,
		"listed":    `["box1"]`,
		"expires":   `1700000060`,
		"model":     `"anthropic/claude-sonnet-5"`,
		"gone":      `404`,
	} {
		if string(seen[field]) != want {
			t.Errorf("%s: %s, want %s", field, seen[field], want)
		}
	}
	if s := string(seen["refusal"]); !strings.Contains(s, `"ours":true,"code":422`) || !strings.Contains(s, "/allowed_domains/0") {
		t.Errorf("refusal: %s", s)
	}
	if s := string(seen["agent"]); !strings.Contains(s, "/usr/lib/boxgate/agents/claude-code cannot be started") {
		t.Errorf("agent: %s", s)
	}
	if s := string(seen["logs"]); !strings.Contains(s, "box created") || !strings.Contains(s, "exit 3") {
		t.Errorf("logs: %s", s)
	}
	first := f.host.Created[0]
	if len(first.Headers) != 1 || header.Of(first.Headers[0].Effects)[0].Literal.Reveal() != "Bearer sk-sdk" || first.Policy.Mode != policy.ModeCustom {
		t.Errorf("create: %+v", first)
	}
	if len(f.host.ByID) != 0 {
		t.Errorf("%d boxes are left", len(f.host.ByID))
	}
}
