package agents

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/rule/header"
)

func TestTargets(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		agent, model, base           string
		host, fields, url, variables string
	}{
		{ClaudeCode, "anthropic/claude-sonnet-4-5", "", "api.anthropic.com", "X-Api-Key=", "", "ANTHROPIC_API_KEY"},
		{ClaudeCode, "claude-sonnet-4-5", "", "api.anthropic.com", "X-Api-Key=", "", "ANTHROPIC_API_KEY"},
		{ClaudeCode, "openrouter/anthropic/claude-opus-4-5", "", "openrouter.ai", "Authorization=Bearer ", "https://openrouter.ai/api", "ANTHROPIC_AUTH_TOKEN ANTHROPIC_BASE_URL"},
		{ClaudeCode, "vercel/anthropic/claude-opus-4.7", "", "ai-gateway.vercel.sh", "Authorization=Bearer ", "https://ai-gateway.vercel.sh", "ANTHROPIC_AUTH_TOKEN ANTHROPIC_BASE_URL"},
		{ClaudeCode, "own", "https://Models.Example.com:8443/v1", "models.example.com:8443", "X-Api-Key=", "https://Models.Example.com:8443/v1", "ANTHROPIC_API_KEY ANTHROPIC_BASE_URL"},
		{ClaudeCode, "anthropic/x", "https://openrouter.ai/api", "openrouter.ai", "Authorization=Bearer ", "https://openrouter.ai/api", "ANTHROPIC_AUTH_TOKEN ANTHROPIC_BASE_URL"},
		{ClaudeCode, "eu.anthropic.claude-x", "https://bedrock-runtime.eu-west-1.amazonaws.com", "bedrock-runtime.eu-west-1.amazonaws.com", "Authorization=Bearer ", "https://bedrock-runtime.eu-west-1.amazonaws.com", "ANTHROPIC_BEDROCK_BASE_URL AWS_BEARER_TOKEN_BEDROCK AWS_REGION CLAUDE_CODE_USE_BEDROCK"},
		{ClaudeCode, "x", "https://bedrock-runtime.eu-west-1.amazonaws.com.example.com", "bedrock-runtime.eu-west-1.amazonaws.com.example.com", "X-Api-Key=", "https://bedrock-runtime.eu-west-1.amazonaws.com.example.com", "ANTHROPIC_API_KEY ANTHROPIC_BASE_URL"},
		{Codex, "openai/gpt-5.3-codex", "", "api.openai.com", "Authorization=Bearer ", "", "CODEX_API_KEY OPENAI_API_KEY"},
		{Codex, "openrouter/openai/o3", "", "openrouter.ai", "Authorization=Bearer ", "https://openrouter.ai/api/v1", "CODEX_API_KEY OPENAI_API_KEY OPENAI_BASE_URL"},
		{Codex, "gpt", "https://acme.openai.azure.com/openai", "acme.openai.azure.com", "Api-Key=", "https://acme.openai.azure.com/openai", "CODEX_API_KEY OPENAI_API_KEY OPENAI_BASE_URL"},
		{OpenCode, "opencode/gpt-5.5", "", "opencode.ai", "Authorization=Bearer  X-Api-Key= X-Goog-Api-Key=", "", "OPENCODE_API_KEY"},
		{OpenCode, "anthropic/claude-sonnet-5", "", "api.anthropic.com", "X-Api-Key=", "", "ANTHROPIC_API_KEY"},
		{OpenCode, "openrouter/x", "", "openrouter.ai", "Authorization=Bearer ", "", "OPENROUTER_API_KEY"},
		{OpenCode, "google/gemini", "", "generativelanguage.googleapis.com", "X-Goog-Api-Key=", "", "GEMINI_API_KEY GOOGLE_GENERATIVE_AI_API_KEY"},
		{ClaudeCode, "nowhere/x", "", "", "", "", ""},
		{"custom", "anthropic/x", "", "", "", "", ""},
		{"cursor", "cursor/default", "https://models.example.com", "", "", "", ""},
	} {
		got, ok := TargetOf(api.Hosted{Agent: tt.agent, Model: tt.model, BaseURL: tt.base})
		var fields []string
		for _, field := range slices.Sorted(maps.Keys(got.Fields)) {
			fields = append(fields, field+"="+got.Fields[field])
		}
		if ok != (tt.host != "") || got.Host != tt.host || strings.Join(fields, " ") != tt.fields || got.BaseURL != tt.url || strings.Join(slices.Sorted(maps.Keys(got.Variables)), " ") != tt.variables {
			t.Errorf("%s %s %s: %v %+v", tt.agent, tt.model, tt.base, ok, got)
		}
		for _, value := range got.Variables {
			if value != Placeholder && value != got.BaseURL && value != "1" && value != "eu-west-1" {
				t.Errorf("%s: a variable with %q", tt.model, value)
			}
		}
	}
}

func TestRunnerOf(t *testing.T) {
	t.Parallel()
	own := &api.CustomRunner{Command: "own"}
	for _, tt := range []struct {
		of   api.Hosted
		want string
	}{
		{api.Hosted{Agent: ClaudeCode}, "/usr/lib/boxgate/agents/claude-code"}, {api.Hosted{Agent: Codex}, "/usr/lib/boxgate/agents/codex"},
		{api.Hosted{Agent: "custom", CustomRunner: own}, "own"}, {api.Hosted{Agent: ClaudeCode, CustomRunner: own}, "own"},
		{api.Hosted{Agent: "../../bin/sh"}, ""}, {api.Hosted{Agent: "cursor"}, ""}, {api.Hosted{}, ""},
	} {
		got := ""
		if r := RunnerOf(tt.of); r != nil {
			got = r.Command
		}
		if got != tt.want {
			t.Errorf("%+v runs %q", tt.of, got)
		}
	}
}

func TestHarnessOf(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]string{
		"anthropic/x": ClaudeCode, "openrouter/openai/x": ClaudeCode, "vercel/anthropic/x": ClaudeCode, "vercel/openai/x": Codex, "openai/x": Codex,
		"opencode/x": OpenCode, "custom": "", "custom/x": "", "cursor/x": "", "": "",
	} {
		if got := HarnessOf(model); got != want {
			t.Errorf("%q: %q", model, got)
		}
	}
}

// A key is in the value of a header rule alone. Two keys for one field of a host, and a host with a rule of another origin, are
// mistakes, since one of them would be without effect.
func TestKeys(t *testing.T) {
	t.Parallel()
	var p problem.List
	k := NewKeys(&p, nil)
	k.SetModel("/agent_api_key", api.Hosted{Agent: Codex, Model: "openai/gpt"}, "sk-1")
	k.SetModel("/agent_api_key", api.Hosted{Agent: Codex, Model: "openrouter/gpt"}, "STORED_KEY")
	k.Set("/mcp_servers/0/headers/X-A", "mcp.example.com:8443", "x-a", "one")
	k.Set("/mcp_servers/1/headers/X-B", "MCP.example.com:8443", "X-B", "two")
	rules := k.Rules(nil)
	if len(p) > 0 || len(rules) != 2 || header.Of(rules[0].Effects)[0].Literal.Reveal() != "Bearer sk-1" || len(header.Of(rules[1].Effects)) != 2 ||
		rules[0].OnRequests().Meter == nil || rules[0].OnRequests().Meter.Vendor() != llm.OpenAI || rules[1].OnRequests().Meter != nil {
		t.Fatalf("%v %+v", p, rules)
	}
	k.Set("/mcp_servers/2/headers/X-A", "mcp.example.com:8443", "X-a", "other")
	for i, bad := range []struct{ host, field, value string }{
		{"10.0.0.1", "X", "v"}, {"", "X", "v"}, {"a.example.com", "X\r\nY", "v"}, {"a.example.com", "X", "v\r\nY: sk-2"}, {"a.example.com", "Host", "v"}, {"*", "X", "v"},
	} {
		before := len(p)
		if k.Set("/at", bad.host, bad.field, bad.value); len(p) == before {
			t.Errorf("%d: %+v is accepted", i, bad)
		}
	}
	others, err := policy.ParseHeaders(map[string]map[string]string{"api.openai.com:443": {"X": "y"}, "*.example.com": {"X": "y"}})
	if err != nil {
		t.Fatal(err)
	}
	before := len(p)
	k.Rules(others)
	if got := p[len(p)-1]; len(p) != before+1 || got.Pointer != "/agent_api_key" {
		t.Errorf("%v", p[before:])
	}
	for _, one := range p {
		if strings.Contains(one.Message, "sk-") {
			t.Errorf("a key in %q", one.Message)
		}
	}
}

// TestMeters: the hosts of vendors are metered, whichever harness asks them, and no others: those have several APIs.
func TestMeters(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		of   api.Hosted
		want llm.Vendor
	}{
		{api.Hosted{Agent: ClaudeCode, Model: "anthropic/x"}, llm.Anthropic},
		{api.Hosted{Agent: ClaudeCode, Model: "x", BaseURL: "https://API.anthropic.com"}, llm.Anthropic},
		{api.Hosted{Agent: Codex, Model: "openai/x"}, llm.OpenAI},
		{api.Hosted{Agent: OpenCode, Model: "anthropic/x"}, llm.Anthropic},
		{api.Hosted{Agent: OpenCode, Model: "openai/x"}, llm.OpenAI},
		{api.Hosted{Agent: OpenCode, Model: "google/x"}, llm.Google},
		{api.Hosted{Agent: OpenCode, Model: "opencode/x"}, ""},
		{api.Hosted{Agent: ClaudeCode, Model: "vercel/x"}, ""},
		{api.Hosted{Agent: ClaudeCode, Model: "anthropic/x", BaseURL: "https://models.example.com"}, ""},
	} {
		var p problem.List
		keys := NewKeys(&p, nil)
		keys.SetModel("/agent_api_key", tt.of, "sk-1")
		var got llm.Vendor
		if rules := keys.Rules(nil); len(p) > 0 || len(rules) != 1 {
			t.Errorf("%+v: %v %v", tt.of, p, rules)
		} else if m := rules[0].OnRequests().Meter; m != nil {
			got = m.Vendor()
		}
		if got != tt.want {
			t.Errorf("%+v is metered as %q, want %q", tt.of, got, tt.want)
		}
	}
}

// TestMetersOfTheOperator: hosts that the operator names are metered, by the API of each path, which overrides the built-in list of providers.
func TestMetersOfTheOperator(t *testing.T) {
	t.Parallel()
	own := llm.Meters{
		"api.groq.com": llm.OpenAI, "models.example.com:8443": llm.Anthropic, "openrouter.ai": llm.OpenAI,
		"ai-gateway.vercel.sh": llm.OpenAI, "ai-gateway.vercel.sh/v1": llm.Google, "ai-gateway.vercel.sh/v1/messages": llm.Anthropic, "ai-gateway.vercel.sh.example/x": llm.Google,
	}
	for _, tt := range []struct {
		of   api.Hosted
		path string
		want llm.Vendor
	}{
		{api.Hosted{Agent: OpenCode, Model: "groq/x"}, "/openai/v1/chat/completions", llm.OpenAI},
		{api.Hosted{Agent: OpenCode, Model: "mistral/x"}, "/v1/chat/completions", ""},
		{api.Hosted{Agent: OpenCode, Model: "anthropic/x"}, "/v1/messages", llm.Anthropic},
		{api.Hosted{Agent: ClaudeCode, Model: "openrouter/x"}, "/api/v1/messages", llm.OpenAI},
		{api.Hosted{Agent: ClaudeCode, Model: "x", BaseURL: "https://models.example.com:8443/a"}, "/a/v1/messages", llm.Anthropic},
		{api.Hosted{Agent: ClaudeCode, Model: "x", BaseURL: "https://models.example.com/a"}, "/a/v1/messages", ""},
		{api.Hosted{Agent: Codex, Model: "vercel/x"}, "/v1/messages", llm.Anthropic},
		{api.Hosted{Agent: Codex, Model: "vercel/x"}, "/v1/responses", llm.Google},
		{api.Hosted{Agent: Codex, Model: "vercel/x"}, "/v2/messages", llm.OpenAI},
	} {
		var p problem.List
		keys := NewKeys(&p, own)
		keys.SetModel(KeyPointer, tt.of, "sk-1")
		c, err := policy.Compile(policy.Spec{Mode: policy.ModeAllowAll}, policy.Options{Headers: keys.Rules(nil)})
		if err != nil || len(p) > 0 {
			t.Fatalf("%+v: %v %v", tt.of, p, err)
		}
		target, _ := TargetOf(tt.of)
		host, port, _ := strings.Cut(target.Host, ":")
		n, _ := name.Parse(host)
		number, _ := strconv.ParseUint(cmp.Or(port, "443"), 10, 16)
		rule, _ := c.HeaderRule(policy.Request{Stage: policy.StageHTTP, Name: n, Port: uint16(number), Protocol: policy.TCP, Method: "POST", Path: tt.path})
		var got llm.Vendor
		if m := rule.OnRequests().Meter; m != nil {
			got = m.Vendor()
		}
		if got != tt.want || rule.Pattern.String() == "" {
			t.Errorf("%+v: %s is metered as %q, want %q", tt.of, tt.path, got, tt.want)
		}
	}
}

// TestMetersByPath asks a host with several APIs. Each has its own meter under one key with every harness, and every path is metered.
func TestMetersByPath(t *testing.T) {
	t.Parallel()
	for _, of := range []api.Hosted{
		{Agent: ClaudeCode, Model: "openrouter/x"}, {Agent: Codex, Model: "openrouter/x"}, {Agent: OpenCode, Model: "openrouter/x"},
		{Agent: Codex, Model: "openai/x", BaseURL: "https://openrouter.ai/api/v1"},
		{Agent: ClaudeCode, Model: "anthropic.x", BaseURL: "https://bedrock-runtime.us-east-1.amazonaws.com"},
	} {
		var p problem.List
		keys := NewKeys(&p, nil)
		keys.SetModel(KeyPointer, of, "sk-1")
		rules := keys.Rules(nil)
		if len(p) > 0 || len(rules) == 0 {
			t.Fatalf("%+v: %v %v", of, p, rules)
		}
		c, err := policy.Compile(policy.Spec{Mode: policy.ModeAllowAll}, policy.Options{Headers: rules})
		if err != nil {
			t.Fatal(err)
		}
		at, paths := "openrouter.ai", map[string]llm.Vendor{
			"/api/v1/messages": llm.Anthropic, "/api/v1/messages/count_tokens": llm.Anthropic, "/api/v1/chat/completions": llm.OpenAI, "/api/v1/responses": llm.OpenAI,
			"/": llm.OpenAI,
		}
		if strings.Contains(of.BaseURL, "bedrock") {
			at, paths = HostOf(of.BaseURL), map[string]llm.Vendor{"/model/x/converse": llm.Bedrock, "/openai/v1/chat/completions": llm.OpenAI, "/openai": llm.Bedrock}
		}
		host, _ := name.Parse(at)
		for path, want := range paths {
			rule, _ := c.HeaderRule(policy.Request{Stage: policy.StageHTTP, Name: host, Port: 443, Protocol: policy.TCP, Method: "POST", Path: path})
			if m := rule.OnRequests().Meter; m == nil || m.Vendor() != want {
				t.Errorf("%+v: %s is metered as %+v, want %s", of, path, m, want)
			}
		}
	}
}

// FuzzServers checks that accepted servers become files that each program reads as the same servers.
func FuzzServers(f *testing.F) {
	f.Add("a", "url", "https://mcp.example.com/sse", "X-Key", "")
	f.Add("b-1", "npm", "@org/mcp@1.2", "", "--x=\"y\" \\ ' # =")
	f.Add("c]", "npm", "../x", "", "\u007f\u2028")
	f.Fuzz(func(t *testing.T, server, source, where, field, arg string) {
		s := api.MCPServer{Name: server, Source: source, PackageOrURL: where}
		var p problem.List
		if field != "" {
			s.HeaderNames = []string{field}
			NewKeys(&p, nil).Set("/x", HostOf(where), field, "secret")
		}
		if arg != "" {
			s.Args = []string{arg}
		}
		if CheckServers(&p, []api.MCPServer{s}); p.Err() != nil {
			return
		}
		files, err := Files([]api.MCPServer{s})
		if err != nil || len(files) != 4 {
			t.Fatal(files, err)
		}
		var common struct {
			MCPServers map[string]struct {
				Command string
				Args    []string
				URL     string
				Headers map[string]string
			}
		}
		if err := json.Unmarshal(files[0].Data, &common); err != nil || len(common.MCPServers) != 1 {
			t.Fatalf("%s: %v", files[0].Data, err)
		}
		got := common.MCPServers[server]
		if source == "url" && got.URL != where || source == "npm" && got.Args[1] != where || len(got.Headers) != len(s.HeaderNames) {
			t.Errorf("%+v becomes %s", s, files[0].Data)
		}
		checkTOML(t, string(files[2].Data), s)
	})
}

// checkTOML checks that each line of the file of Codex is one of the lines that a server may have, with its strings closed.
func checkTOML(t *testing.T, text string, s api.MCPServer) {
	t.Helper()
	tables := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		key, value, _ := strings.Cut(line, " = ")
		var v any
		switch {
		case line == "":
		case strings.HasPrefix(line, "["):
			tables++
			if line != `[mcp_servers."`+s.Name+`"]` && line != `[mcp_servers."`+s.Name+`".http_headers]` {
				t.Errorf("the table %q of %+v", line, s)
			}
		case json.Unmarshal([]byte(value), &v) != nil || strings.ContainsAny(key, " ="), strings.ContainsRune(line, 0x7f):
			t.Errorf("the line %q of %+v", line, s)
		}
	}
	if tables > 2 {
		t.Errorf("%d tables of %+v", tables, s)
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"https://models.example.com": true, "https://models.example.com:8443/v1/": true, "http://models.example.com": false, "https://a:b@models.example.com": false,
		"https://": false, "https://*.example.com": false, "https://models.example.com/?key=x": false, "https://models.example.com/#x": false, "https:models.example.com": false,
		"https://models.example.com/" + strings.Repeat("x", maxURL): false, "https://models.example.com/\x00": false, "": false,
	} {
		var p problem.List
		if CheckURL(&p, "/x", text); (p.Err() == nil) != ok {
			t.Errorf("%q: %v", text, p)
		}
	}
	for text, want := range map[string]string{"https://A.example.com": "a.example.com", "https://a.example.com:443/x": "a.example.com", "https://a.example.com:8443": "a.example.com:8443", "::": ""} {
		if got := HostOf(text); got != want {
			t.Errorf("%q has the host %q", text, got)
		}
	}
	if _, err := name.ParsePattern(HostOf("https://[2001:db8::1]/")); err == nil {
		t.Error("an address is a pattern of a header rule")
	}
}

// TestAttackRepositoryOfSkills: a repository with hostile names writes only to the directories of skills, and an argument
// is never an option of git or a command.
func TestAttackRepositoryOfSkills(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is missing")
	}
	root := t.TempDir()
	home, tree := filepath.Join(root, "home"), filepath.Join(root, "tree")
	for _, dir := range []string{home, filepath.Join(tree, "skills", "good"), filepath.Join(tree, "skills", "-rf"), filepath.Join(tree, "skills", ".hidden"), filepath.Join(tree, "skills", "a b\n../../../out"[:3])} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "SKILL.md"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(home, "SKILL.md")); err != nil {
		t.Fatal(err)
	}
	// The stand-in for git copies the tree, whatever it is asked for, and notes its arguments.
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	git := "#!/bin/sh\nprintf '%s\\n' \"$@\" >>" + root + "/asked\nfor last; do :; done\ncp -R " + tree + " \"$last\"\n"
	if err := os.WriteFile(filepath.Join(bin, "git"), []byte(git), 0o755); err != nil {
		t.Fatal(err)
	}
	command := SkillsCommand([]string{"acme/skills", "acme/skills/good", "acme/$(touch " + root + "/out)", "acme/skills/.."})
	command[2] = strings.ReplaceAll(command[2], "/workspace/home", home)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "TMPDIR=" + root}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "skill acme/skills/..: it could not be installed") {
		t.Errorf("%v: %s", err, out)
	}
	got, err := filepath.Glob(filepath.Join(home, ".claude/skills/*"))
	if err != nil || len(got) != 1 || filepath.Base(got[0]) != "good" {
		t.Errorf("%v %v: %s", got, err, out)
	}
	asked, err := os.ReadFile(filepath.Join(root, "asked"))
	if err != nil || !strings.Contains(string(asked), "--\nhttps://github.com/acme/skills\n") {
		t.Errorf("%s %v", asked, err)
	}
	if _, err := os.Stat(filepath.Join(root, "out")); err == nil {
		t.Error("an argument is a command")
	}
}
