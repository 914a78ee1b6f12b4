package cli

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"boxgate/e2e/harness"
)

// agentScript is a custom harness that does what the prompt says.
const agentScript = `#!/bin/sh
prompt=$2
case $prompt in
tools)
  printf 'event: thinking\ndata: {"text":"hm"}\n\nevent: tool\ndata: {"name":"bash","input":{"command":"ls \\u001b[31m"}}\n\n'
  printf 'event: tool_result\ndata: {"output":"a\\nb"}\n\nevent: text\ndata: {"text":"an\\u001b[31mswer \\u202e"}\n\n'
  printf 'event: done\ndata: {"output":"an answer","input_tokens":7,"output_tokens":3,"session_id":"s"}\n\n' ;;
quiet) printf 'event: done\ndata: {"output":"only at the end"}\n\n' ;;
fails) printf 'event: text\ndata: {"text":"begun"}\n\nevent: error\ndata: {"error":"out of \\u001b[31mluck"}\n\n' ;;
exits) exit 9 ;;
schema) printf 'event: done\ndata: {"output":"{\\"n\\":%s}"}\n\n' "$(printf %s "$JSON_SCHEMA" | wc -c)" ;;
files) printf 'event: done\ndata: {"output":"%s %s"}\n\n' "$(grep -o 'hello.txt' "$PROMPT_FILES_PATH")" "$(pwd)" ;;
options) printf 'event: done\ndata: {"output":"%s"}\n\n' "$(printf %s "$AGENT_OPTIONS" | tr -d '"')" ;;
waits) printf 'event: text\ndata: {"text":"ready"}\n\n'; exec sleep 54326 ;;
*) printf 'event: done\ndata: {"output":"%s"}\n\n' "$prompt" ;;
esac
`

// agentBox creates a box with the harness.
func agentBox(w *harness.World, name string) string {
	w.T.Helper()
	made := decoded[struct{ ID, Agent string }](w, "box", "create", "--name", name, "--harness", "/workspace/home/agent", "--model", "custom/one", "--policy", "deny-all")
	if made.Agent != "custom" {
		w.T.Errorf("%+v", made)
	}
	w.Run(0, nil, agentScript, "box", "write", name+":agent")
	w.MustSh(made.ID, "chmod +x agent")
	return made.ID
}

// TestAgentByCommand: the answer of an agent is on standard output, its thoughts and tools on standard error, both without control characters.
// With --json each event is a line. The status tells whether there was an answer.
func TestAgentByCommand(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := agentBox(w, "agent")
	run := w.Command(t.Context(), "box", "agent", "run", "agent", "tools")
	var notes strings.Builder
	run.Stderr = &notes
	out, err := run.Output()
	if got := string(out); err != nil || got != "an\\x1b[31mswer \\u{202e}\n" {
		t.Errorf("%v: the answer is %q", err, got)
	}
	for _, want := range []string{"thinking: hm\n", `tool: bash {"command":"ls \u001b[31m"}` + "\n", `result: a\x0ab` + "\n", "7 tokens in, 3 out"} {
		harness.Contains(t, notes.String(), want)
	}
	var names []string
	dec := json.NewDecoder(strings.NewReader(w.Run(0, nil, "", "box", "agent", "run", "agent", "tools", "--json")))
	for dec.More() {
		var e struct {
			Event string
			Data  map[string]any
		}
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Event)
	}
	if got := strings.Join(names, " "); got != "run_start thinking tool tool_result text done stats" {
		t.Errorf("events: %s", got)
	}
	schema := `{"type":"object","properties":{"n":{"type":"number"}}}`
	for want, args := range map[string][]string{
		"only at the end": {"quiet"},
		"from a file":     {"@" + file(t, "prompt", "from a file")},
		`{"n":`:           {"schema", "--schema", "@" + file(t, "schema.json", schema)},
		"hello.txt /tmp":  {"files", "--file", file(t, "hello.txt", "hi"), "--folder", "/tmp"},
		"{max:3}":         {"options", "--options", "max: 3"},
	} {
		harness.Contains(t, w.Run(0, nil, "", append([]string{"box", "agent", "run", "agent"}, args...)...), want)
	}
	harness.Contains(t, w.Run(0, nil, "from standard input", "box", "agent", "run", "agent", "-"), "from standard input\n")
	harness.Contains(t, w.Run(1, nil, "", "box", "agent", "run", "agent", "fails"), `begun`+"\n"+`gateway: the run failed: out of `)
	refused(w, map[string]string{
		"9 box agent run agent exits":                       "the run failed: the harness exited with status 9 and no result",
		"1 box agent run agent waits --timeout 500ms":       "the run failed: ",
		"1 box agent run nobody x":                          "see `gateway box list`",
		"2 box agent run agent":                             "1 argument given",
		"2 box agent run agent x --webhook-headers {}":      "--webhook-headers needs --webhook-url",
		"1 box agent run agent x --webhook-url ftp://x":     "--webhook-url: must be an http or https URL",
		"2 box agent run agent x --options nothing":         "--options: this is not an object of options",
		"1 box agent run agent x --schema [1]":              "--schema: ",
		"1 box agent run agent x --file nothing":            "there is no file nothing",
		"2 box agent run agent - --options -":               "PROMPT and --options cannot both read standard input",
		"1 box agent model agent custom/two --agent claude": "--agent: must be claude-code, codex or opencode",
		"1 box agent model nobody x":                        "see `gateway box list`",
		"2 box agent harness agent":                         "arguments missing",
	})
	harness.Contains(t, w.Run(0, nil, "", "box", "agent", "model", "agent", "custom/two"), "custom/two")
	harness.Contains(t, w.Run(0, nil, "", "box", "agent", "harness", "agent", "--", "sh", "/workspace/home/agent"), "sh /workspace/home/agent")
	harness.Contains(t, w.Run(0, nil, "", "box", "agent", "run", "agent", "again"), "again")
	background := strings.TrimSpace(w.Run(0, nil, "", "box", "agent", "run", "agent", "later", "--webhook-url", "https://hooks.example.com/x", "--webhook-headers", "X-A: b"))
	w.Until("the run in the background ends", func() bool {
		got := decoded[struct{ Status, Output string }](w, "box", "run", "get", "agent", background)
		return got.Status == "completed" && got.Output == "later"
	})
	w.Run(0, nil, "", "box", "create", "--name", "codex", "--agent", "codex", "--model", "openai/gpt-5.4", "--policy", "deny-all")
	w.Run(0, nil, harness.TestSecret, "box", "agent", "model", "codex", "openai/gpt-5.5", "--api-key-file", "-")
	harness.Contains(t, w.Run(0, nil, "", "headers", "list", "--box", "codex"), "api.openai.com")
	if got := decoded[struct{ Model, Agent string }](w, "box", "get", "codex"); got.Model != "openai/gpt-5.5" || got.Agent != "codex" {
		t.Errorf("%+v", got)
	}
	plain := w.Create(map[string]any{"name": "plain"})
	harness.Contains(t, w.Run(1, nil, "", "box", "agent", "run", "plain", "x"), "the box has no agent")
	harness.Contains(t, w.Run(1, nil, "", "box", "agent", "harness", "plain", "--", "x"), "custom")
	w.MustDelete(plain)
	w.MustDelete(box)
}

// TestInterruptedAgent: Ctrl-C leaves a run of an agent going on, and names the command that ends it.
func TestInterruptedAgent(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := agentBox(w, "waits")
	run := w.Command(t.Context(), "box", "agent", "run", "waits", "waits")
	var notes strings.Builder
	run.Stderr = &notes
	out, err := run.StdoutPipe()
	if err == nil {
		err = run.Start()
	}
	if err == nil {
		_, err = out.Read(make([]byte, len("ready")))
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = run.Process.Signal(syscall.SIGINT)
	if err, ok := run.Wait().(*exec.ExitError); !ok || err.ExitCode() != 130 {
		t.Errorf("%v", err)
	}
	_, line, ok := strings.Cut(notes.String(), "`gateway ")
	line, _, ended := strings.Cut(line, "`")
	if !ok || !ended || !strings.HasPrefix(line, "box run cancel waits run_") {
		t.Fatalf("it says %q", notes.String())
	}
	w.Run(0, nil, "", strings.Fields(line)...)
	w.Until("the harness is killed", func() bool {
		out, _ := w.Sh(box, "grep -l 5432[6] /proc/[0-9]*/cmdline 2>/dev/null")
		return out == ""
	})
}

// TestSchedulesByCommand: schedules of commands and of the agent are made, listed, shown, paused, resumed and removed.
func TestSchedulesByCommand(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	agentBox(w, "cron")
	first := func(out string) string { return strings.Fields(out)[0] }
	hook := file(t, "headers.yaml", "X-Run: nightly\n")
	one := first(w.Run(0, nil, "", "box", "schedule", "exec", "cron", "--cron", "0 9 * * 1-5", "--time-zone", "Europe/Berlin", "--folder", "/tmp", "--timeout", "10m",
		"--webhook-url", "https://hooks.example.com/x", "--webhook-headers", "@"+hook, "--", "sh", "-c", "date >>log"))
	two := decoded[struct{ ID, Type, Model string }](w, "box", "schedule", "agent", "cron", "tools", "--cron", "@daily", "--model", "custom/x", "--options", `{"max":3}`)
	if two.Type != "prompt" || two.Model != "custom/x" {
		t.Errorf("%+v", two)
	}
	got := decoded[struct {
		Cron, Folder, Status string
		TimeZone             string `json:"time_zone"`
		Timeout              int64
		Command              []string
		WebhookHeaders       map[string]string `json:"webhook_headers"`
	}](w, "box", "schedule", "get", "cron", one)
	if got.Cron != "0 9 * * 1-5" || got.TimeZone != "Europe/Berlin" || got.Folder != "/tmp" || got.Timeout != 600000 || len(got.Command) != 3 || got.WebhookHeaders["X-Run"] != "nightly" {
		t.Errorf("%+v", got)
	}
	list := w.Run(0, nil, "", "box", "schedule", "list", "cron")
	for _, want := range []string{one, two.ID, "0 9 * * 1-5 Europe/Berlin", "sh -c date >>log", "active"} {
		harness.Contains(t, list, want)
	}
	harness.Contains(t, w.Run(0, nil, "", "box", "schedule", "pause", "cron", one, two.ID), "paused")
	if out := w.Run(0, nil, "", "box", "schedule", "list", "cron"); strings.Contains(out, "active") {
		t.Errorf("paused: %s", out)
	}
	harness.Contains(t, w.Run(0, nil, "", "box", "schedule", "resume", "cron", one), "active")
	refused(w, map[string]string{
		"2 box schedule exec cron -- true":                             "give --cron, such as --cron '*/5 * * * *'",
		"1 box schedule exec cron --cron never -- true":                "--cron: ",
		"1 box schedule exec cron --cron @daily --time-zone X -- true": "--time-zone: ",
		"1 box schedule exec nobody --cron @daily -- true":             "see `gateway box list`",
		"2 box schedule exec cron --cron @daily":                       "arguments missing",
		"2 box schedule agent cron --cron @daily":                      "1 argument given",
		"1 box schedule get cron nope":                                 "see `gateway box schedule list cron`",
		"1 box schedule pause cron nope":                               "see `gateway box schedule list cron`",
		"1 box schedule rm cron nope":                                  "see `gateway box schedule list cron`",
		"1 box schedule list nobody":                                   "see `gateway box list`",
		"2 box schedule delete cron x":                                 "its commands are",
	})
	w.Run(0, nil, "", "box", "schedule", "rm", "cron", one, two.ID)
	if got := decoded[[]any](w, "box", "schedule", "list", "cron"); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestSkillsAndEnvironmentByCommand: skills of a box, and the variables of new boxes.
func TestSkillsAndEnvironmentByCommand(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "skills"})
	harness.Contains(t, w.Run(0, nil, "", "box", "skill", "add", "skills", "acme/skills/one", "acme/whole"), "acme/whole\n")
	if got := decoded[[]string](w, "box", "skill", "rm", "skills", "acme/skills/one"); strings.Join(got, " ") != "acme/whole" {
		t.Errorf("%v", got)
	}
	w.Run(0, nil, "", "box", "skill", "rm", "skills", "acme/whole")
	if out := w.Run(0, nil, "", "box", "skill", "list", "skills"); out != "" {
		t.Errorf("%q", out)
	}

	t.Cleanup(func() {
		w.Client.Do(t.Context(), http.MethodPut, "/v2/box/settings/env", map[string]any{"env_vars": map[string]string{}}, nil)
	})
	w.Run(0, []string{"HERE=3"}, "", "box", "env", "set", "ONE=1", "HERE", "--file", file(t, "vars", "TWO='2 2'\nONE=9\n"))
	if out := w.Run(0, nil, "", "box", "env", "list"); out != "HERE\nONE\nTWO\n" {
		t.Errorf("%q", out)
	}
	w.Create(map[string]any{"name": "has"})
	if got := w.MustSh("has", `echo "$ONE|$TWO|$HERE"`); got != "1|2 2|3\n" {
		t.Errorf("the box has %q", got)
	}
	w.Run(0, nil, "", "box", "env", "unset", "ONE", "HERE")
	w.Run(0, nil, "LAST=x\n", "box", "env", "replace", "-")
	if got := decoded[struct {
		EnvVars map[string]string `json:"env_vars"`
	}](w, "box", "env", "list"); len(got.EnvVars) != 1 || got.EnvVars["LAST"] != "****" {
		t.Errorf("%v", got)
	}
	refused(w, map[string]string{
		"1 box skill add skills acme":          "SKILL: ",
		"2 box skill rm skills acme":           "a skill is OWNER/REPOSITORY",
		"1 box skill rm skills acme/none":      "see `gateway box skill list skills`",
		"1 box skill list nobody":              "see `gateway box list`",
		"2 box env set":                        "give NAME=VALUE, or --file",
		"2 box env set NOT_HERE_2":             "neither NAME=VALUE nor a variable here",
		"1 box env set 1X=y":                   "the name must be",
		"1 box env unset NOTHING":              "see `gateway box env list`",
		"1 box env replace nothing":            "there is no file nothing",
		"2 box env list x":                     "1 argument given",
		"1 box init-command skills true":       "keep_alive",
		"2 box init-command skills true false": "give one COMMAND, in quotes",
	})
}
