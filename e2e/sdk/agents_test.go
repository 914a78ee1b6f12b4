package sdk

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/launcher"
)

// The keys that the SDK gives for agents in testdata/subjects/builtin.mjs.
const (
	modelKey = "sk-ant-the-key-of-the-test"
	mcpKey   = "the-mcp-key-of-the-test"
)

// standIn takes the place of each built-in harness: it asks the server of its model, and reports the answer.
const standIn = `#!/usr/bin/env node
import { readFileSync } from "node:fs";
const args = process.argv.slice(2);
const value = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const emit = (event, data) => process.stdout.write("event: " + event + "\ndata: " + JSON.stringify(data) + "\n\n");
const env = process.env;
const base = env.BOXGATE_AGENT_BASE_URL ?? "https://api.anthropic.com";
const files = env.PROMPT_FILES_PATH ? JSON.parse(readFileSync(env.PROMPT_FILES_PATH, "utf8")) : undefined;
const answer = await fetch(base + "/v1/messages", {
  method: "POST",
  headers: { "content-type": "application/json", "x-api-key": env.ANTHROPIC_API_KEY ?? "none", authorization: "Bearer " + (env.ANTHROPIC_AUTH_TOKEN ?? "none") },
  body: JSON.stringify({
    prompt: value("-p"), session: value("--session"), model: value("--model"), variable: env.BOXGATE_AGENT_MODEL, cwd: process.cwd(), files,
    options: env.AGENT_OPTIONS && JSON.parse(env.AGENT_OPTIONS), schema: env.JSON_SCHEMA && JSON.parse(env.JSON_SCHEMA),
  }),
});
if (!answer.ok) {
  emit("error", { error: "the model answered " + answer.status, input_tokens: 3, session_id: value("--session") });
  process.exit(1);
}
const { text, usage } = await answer.json();
emit("thinking", { text: "hm" });
emit("tool", { name: "Read", input: { path: "a" }, tool_use_id: "t1" });
emit("tool_result", { tool_use_id: "t1", output: "seen" });
emit("text", { text });
if (text === "wait") await new Promise((done) => setTimeout(done, 3600_000));
if (args.includes("strange")) emit("strange", { text });
emit("done", { output: text, input_tokens: usage.input_tokens, output_tokens: usage.output_tokens, cached_input_tokens: usage.cached_input_tokens, total_cost_usd: 5, session_id: value("--session") ?? "conversation-1" });
`

// agentImage makes an image with stand-ins for the built-in harnesses, from the default image.
func agentImage(t *testing.T) string {
	t.Helper()
	img, err := launcher.Images{Dir: harness.ImageDir()}.Find("debian")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "rootfs")
	if out, err := exec.Command("cp", "-al", img.Rootfs, root).CombinedOutput(); err != nil {
		_ = os.RemoveAll(root)
		if out, err := exec.Command("cp", "-a", img.Rootfs, root).CombinedOutput(); err != nil { // another file system
			t.Fatalf("%v %s", err, out)
		}
		t.Logf("the image was copied: %s", out)
	}
	dir := filepath.Join(root, "usr/lib/boxgate/agents")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type":"module"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"claude-code", "codex", "opencode"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(standIn), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// seen are the requests that the servers of a test have received, by host.
type seen struct {
	mu       sync.Mutex
	requests map[string][]string
}

func (s *seen) add(host, request string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[host] = append(s.requests[host], request)
}

// serveModels adds the servers of models, an MCP server and the receiver of webhooks to the internet of a test. The receiver
// lists the received webhooks to GET requests.
func serveModels(t *testing.T, w *harness.World) {
	t.Helper()
	s := &seen{requests: map[string][]string{}}
	model := func(field, want string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(field) != want {
				http.Error(w, "who are you?", http.StatusUnauthorized)
				return
			}
			s.answerPrompt(w, r)
		}
	}
	for host, of := range map[string]struct {
		addrs   []string
		handler http.HandlerFunc
	}{
		"api.anthropic.com":    {[]string{"198.51.100.82", "2001:db8:1::82"}, model("X-Api-Key", modelKey)},
		"openrouter.ai":        {[]string{"198.51.100.83", "2001:db8:1::83"}, model("Authorization", "Bearer "+modelKey)},
		"ai-gateway.vercel.sh": {[]string{"198.51.100.87", "2001:db8:1::87"}, model("Authorization", "Bearer "+modelKey)}, // not metered
		"models.example.com":   {[]string{"198.51.100.84", "2001:db8:1::84"}, model("X-Api-Key", modelKey)},
		"mcp.example.com":      {[]string{"198.51.100.85", "2001:db8:1::85"}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header["X-Mcp-Key"]) }},
		"receiver.example.com": {[]string{"198.51.100.86", "2001:db8:1::86"}, s.receive},
	} {
		if err := w.Net.AddHost(host, of.addrs...); err != nil {
			t.Fatal(err)
		}
		if err := w.Net.ServeHTTP(host, of.handler); err != nil {
			t.Fatal(err)
		}
	}
}

// receive stores posted bodies, and lists them to GET requests. Below /own/ it does so with the field X-Own.
func (s *seen) receive(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body)
		if strings.HasPrefix(r.URL.Path, "/own/") {
			body = fmt.Appendf(nil, `{"own":%q,"body":%s}`, r.Header.Get("X-Own"), body)
		}
		s.add(r.URL.Path, string(body))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(w, "[%s]", strings.Join(s.requests[r.URL.Path], ","))
}

// first reports whether a prompt is asked for the first time.
func (s *seen) first(prompt string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests["prompts"] = append(s.requests["prompts"], prompt)
	return slices.Index(s.requests["prompts"], prompt) == len(s.requests["prompts"])-1
}

// answerPrompt answers with the request itself, except for some prompts.
func (s *seen) answerPrompt(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var asked struct{ Prompt string }
	if err != nil || json.Unmarshal(body, &asked) != nil {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	text := string(body)
	again := strings.Contains(asked.Prompt, "does not match the JSON schema")
	switch {
	case asked.Prompt == "wait":
		text = "wait"
	case asked.Prompt == "overloaded", strings.HasPrefix(asked.Prompt, "overloaded once") && s.first(asked.Prompt):
		http.Error(w, "overloaded", 529)
		return
	case strings.HasPrefix(asked.Prompt, "structured") && again:
		text = "```json\n{\"message\":\"hi\",\"messageSize\":2}\n```"
	case strings.HasPrefix(asked.Prompt, "structured"):
		text = `{"message":"hi","messageSize":"two"}`
	case strings.HasPrefix(asked.Prompt, "stubborn"):
		text = "I will not."
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"text": text, "usage": map[string]int{"input_tokens": 7, "output_tokens": 5, "cached_input_tokens": 2}}) // the client notices missing data
}

// serveSkills adds a GitHub with one public repository of skills, https://github.com/acme/skills.
func serveSkills(t *testing.T, w *harness.World) {
	t.Helper()
	root := t.TempDir()
	bare, work := filepath.Join(root, "acme", "skills"), filepath.Join(root, "work")
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+root, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	git("init", "-q", "--bare", "-b", "main", bare)
	git("clone", "-q", bare, work)
	for name, text := range map[string]string{"skills/one/SKILL.md": "first", "skills/one/more.md": "more", "skills/two/SKILL.md": "second", "skills/-rf/SKILL.md": "odd"} {
		path := filepath.Join(work, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git("-C", work, "add", ".")
	git("-C", work, "commit", "-qm", "Initial commit")
	git("-C", work, "push", "-q", "origin", "HEAD:main")
	if err := w.Net.AddHost("github.com", "198.51.100.80", "2001:db8:1::80"); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.ServeHTTP("github.com", harness.GitServer(t, root, "/")); err != nil {
		t.Fatal(err)
	}
}

// TestAgents drives built-in agents with the unmodified npm package. Their keys are then nowhere: neither in a log of the gateway
// nor in a file of its state directory.
func TestAgents(t *testing.T) {
	t.Parallel()
	n, image := newNode(t), agentImage(t)
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Launcher.Images["debian-agents"] = image
	}})
	w.StartIfStopped()
	serveModels(t, w)
	serveSkills(t, w)
	key := strings.TrimSpace(w.KeyFile("api-key"))
	n.drive(t, w, key, "builtin", func(result) {})
	if log := w.LogText(); strings.Contains(log, modelKey) || strings.Contains(log, mcpKey) {
		t.Error("a key is in the log of the gateway")
	}
	err := filepath.WalkDir(filepath.Join(w.Dir, "state"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil && slices.ContainsFunc([]string{modelKey, mcpKey}, func(key string) bool { return bytes.Contains(data, []byte(key)) }) {
			t.Errorf("a key is in %s", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
