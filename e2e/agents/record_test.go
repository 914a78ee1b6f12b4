package agents

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/internal/nightly"
)

// recordVariable is the environment variable with the directory for recorded streams: testdata of launcher/image/agents.
const recordVariable = "BOXGATE_RECORD_STREAMS"

// recordings are the recorded runs, with the prompt and the shell's assignments for each.
var recordings = []struct{ name, prompt, set string }{
	{"run", prompt, ""},
	{"second", "model: recall", ""}, // continues the conversation of the first
	{"schema", `model: answer {"n":7}`, `JSON_SCHEMA='{"type":"object","properties":{"n":{"type":"number"}},"required":["n"],"additionalProperties":false}'`},
	{"busy", "model: fail 1 529\nmodel: say after", ""},
	{"broken", "model: break\nmodel: say some words before it breaks", ""},
	{"wrong-key", "model: say hi", ""},
	{"lost", "model: say hi", ""}, // continues a conversation that does not exist
}

// programs are the agents' own programs.
var programs = map[string]string{"claude-code": "claude", "codex": "codex", "opencode": "opencode"}

// TestAgentsStreamsAreRecorded records what the agents print in boxes, for the tests of the adapters. It runs only with the variable.
func TestAgentsStreamsAreRecorded(t *testing.T) {
	nightly.Only(t)
	to := os.Getenv(recordVariable)
	if to == "" {
		t.Skip("records only with " + recordVariable)
	}
	s := newStudio(t)
	for _, a := range agents {
		if a.name == "opencode" && strings.HasPrefix(a.model, "openai") {
			continue // its stream has the same form
		}
		box, wrong := s.box(a, realKey), s.box(a, "sk-wrong")
		session := ""
		for _, r := range recordings {
			args := ""
			in := box
			switch r.name {
			case "second":
				args = " --session " + session
			case "lost":
				args = " --session " + lostSession(a.name)
			case "wrong-key":
				in = wrong
			}
			out, stream := s.record(in, a, r.prompt, r.set, args)
			if r.name == "run" {
				_, rest, _ := strings.Cut(out, `"session_id":"`)
				session, _, _ = strings.Cut(rest, `"`)
			}
			file := filepath.Join(to, a.name, r.name+".jsonl")
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(stream), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// lostSession returns a conversation of an agent that does not exist.
func lostSession(agent string) string {
	if agent == "opencode" {
		return "ses_dd379b9ecffeMxn8usI8k87Xxx"
	}
	return "11111111-1111-4111-8111-111111111111"
}

// record runs an adapter in a box and returns its output, and what the agent's program printed.
func (s studio) record(box string, a agent, prompt, set, args string) (out, stream string) {
	s.T.Helper()
	program := programs[a.name]
	s.MustSh(box, fmt.Sprintf(`mkdir -p tee && cat >tee/%[1]s <<'END' && chmod +x tee/%[1]s && rm -f stream
#!/bin/sh
/usr/local/bin/%[1]s "$@" | tee -a /workspace/home/stream
END`, program))
	line := fmt.Sprintf("PATH=/workspace/home/tee:$PATH %s /usr/lib/boxgate/agents/%s -p '%s' --model %s --stream%s", set, a.name, prompt, a.model, args)
	out, _ = s.Sh(box, line)
	return out, s.MustSh(box, "cat stream")
}
