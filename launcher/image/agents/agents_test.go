package agents

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the events of the recorded streams to testdata")

// cli is a stand-in for the program of an agent, which prints a recorded stream.
const cli = `#!/bin/sh
cat >"$RIG/stdin"
printf '%s\n' "$@" >"$RIG/args"
env >"$RIG/env"
pwd >"$RIG/pwd"
n=$(cat "$RIG/runs" 2>/dev/null); echo $((n+1)) >"$RIG/runs"
if [ -z "$n" ]; then cat "$RIG/stderr" >&2; cat "$RIG/stream"; exit "$(cat "$RIG/status")"; fi
cat "$RIG/stream2"
`

// rig runs an adapter with such a program.
type rig struct {
	t     *testing.T
	dir   string
	agent string
}

func newRig(t *testing.T, agent string) *rig {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Fatal("this test needs Node.js: apt-get install nodejs")
	}
	r := &rig{t, t.TempDir(), agent}
	for _, name := range []string{"claude", "codex", "opencode"} {
		r.write("bin/"+name, cli, 0o755)
	}
	for name, text := range map[string]string{"stream": "", "stream2": "", "stderr": "", "status": "0"} {
		r.write(name, text, 0o644)
	}
	return r
}

func (r *rig) write(name, text string, mode os.FileMode) {
	r.t.Helper()
	file := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(r.dir, name)) // absent if the program did not run
	return string(text)
}

// run runs the adapter and returns its output.
func (r *rig) run(env []string, args ...string) string {
	r.t.Helper()
	adapter, err := filepath.Abs(r.agent)
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(r.t.Context(), "node", append([]string{adapter}, args...)...)
	cmd.Dir = r.dir
	cmd.Env = append([]string{"PATH=" + filepath.Join(r.dir, "bin") + ":" + os.Getenv("PATH"), "HOME=" + r.dir, "RIG=" + r.dir, "TMPDIR=" + r.dir}, env...)
	var errout bytes.Buffer
	cmd.Stderr = &errout
	out, err := cmd.Output()
	if err != nil && len(out) == 0 {
		r.t.Fatalf("%v: %s", err, errout.String())
	}
	return string(out)
}

// TestEventsOfRecordedStreams: what the agents printed in boxes (TestAgentsStreamsAreRecorded of e2e/agents) becomes these events.
func TestEventsOfRecordedStreams(t *testing.T) {
	t.Parallel()
	streams, err := filepath.Glob("testdata/*/*.jsonl")
	if err != nil || len(streams) < 18 {
		t.Fatal(streams, err)
	}
	for _, file := range streams {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".jsonl"), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, filepath.Base(filepath.Dir(file)))
			stream, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var env, args []string
			switch strings.TrimSuffix(filepath.Base(file), ".jsonl") {
			case "schema":
				env = []string{`JSON_SCHEMA={"type":"object"}`}
			case "second":
				args = []string{"--session", "ses_1"}
			case "lost":
				args = []string{"--session", "ses_1"}
				r.write("stderr", "Session not found: no rollout found for thread id ses_1\n", 0o644)
				first, second := lostStreams(string(stream))
				r.write("stream2", second, 0o644)
				stream = []byte(first)
			}
			r.write("stream", string(stream), 0o644)
			got := r.run(env, append([]string{"-p", "the prompt", "--model", "custom", "--stream"}, args...)...)
			golden := strings.TrimSuffix(file, ".jsonl") + ".events"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(golden); err != nil || got != string(want) {
				t.Errorf("%v\n%s", err, got)
			}
			wellFormed(t, got)
		})
	}
}

// lostStreams divides the stream of a run whose conversation does not exist: the refusal, and the next attempt.
func lostStreams(stream string) (first, second string) {
	if at := strings.Index(stream, "\n") + 1; strings.Contains(stream[:at], "No conversation found") {
		return stream[:at], stream[at:]
	}
	return "", stream
}

// wellFormed reports events that are not of the protocol, and a run without exactly one end, which is last.
func wellFormed(t *testing.T, events string) {
	t.Helper()
	event := regexp.MustCompile(`^event: [a-z_]+\ndata: \{.*\}$`)
	all := strings.Split(strings.TrimSuffix(events, "\n\n"), "\n\n")
	for i, e := range all {
		end := strings.HasPrefix(e, "event: done\n") || strings.HasPrefix(e, "event: error\n")
		if !event.MatchString(e) || end != (i == len(all)-1) {
			t.Errorf("event %d of %d: %q", i, len(all), e)
		}
	}
}

// TestKeyOfAnAgentIsAPlaceholder: the program gets a placeholder where it insists on a key, unless the box has a variable of
// its own, and the model's address from the gateway.
func TestKeyOfAnAgentIsAPlaceholder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		agent, model, variable string
		in                     []string // of which file the address is
		address                string
	}{
		{"claude-code", "anthropic/m", "ANTHROPIC_API_KEY", []string{"env"}, "ANTHROPIC_BASE_URL=https://models.example.com/x"},
		{"codex", "openai/m", "OPENAI_API_KEY", []string{"args"}, `model_providers.boxgate.base_url="https://models.example.com/x"`},
		{"opencode", "internal/m", "INTERNAL_API_KEY", []string{"env"}, `"baseURL":"https://models.example.com/x"`},
	} {
		r := newRig(t, c.agent)
		args := []string{"-p", "hi", "--model", "ignored", "--stream"}
		base := []string{"BOXGATE_AGENT_MODEL=" + c.model, "BOXGATE_AGENT_BASE_URL=https://models.example.com/x"}
		r.run(base, args...)
		all := r.read("env") + r.read("args")
		if !strings.Contains(all, "set-by-the-gateway") || !strings.Contains(r.read(c.in[0]), c.address) || strings.Contains(all, "ignored") {
			t.Errorf("%s:\n%s", c.agent, all)
		}
		r.run(append(base, c.variable+"=mine"), args...)
		if all := r.read("env") + r.read("args"); strings.Contains(all, "set-by-the-gateway") {
			t.Errorf("%s replaces the box's own %s", c.agent, c.variable)
		}
	}
}

// TestConversationOfAnotherFolder: the program runs where the conversation began, if it finds conversations only there, and the
// prompt names the folder of the run. A folder that is gone is not used.
func TestConversationOfAnotherFolder(t *testing.T) {
	t.Parallel()
	for agent, session := range map[string]string{"claude-code": "--resume\nses_1\n", "opencode": "--session=ses_1\n"} {
		r := newRig(t, agent)
		elsewhere := filepath.Join(r.dir, "elsewhere")
		r.write(".box-internal/conversations.json", `[["ses_0","/"],["ses_1","`+elsewhere+`"]]`, 0o644)
		args := []string{"-p", "the prompt", "--model", "custom", "--stream", "--session", "ses_1"}
		r.run(nil, args...)
		if got := r.read("pwd"); got != r.dir+"\n" {
			t.Errorf("%s runs in %q, and the folder of the conversation is gone", agent, got)
		}
		if err := errors.Join(os.Mkdir(elsewhere, 0o755), os.Remove(filepath.Join(r.dir, "runs"))); err != nil {
			t.Fatal(err)
		}
		r.run(nil, args...)
		if got := r.read("pwd"); got != elsewhere+"\n" || !strings.Contains(r.read("args"), session) || !strings.Contains(r.read("stdin"), "The working directory is "+r.dir) {
			t.Errorf("%s runs in %q with %q, and reads %q", agent, got, r.read("args"), r.read("stdin"))
		}
	}
}

// TestShortTextsArePartOfThePrompt: a model that has one turn, and so no tool, still sees them. Other files are named.
func TestShortTextsArePartOfThePrompt(t *testing.T) {
	t.Parallel()
	for _, agent := range []string{"claude-code", "codex"} {
		t.Run(agent, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, agent)
			var list []map[string]string
			for name, data := range map[string]string{
				"table.csv": "name,age\nCharlie,41\n", "long.txt": strings.Repeat("long text ", 7000), "latin.txt": "caf\xe9 latin", "zero.bin": "zero\x00byte",
			} {
				list = append(list, map[string]string{"data": base64.StdEncoding.EncodeToString([]byte(data)), "media_type": "application/octet-stream", "filename": name})
			}
			files, err := json.Marshal(list)
			if err != nil {
				t.Fatal(err)
			}
			r.write("files.json", string(files), 0o644)
			r.run([]string{"PROMPT_FILES_PATH=" + filepath.Join(r.dir, "files.json")}, "-p", "the prompt", "--model", "custom", "--stream")
			prompt := r.read("stdin")
			for _, want := range []string{"the prompt", "Charlie,41", "table.csv", "long.txt", "latin.txt", "zero.bin"} {
				if !strings.Contains(prompt, want) {
					t.Errorf("%q is not in %q", want, prompt)
				}
			}
			for _, not := range []string{"long text", "latin\\n", "zero\\u0000", "caf"} {
				if strings.Contains(prompt, not) {
					t.Errorf("%q is in %q", not, prompt)
				}
			}
		})
	}
}

// TestRefusalsOfAdapters: an adapter never ends without a result, and refuses what it cannot do.
func TestRefusalsOfAdapters(t *testing.T) {
	t.Parallel()
	for _, agent := range Names() {
		for name, c := range map[string]struct {
			env, args []string
			stderr    string
			want      string
		}{
			"an unknown option":   {env: []string{`AGENT_OPTIONS={"bogus":1}`}, want: `unknown option \"bogus\"`},
			"options not JSON":    {env: []string{"AGENT_OPTIONS={"}, want: "AGENT_OPTIONS is not JSON"},
			"an unknown argument": {args: []string{"--bogus"}, want: `unknown argument \"--bogus\"`},
			"missing files":       {env: []string{"PROMPT_FILES_PATH=/nowhere"}, want: "the files of the prompt cannot be read"},
			"no result":           {stderr: "it is broken\n", want: "and no result: it is broken"},
		} {
			t.Run(agent+", "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, agent)
				r.write("stderr", c.stderr, 0o644)
				r.write("status", "3", 0o644)
				r.write("stream", "not JSON\n[1]\nnull\n{\"type\":\"unknown\"}\n", 0o644)
				got := r.run(c.env, append([]string{"-p", "hi", "--model", "custom", "--stream"}, c.args...)...)
				if wellFormed(t, got); !strings.Contains(got, "event: error\n") || !strings.Contains(got, c.want) {
					t.Errorf("%s", got)
				}
			})
		}
		t.Run(agent+", no program", func(t *testing.T) {
			t.Parallel()
			r := newRig(t, agent)
			if err := os.RemoveAll(filepath.Join(r.dir, "bin")); err != nil {
				t.Fatal(err)
			}
			if got := r.run(nil, "-p", "hi", "--model", "custom", "--stream"); !strings.Contains(got, "the image debian-agents has it") {
				t.Errorf("%s", got)
			}
		})
	}
}

// TestOptionsOfAgents: options become the settings of the program.
func TestOptionsOfAgents(t *testing.T) {
	t.Parallel()
	for agent, c := range map[string]struct {
		options string
		want    []string // in arguments or environment
	}{
		"claude-code": {`{"maxTurns":3,"maxBudgetUsd":2.5,"effort":"high","disallowedTools":["A","B"],"fallbackModel":"f","systemPrompt":"s","thinking":{"type":"enabled","budgetTokens":2000},"agents":{"r":{}},"promptSuggestions":false}`,
			[]string{"--max-turns\n3\n", "--max-budget-usd\n2.5\n", "--effort\nhigh\n", "--disallowedTools\nA,B\n", "--fallback-model\nf\n", "--system-prompt\ns\n", "MAX_THINKING_TOKENS=2000\n", "--agents\n{\"r\":{}}\n", "--prompt-suggestions\nfalse\n"}},
		"codex": {`{"model_reasoning_effort":"high","modelReasoningSummary":"concise","personality":"pragmatic","web_search":true}`,
			[]string{"model_reasoning_effort=\"high\"\n", "model_reasoning_summary=\"concise\"\n", "personality=\"pragmatic\"\n", "web_search=\"live\"\n"}},
		"opencode": {`{"reasoningEffort":"high","textVerbosity":"low"}`,
			[]string{`"models":{"m":{"options":{"reasoningEffort":"high","textVerbosity":"low"}}}`}},
	} {
		r := newRig(t, agent)
		r.run([]string{"AGENT_OPTIONS=" + c.options}, "-p", "hi", "--model", "openai/m", "--stream")
		all := r.read("args") + r.read("env")
		for _, want := range c.want {
			if !strings.Contains(all, want) {
				t.Errorf("%s: no %q in\n%s", agent, want, all)
			}
		}
	}
}

// TestHugeOutputOfAnAgent: the events stay within the gateway's bounds, and the result is among them.
func TestHugeOutputOfAnAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t, "claude-code")
	line := `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","content":"` + strings.Repeat("x", 300<<10) + `"}]}}` + "\n"
	r.write("stream", strings.Repeat(line, 220)+`{"type":"result","subtype":"success","result":"fine","session_id":"s","usage":{}}`+"\n", 0o644)
	out := r.run(nil, "-p", "hi", "--model", "custom", "--stream")
	if len(out) > 60<<20 || !strings.Contains(out[len(out)-1000:], `"output":"fine"`) {
		t.Errorf("%d bytes, which end with %.300s", len(out), out[max(0, len(out)-300):])
	}
	for event := range strings.SplitSeq(out, "\n\n") {
		if len(event) > 1<<19 {
			t.Errorf("an event of %d bytes", len(event))
		}
	}
}

// TestVersionsOfPrograms: only exact versions of known agents replace the pinned ones. Another version has no pinned digest,
// and another image.
func TestVersionsOfPrograms(t *testing.T) {
	t.Parallel()
	pinnedOnes, err := Programs(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pinnedOnes {
		if p.Digest == "" && p.Package != "opencode-linux-arm64" {
			t.Errorf("%+v", p)
		}
	}
	other, err := Programs(map[string]string{"codex": "1.2.3"})
	if err != nil || other[1].Digest != "" || !strings.HasPrefix(other[1].Archive(), "@openai/codex/-/codex-1.2.3-linux-") || other[0] != pinnedOnes[0] {
		t.Errorf("%+v, %v", other, err)
	}
	if Key(nil) == Key(map[string]string{"codex": "1.2.3"}) || Key(nil) != Key(map[string]string{}) {
		t.Error("the image of another version has the same key")
	}
	for agent, version := range map[string]string{"cursor": "1.2.3", "codex": "latest", "claude-code": "^2.1.0", "opencode": "../1.0.0"} {
		if err := Check(map[string]string{agent: version}); err == nil {
			t.Errorf("%s %s is accepted", agent, version)
		}
	}
	for document, want := range map[string]string{
		`{"dist":{"integrity":"sha512-abc="}}`: "abc=", `{"dist":{"integrity":"sha1-abc="}}`: "", `{}`: "", `x`: "",
	} {
		if got, err := DigestIn([]byte(document)); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", document, got, err)
		}
	}
}

// TestInstalledAdapters: the adapters are programs in the image, next to the file that they share.
func TestInstalledAdapters(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := Install(root); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"claude-code": 0o755, "codex": 0o755, "opencode": 0o755, "protocol.js": 0o644} {
		if fi, err := root.Stat(Dir + "/" + name); err != nil || fmt.Sprint(fi.Mode().Perm()) != fmt.Sprint(mode) {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
}
