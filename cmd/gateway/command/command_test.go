package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"boxgate/audit"
	"boxgate/audit/remedy"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/internal/buildinfo"
	"boxgate/policy"
	"boxgate/policy/name"
)

// leaves returns the commands of a tree without subcommands.
func leaves(cmd *cobra.Command) (out []*cobra.Command) {
	if !cmd.HasSubCommands() {
		return []*cobra.Command{cmd}
	}
	for _, sub := range cmd.Commands() {
		out = append(out, leaves(sub)...)
	}
	return out
}

// words maps argument names of a usage to examples.
var words = map[string]string{
	"BOX": "demo", "BOX...": "demo", "HOST...": "a.example", "HOST|IP": "a.example", "POLICY": "deny-all", "PORT": "8000", "RULES": `{"a.example":{"X-Key":"v"}}`,
	"NAME": "name", "NAME...": "npm", "ID": "id", "ID...": "id", "IMAGE": "debian", "IMAGE...": "debian", "SNAPSHOT...": "id",
	"RUN": "run_1", "REPO": "acme/app", "BRANCH": "topic", "PROMPT": "hello", "MODEL": "anthropic/x", "SKILL...": "acme/skill", "BOX:PATH": "demo:file",
}

// lineOf returns a valid command line for a command. It returns false if the table has no example for one of the
// arguments.
func lineOf(cmd *cobra.Command) (line []string, ok bool) {
	line = strings.Fields(cmd.CommandPath())[1:]
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.HasPrefix(word, "[") || strings.HasPrefix(word, "-") {
			break
		}
		arg, known := words[word]
		if !known {
			return nil, false
		}
		line = append(line, arg)
	}
	return line, true
}

// reported runs a command line and returns the JSON on its standard error.
func reported(t *testing.T, args []string) (r struct {
	Error      string
	ExitStatus int `json:"exit_status"`
	HTTPStatus int `json:"http_status"`
}, raw string, status int) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	input := filepath.Join(t.TempDir(), "stdin") // commands such as secret store read a value before they call the gateway
	if err := os.WriteFile(input, []byte("value\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(input)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	stdin, stderr := os.Stdin, os.Stderr
	os.Stdin, os.Stderr = in, file
	status = Run(args)
	os.Stdin, os.Stderr = stdin, stderr
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	if json.Unmarshal(text, &r) != nil {
		r.Error = ""
	}
	return r, string(text), status
}

// TestEveryCommandSaysErrorsAsJSON: with --json, the error of every command is one JSON document without texts of Go's
// own, for a mistake on the command line, a gateway that does not run, and one that refuses.
func TestEveryCommandSaysErrorsAsJSON(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"error":"not with this key"}`))
	}))
	t.Cleanup(srv.Close)
	t.Setenv("BOXGATE_API_KEY", "key")
	local := []string{"serve", "demo", "run", "check", "uninstall", "version", "image", "convert", "presets", "completion", "bash", "zsh", "fish", "powershell", "help", "status", "support", "docker", "reload", "upgrade", "mcp", "prices", "fleet"}
	asked := 0
	for _, cmd := range leaves(newRootCommand(&cli.Options{})) {
		path := strings.Fields(cmd.CommandPath())[1:]
		if cmd.Hidden || slices.Contains(path, "completion") || slices.Contains(path, "help") {
			continue
		}
		got, raw, status := reported(t, append(slices.Clone(path), "--not-a-flag", "--json"))
		handsOn := slices.Equal(path, []string{"docker", "run"}) // unknown flags are Docker's
		if !handsOn && (status != cli.ExitUsage || got.ExitStatus != status || !strings.Contains(got.Error, "not-a-flag") || goText.MatchString(raw)) {
			t.Errorf("%v with an unknown flag: exit %d: %s", path, status, raw)
		}
		line, ok := lineOf(cmd)
		if !ok || slices.ContainsFunc(path, func(word string) bool { return slices.Contains(local, word) }) {
			continue
		}
		for admin, http := range map[string]int{filepath.Join(t.TempDir(), "none.sock"): 0, srv.URL: 403} {
			got, raw, status = reported(t, append(slices.Clone(line), "--json", "--admin", admin))
			if status == cli.ExitUsage { // also requires flags
				continue
			}
			asked++
			if status != cli.ExitFailed || got.Error == "" || got.ExitStatus != status || got.HTTPStatus != http || goText.MatchString(raw) {
				t.Errorf("%v: exit %d: %s", line, status, raw)
			}
		}
	}
	if asked < 40 {
		t.Errorf("only %d command lines reached the gateway", asked)
	}
}

// advised matches the commands in a remedy.
var advised = regexp.MustCompile(`\bgateway ([a-z][^,;()]*)`)

// TestRemediesAreCommands: every command in a remedy is one that this program accepts.
func TestRemediesAreCommands(t *testing.T) {
	t.Parallel()
	n := 0
	for _, reason := range name.Reasons() {
		for _, e := range []audit.Event{
			{Name: "a.example", Port: 443, Stage: policy.StageConn, Protocol: policy.TCP},
			{Addr: netip.MustParseAddr("192.0.2.1"), Port: 53, Stage: policy.StageKernel, Protocol: policy.UDP},
			{Name: "a.example", Stage: policy.StageDNS, Protocol: policy.UDP},
		} {
			e.Box, e.Reason = "demo", reason
			for _, found := range advised.FindAllStringSubmatch(remedy.For(e), -1) {
				n++
				args := strings.Fields(strings.NewReplacer(" PORT", " 8000", " POLICY", " deny-all").Replace(found[1]))
				cmd, rest, err := newRootCommand(&cli.Options{}).Find(args)
				if err == nil {
					err = cmd.ParseFlags(rest)
				}
				if err == nil && cmd.Args != nil {
					err = cmd.Args(cmd, cmd.Flags().Args())
				}
				if err != nil || cmd.HasSubCommands() {
					t.Errorf("%s: %q: %v", reason, found[0], err)
				}
			}
		}
	}
	if n < 30 {
		t.Errorf("%d commands were found", n)
	}
}

// TestCompletion: shells complete boxes, presets, policies and reasons where a command takes one.
func TestCompletion(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v2/box/demo/runs":
			fmt.Fprint(w, `{"runs":[{"id":"run_1"},{"id":"run_2"}]}`)
		case "/v2/box/demo/schedules":
			fmt.Fprint(w, `[{"id":"sch_1"}]`)
		case "/v2/api-keys":
			fmt.Fprint(w, `{"api_keys":[{"id":"key_1","name":"ci"}]}`)
		case "/v2/api-keys/ci/ssh-keys":
			fmt.Fprint(w, `{"ssh_keys":[{"id":"ssh_1","name":"laptop"}]}`)
		default:
			fmt.Fprint(w, `[{"id":"b1","name":"demo"},{"id":"b2"}]`)
		}
	}))
	t.Cleanup(srv.Close)
	t.Setenv("BOXGATE_ADMIN", srv.URL)
	t.Setenv("BOXGATE_API_KEY", "key")
	for _, c := range []struct {
		args []string
		want string
		not  string
	}{
		{[]string{"policy", "get", ""}, "demo b2", "preset:npm"},
		{[]string{"policy", "get", "demo", ""}, "", "demo"},
		{[]string{"box", "rm", "demo", ""}, "b2", "demo"},
		{[]string{"log", "--box", ""}, "demo b2", ""},
		{[]string{"policy", "set", "demo", ""}, "allow-all deny-all preset:github", "demo"},
		{[]string{"policy", "allow", "demo", "preset:github,n"}, "preset:github,npm", "preset:github,github"},
		{[]string{"box", "create", "--policy", "preset:pypi,"}, "preset:pypi,npm", "preset:pypi,pypi"},
		{[]string{"policy", "presets", ""}, "github npm pypi", "demo"},
		{[]string{"box", "runs", ""}, "demo b2", ""},
		{[]string{"box", "ls", ""}, "demo b2", ""},
		{[]string{"box", "exec", ""}, "demo b2", ""},
		{[]string{"box", "ttl", "demo", ""}, "never", "b2"},
		{[]string{"box", "network", "set", "demo", "--policy", ""}, "deny-all", "b2"},
		{[]string{"api-key", "ssh-key", "add", ""}, "key_1", "demo"},
		{[]string{"api-key", "ssh-key", "rm", "ci", ""}, "ssh_1", "key_1"},
		{[]string{"api-key", "rotate", ""}, "key_1", "demo"},
		{[]string{"box", "run", "cancel", "demo", ""}, "run_1 run_2", "b2"},
		{[]string{"box", "schedule", "pause", "demo", ""}, "sch_1", "b2"},
		{[]string{"box", "git", "clone", "demo", ""}, "", "demo"},
		{[]string{"box", "create", "--agent", ""}, "claude-code codex opencode custom", ""},
		{[]string{"box", "code", "demo", "--language", ""}, "js ts python", ""},
	} {
		out, _ := runCommandLine(t, append([]string{"__complete"}, c.args...)...)
		offered := strings.Fields(out)
		for _, want := range strings.Fields(c.want) {
			if !slices.Contains(offered, want) {
				t.Errorf("%v offers %v without %q", c.args, offered, want)
			}
		}
		if slices.Contains(offered, c.not) {
			t.Errorf("%v offers %q", c.args, c.not)
		}
	}
	srv.Close()
	if out, _ := runCommandLine(t, "__complete", "policy", "get", ""); !strings.Contains(out, ":4") {
		t.Errorf("without a gateway: %s", out)
	}
}

// TestVersion: the flag, the command and its JSON report the same version.
func TestVersion(t *testing.T) {
	said := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		root := newRootCommand(&cli.Options{})
		root.SetArgs(args)
		root.SetOut(&out)
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out.String()
	}
	line := said("--version")
	if !strings.HasPrefix(line, "gateway ") || !strings.Contains(line, runtime.Version()) || line != said("version") {
		t.Errorf("--version says %q, version %q", line, said("version"))
	}
	var b buildinfo.Info
	if err := json.Unmarshal([]byte(said("version", "--json")), &b); err != nil || b != buildinfo.Get() || b.Version == "" || b.Revision == "" {
		t.Errorf("as JSON: %+v %v", b, err)
	}
	buildinfo.Version, buildinfo.Revision = "v1.2.3", "abc"
	defer func() { buildinfo.Version, buildinfo.Revision = "", "" }()
	if line := said("--version"); !strings.HasPrefix(line, "gateway v1.2.3 (revision abc, ") {
		t.Errorf("with what the linker set: %q", line)
	}
}
