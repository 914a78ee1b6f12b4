package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// file writes a file for a command and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// decoded runs a command with --json and decodes its output.
func decoded[T any](w *harness.World, args ...string) (v T) {
	w.T.Helper()
	out := w.Run(0, nil, "", append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		w.T.Errorf("%v: %v in %s", args, err, out)
	}
	return v
}

// refused runs command lines that are wrong. Each is the exit status and the arguments, with the text that its error must have.
func refused(w *harness.World, lines map[string]string) {
	w.T.Helper()
	for line, want := range lines {
		status, args, _ := strings.Cut(line, " ")
		out := w.Run(int(status[0]-'0'), nil, "", strings.Fields(args)...)
		if !strings.Contains(out, want) {
			w.T.Errorf("%s: %q is not in %s", args, want, out)
		}
	}
}

// TestCreateByCommand: the command line creates boxes with what the SDK's Box.create and EphemeralBox.create take. Secrets come from files
// or standard input, and the box has none of them.
func TestCreateByCommand(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	token := harness.TestSecret
	servers := file(t, "mcp.yaml", "- name: docs\n  url: https://mcp.example.com/sse\n  headers: {X-Key: "+token+"}\n- {name: tool, package: '@acme/tool', args: [--fast]}\n")
	out := w.Run(0, []string{"FROM_HERE=here"}, token+"\n", "box", "create", "--json", "--name", "full", "--label", "team=x", "--label", "ci", "--keep-alive",
		"--init-command", "echo started >started", "--env", "A=b=c", "--env", "FROM_HERE", "--env-file", file(t, "vars", "# a comment\nQUOTED=\"two words\"\nA=other\n"),
		"--agent", "claude-code", "--model", "anthropic/claude-sonnet-4-5", "--api-key-file", file(t, "key", "sk-"+token), "--github-token-file", "-",
		"--git-user-name", "Ann", "--git-user-email", "ann@example.com", "--skill", "acme/skills/one", "--mcp-servers", "@"+servers)
	var box struct {
		ID, Model, Agent string
		Labels           []string
		KeepAlive        bool            `json:"keep_alive"`
		GitUserName      string          `json:"git_user_name"`
		EnabledSkills    []string        `json:"enabled_skills"`
		MCPServers       []api.MCPServer `json:"mcp_servers"`
	}
	if err := json.Unmarshal([]byte(out), &box); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if strings.Join(box.Labels, " ") != "team=x ci" || !box.KeepAlive || box.Agent != "claude-code" || box.Model != "anthropic/claude-sonnet-4-5" || box.GitUserName != "Ann" {
		t.Errorf("%+v", box)
	}
	if len(box.EnabledSkills) != 1 || len(box.MCPServers) != 2 || box.MCPServers[0].Source != "url" || box.MCPServers[1].PackageOrURL != "@acme/tool" {
		t.Errorf("%+v", box)
	}
	w.Until("the init command has run", func() bool { out, _ := w.Sh(box.ID, "cat started"); return out == "started\n" })
	if got := w.MustSh(box.ID, `echo "$A|$FROM_HERE|$QUOTED|$(git config user.email)"`); got != "b=c|here|two words|ann@example.com\n" {
		t.Errorf("the box has %q", got)
	}
	if got := w.MustSh(box.ID, "env; cat ~/.* /workspace/home/.*/* 2>/dev/null; true"); strings.Contains(got, token) {
		t.Errorf("the box has a secret: %s", got)
	}
	rules := w.Run(0, nil, "", "headers", "list", "--box", "full")
	for _, host := range []string{"api.anthropic.com", "github.com", "api.github.com", "mcp.example.com"} {
		harness.Contains(t, rules, host)
	}
	harness.Contains(t, w.Run(0, nil, "", "box", "list", "--label", "team=x"), "full")
	if out := w.Run(0, nil, "", "box", "list", "--label", "team=y"); strings.Contains(out, "full") {
		t.Errorf("another label lists it: %s", out)
	}
	if out := w.Run(0, nil, "", "box", "init-command", "full"); out != "echo started >started\n" {
		t.Errorf("the init command is %q", out)
	}
	w.Run(0, nil, "", "box", "init-command", "full", "true")
	w.Run(0, nil, "", "box", "init-command", "full", "--none")
	if out := w.Run(0, nil, "", "box", "init-command", "full"); out != "" {
		t.Errorf("the init command is %q", out)
	}

	short := decoded[struct {
		Ephemeral bool
		ExpiresAt int64 `json:"expires_at"`
	}](w, "box", "create", "--name", "short", "--ephemeral", "--ttl", "1h")
	if left := time.Until(time.Unix(short.ExpiresAt, 0)); !short.Ephemeral || left < 30*time.Minute || left > time.Hour {
		t.Errorf("%+v", short)
	}
	refused(w, map[string]string{
		"2 box create --ttl 1h":                               "--ttl needs --ephemeral",
		"2 box create --ephemeral --ttl 4d":                   "--ttl: must be between 1s and 3d",
		"1 box create --ephemeral --keep-alive":               "--keep-alive: an ephemeral box cannot be kept alive",
		"2 box create --init-command x":                       "--init-command needs --keep-alive",
		"2 box create --harness-arg x":                        "--harness-arg needs --harness",
		"2 box create --harness x --agent codex":              "leave out --agent codex",
		"2 box create --api-key sk-secret":                    "other users can read the arguments of a process; give --api-key-file FILE, or - for standard input",
		"2 box create --github-token=ghp_secret":              "give --github-token-file FILE",
		"2 box create --api-key-file sk-secret-in-the-place":  "--api-key-file: this file cannot be read",
		"2 box create --api-key-file - --github-token-file -": "--api-key-file: it is empty",
		"2 box create --env NOT_HERE_1":                       `"NOT_HERE_1" is neither NAME=VALUE nor a variable here`,
		"2 box create --mcp-servers [{\"nom\":1}]":            `--mcp-servers: this is not a list of MCP servers: json: unknown field "nom"`,
		"1 box create --skill x":                              "--skill: ",
		"1 box create --agent codex --model openai/gpt-5 --agent-base-url ftp://x --api-key-file " + file(t, "key", "k"): "--agent-base-url: ",
	})
	for _, line := range []string{"box create --api-key sk-secret", "box create --api-key=sk-secret --json", "box create --api-key-file sk-secret", "box agent model full m --api-key sk-secret"} {
		if out := w.Run(2, nil, "", strings.Fields(line)...); strings.Contains(out, "sk-secret") {
			t.Errorf("%s repeats the key: %s", line, out)
		}
	}
}

// TestExecByCommand: exec has a timeout and variables, also from files, and can leave a command running; its run is listed, shown and
// cancelled. The exit status is the command's.
func TestExecByCommand(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "runs"})
	vars := file(t, "vars", "B=2\n")
	for _, how := range [][]string{{"box", "exec"}, {"box", "exec", "-i"}} {
		out := w.Run(3, []string{"C=3"}, "", append(how, "--env", "A=1", "--env", "C", "--env-file", vars, "runs", "--", "sh", "-c", `echo "$A$B$C"; exit 3`)...)
		if out != "123\n" {
			t.Errorf("%v: %q", how, out)
		}
	}
	if out, code := w.GatewayCommand("box", "exec", "--timeout", "200ms", "runs", "--", "sleep", "54323"); code == 0 || !strings.Contains(out, "timeout of 200ms") {
		t.Errorf("the timeout of a command: %d %q", code, out)
	}
	if out := w.Run(5, nil, "import sys\nprint(1 + 2)\nsys.exit(5)\n", "box", "code", "runs", "--language", "python"); out != "3\n" {
		t.Errorf("code: %q", out)
	}
	slow := file(t, "slow.py", "import time\ntime.sleep(54324)\n")
	if out, code := w.GatewayCommand("box", "code", "runs", "--timeout", "300ms", slow); code == 0 || !strings.Contains(out, "timeout of 300ms") {
		t.Errorf("the timeout of code: %d %q", code, out)
	}

	id := strings.TrimSpace(w.Run(0, nil, "", "box", "exec", "--detach", "runs", "--", "sh", "-c", `printf 'a \033[31mred\n'; sleep 54325`))
	var run struct {
		ID, Status, Output string
		ExitCode           *int `json:"exit_code"`
	}
	w.Until("the output is recorded", func() bool {
		run = decoded[struct {
			ID, Status, Output string
			ExitCode           *int `json:"exit_code"`
		}](w, "box", "run", "get", "runs", id)
		return run.Output != ""
	})
	if run.ID != id || run.Status != "running" || run.ExitCode != nil {
		t.Errorf("%+v", run)
	}
	shown := w.Run(0, nil, "", "box", "run", "get", "runs", id)
	if !strings.Contains(shown, `a \x1b[31mred`) || strings.Contains(shown, "\033") {
		t.Errorf("it shows %q", shown)
	}
	if list := w.Run(0, nil, "", "box", "runs", "runs"); !strings.Contains(list, id) || !strings.Contains(list, "running") || strings.Contains(list, "\033") {
		t.Errorf("it is listed as %q", list)
	}
	harness.Contains(t, w.Run(0, nil, "", "box", "run", "cancel", "runs", id), "cancelled")
	w.Until("the command is killed", func() bool {
		out, _ := w.Sh(box, "grep -l 5432[35] /proc/[0-9]*/cmdline 2>/dev/null")
		return out == ""
	})
	if got := decoded[struct{ Runs []struct{ ID string } }](w, "box", "runs", "runs"); len(got.Runs) < 5 {
		t.Errorf("%+v", got)
	}
	logs := w.Run(0, nil, "", "box", "logs", "runs")
	if !strings.Contains(logs, "box created") || strings.Contains(logs, "\033") {
		t.Errorf("the log is %q", logs)
	}
	if got := decoded[struct{ Logs []struct{ Message string } }](w, "box", "logs", "runs", "--offset", "0", "--limit", "1"); len(got.Logs) != 1 || got.Logs[0].Message != "box created" {
		t.Errorf("%+v", got)
	}
	refused(w, map[string]string{
		"1 box runs nobody":                            "see `gateway box list`",
		"1 box run get runs run_x":                     "see `gateway box runs runs`",
		"1 box run cancel runs run_x":                  "see `gateway box runs runs`",
		"2 box run stop runs x":                        "its commands are",
		"2 box logs runs --limit x":                    `--limit: "x" is not a whole number`,
		"1 box logs runs --limit -1":                   "--limit",
		"2 box exec --detach -i runs -- true":          "--detach is for commands without -i and -t",
		"2 box exec --timeout 1s -i runs -- true":      "--timeout is for commands without -i",
		"2 box exec --timeout 0s runs -- true":         "--timeout: must be between 1ms and 7d",
		"2 box exec --timeout 8d runs -- true":         "--timeout: must be between 1ms and 7d",
		"2 box exec --timeout 30 runs -- true":         `"30" is not a duration`,
		"1 box exec --env 1X=y runs -- true":           "--env 1X: the name must be",
		"0 box exec --detach runs -- /nowhere/nothing": "the command has failed already; `gateway box run get runs run_",
		"2 box code runs x.rb":                         "give the language",
		"1 box code runs nothing.py":                   "there is no file nothing.py",
		"1 box code nobody " + file(t, "a.py", "1"):    "see `gateway box list`",
	})
}

// TestFilesByCommand: the files of a box are listed, described, printed, written, moved and removed. A path without its box removes nothing.
func TestFilesByCommand(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "files"})
	w.Run(0, nil, "hello\n", "box", "write", "files:notes/a.txt")
	if out := w.Run(0, nil, "", "box", "cat", "files:notes/a.txt"); out != "hello\n" {
		t.Errorf("cat: %q", out)
	}
	if got := decoded[struct {
		Content, Encoding string
		Size              int
	}](w, "box", "cat", "files:notes/a.txt"); got.Content != "aGVsbG8K" || got.Encoding != "base64" || got.Size != 6 {
		t.Errorf("%+v", got)
	}
	w.Run(0, nil, "", "box", "mkdir", "-p", "files:deep/er")
	w.Run(0, nil, "", "box", "mv", "files:notes/a.txt", "files:deep/er/")
	if got := decoded[struct {
		Type, Mode string
		Size       int
	}](w, "box", "stat", "files:deep/er/a.txt"); got.Type != "file" || got.Mode != "0644" || got.Size != 6 {
		t.Errorf("%+v", got)
	}
	harness.Contains(t, w.Run(0, nil, "", "box", "stat", "files:deep"), "directory")
	w.Run(0, nil, "", "box", "attributes", "files:deep/er/a.txt", "origin=a test\x1b[31m", "draft=1", "--unset", "missing")
	w.Run(0, nil, "", "box", "attributes", "files:deep/er/a.txt", "--unset", "draft")
	described := w.Run(0, nil, "", "box", "stat", "files:deep/er/a.txt")
	harness.Contains(t, described, "-rw-r--r--")
	harness.Contains(t, described, "boxuser")
	harness.Contains(t, described, "origin=a test")
	if strings.Contains(described, "\x1b") || strings.Contains(described, "draft") {
		t.Errorf("the file is described as %q", described)
	}
	w.MustSh(box, `ln -s er deep/link; touch "deep/$(printf 'x\033[31m\nfake')"`)
	harness.Contains(t, w.Run(0, nil, "", "box", "stat", "files:deep/link"), "symlink")
	harness.Contains(t, w.Run(0, nil, "", "box", "stat", "-L", "files:deep/link"), "directory")
	list := w.Run(0, nil, "", "box", "ls", "files:deep")
	if !strings.Contains(list, `x\x1b[31m\x0afake`) || strings.Contains(list, "\033") || strings.Count(list, "\n") != 4 {
		t.Errorf("it is listed as %q", list)
	}
	harness.Contains(t, w.Run(0, nil, "", "box", "ls", "files"), "deep/")
	harness.Contains(t, w.Run(0, nil, "", "box", "ls"), "files")
	if out := w.Run(0, nil, "", "box", "ls", "--label", "no"); strings.Contains(out, "files") {
		t.Errorf("the boxes with another label: %s", out)
	}
	if got := decoded[struct{ Files []struct{ Name string } }](w, "box", "ls", "files:deep/er"); len(got.Files) != 1 || got.Files[0].Name != "a.txt" {
		t.Errorf("%+v", got)
	}
	refused(w, map[string]string{
		"2 box rm files deep/er/a.txt":        `"deep/er/a.txt" is no box, and nothing was removed; a file of a box is files:deep/er/a.txt`,
		"2 box rm files /etc":                 "a file of a box is files:/etc",
		"2 box rm files files:deep":           "give boxes or files (BOX:PATH), not both; nothing was removed",
		"2 box rm files:":                     "names no file",
		"2 box rm -r files:/":                 "is the root directory of the box; remove the box with `gateway box rm files`",
		"2 box rm -r files:/tmp/..":           "is the root directory of the box",
		"2 box rm -r files":                   "--recursive is for files of boxes",
		"1 box rm files:deep":                 "in box files: /workspace/home/deep: ",
		"1 box rm files:/etc/passwd":          "in box files: /etc/passwd: permission denied",
		"1 box rm nobody:x":                   "see `gateway box list`",
		"1 box ls nobody":                     "see `gateway box list`",
		"1 box ls files:nothing":              "in box files: /workspace/home/nothing: no such file",
		"1 box cat files:nothing":             "in box files: /workspace/home/nothing: no such file",
		"2 box cat files:deep":                "list it with `gateway box ls`",
		"2 box cat files":                     `"files" is not BOX:PATH`,
		"2 box ls files --label x":            "--label is for boxes; leave out files",
		"2 box mv files:deep other:deep":      "both files must be in one box",
		"1 box mv files:nothing files:x":      "in box files: /workspace/home/nothing: no such file",
		"1 box mkdir files:a/b/c":             "in box files: /workspace/home/a/b/c: no such file",
		"2 box stat files:a --wrong":          "unknown flag --wrong",
		"1 box write files:/etc/motd":         "in box files: /etc/motd: permission denied",
		"1 box ls files:deep/er/a.txt --json": "not a directory",
	})
	w.Run(0, nil, "", "box", "rm", "-r", "files:deep", "files:notes")
	if got := w.MustSh(box, "ls -A; ls -d /etc/passwd"); got != "/etc/passwd\n" {
		t.Errorf("left are %q", got)
	}
}
