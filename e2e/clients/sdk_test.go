package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// sdkScript drives the gateway with the unmodified SDK.
const sdkScript = `
import { Box } from "@upstash/box";
import http from "node:http";
const show = (k, v) => console.log(k + "=" + v);
const box = await Box.create({
  name: "sdk", networkPolicy: { mode: "custom", allowedDomains: ["api.example.com"] },
  attachHeaders: { "api.example.com": { Authorization: "Bearer " + process.env.KEY } },
});
show("status", (await box.getStatus()).status);
const run = await box.exec.command("curl -sS https://api.example.com/sdk");
show("exit", run.exitCode);
show("denied", (await box.exec.command("curl -sS https://www.example.com/")).exitCode);
await box.updateNetworkPolicy({ mode: "custom", allowedDomains: ["api.example.com", "www.example.com"] });
show("opened", (await box.exec.command("curl -k -sS -o /dev/null https://www.example.com/")).exitCode);
let streamed = "";
for await (const chunk of await box.exec.stream("for i in 1 2 3; do echo $i; done")) if (chunk.type === "output") streamed += chunk.data;
show("streamed", streamed.trim().split("\n").join(","));
await box.exec.command("echo hello > index.html; setsid python3 -m http.server 9000 >/dev/null 2>&1 & until curl -s -o /dev/null http://127.0.0.1:9000/; do sleep 0.05; done");
const made = await box.getPublicURL(9000, { bearerToken: true });
// No DNS server resolves the names of public URLs here.
const visit = (headers) => new Promise((resolve, reject) => http.get(made.url, { headers, lookup: (_, o, cb) =>
  o.all ? cb(null, [{ address: "127.0.0.1", family: 4 }]) : cb(null, "127.0.0.1", 4) }, (r) => resolve(r.resume().statusCode)).on("error", reject));
show("url401", await visit({}));
show("url200", await visit({ Authorization: "Bearer " + made.token }));
show("urls", (await box.listPublicURLs()).publicURLs?.length ?? (await box.listPublicURLs()).previews?.length);
await box.deletePublicURL(9000);
show("url404", await visit({}));
show("boxes", (await Box.list()).length);
await box.delete();
show("left", (await Box.list()).length);
`

func TestSDK(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Ingress.HTTPS, c.Ingress.HTTP, c.Ingress.Domain = "", "127.0.0.1:80", "localhost"
	})
	dir := t.TempDir()
	install := exec.CommandContext(t.Context(), "npm", "install", "--no-audit", "--no-fund", "--silent", "@upstash/box")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install @upstash/box: %v: %s", err, out)
	}
	script := filepath.Join(dir, "drive.mjs")
	if err := os.WriteFile(script, []byte(sdkScript), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(w.Dir, "state", "api-key"))
	if err != nil {
		t.Fatal(err)
	}
	node := exec.Command("node", script)
	node.Dir = dir
	node.Env = append(os.Environ(), "UPSTASH_BOX_BASE_URL=http://127.0.0.1:8600", "UPSTASH_BOX_API_KEY="+strings.TrimSpace(string(key)), "KEY="+harness.TestSecret)
	var out lab.SyncBuffer
	node.Stdout, node.Stderr = &out, &out
	if err := w.Net.Gateway().Start(node); err != nil {
		t.Fatal(err)
	}
	if err := node.Wait(); err != nil {
		t.Fatalf("the script failed: %v\n%s", err, out.String())
	}
	harness.Contains(t, out.String(), "exit=0\n", "denied=35\n", "opened=0\n", "streamed=1,2,3\n", "url401=401\n", "url200=200\n",
		"urls=1\n", "url404=404\n", "boxes=1\n", "left=0\n")
	seen := w.Net.Received("api.example.com", testnet.Path("/sdk"))
	if len(seen) != 1 || seen[0].Header.Get("Authorization") != "Bearer "+harness.TestSecret {
		t.Errorf("the server received %+v", seen)
	}
}
