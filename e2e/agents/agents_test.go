package agents

import (
	"strings"
	"testing"

	"boxgate/internal/nightly"
)

// prompt has the model think, speak, run a command, and speak again.
const prompt = `Do this:
model: note the pear
model: think hm, first this
model: say I look.
model: run echo from-the-$((40+2)); id -un; pwd
model: repeat`

// TestAgentsWithTheirKeyOutside: each agent works with its key in a header rule only, unmodified: it thinks, speaks, uses
// tools in the folder of the run, continues its conversation, waits for a model that is busy, answers by a schema, and
// reads files.
func TestAgentsWithTheirKeyOutside(t *testing.T) {
	nightly.Only(t)
	s := newStudio(t)
	for _, a := range agents {
		t.Run(a.String(), func(t *testing.T) {
			s := studio{s.On(t), s.models}
			s.models.Forget()
			box := s.box(a, realKey)
			s.MustSh(box, "mkdir -p project")
			s.first(box, a)
			s.second(box, a, "project")
			s.second(box, a, "") // in another folder
			s.busy(box, a)
			s.schema(box, a)
			s.files(box, a)
			s.byCommand(box, a)
			s.MustDelete(box)
		})
	}
}

func (s studio) first(box string, a agent) {
	t := s.T
	o := s.run(box, prompt, map[string]any{"folder": "project"})
	want := "from-the-42\nboxuser\n/workspace/home/project"
	if o.problem != "" || !strings.Contains(o.done.Output, want) || !strings.Contains(o.text, "I look.") || !strings.Contains(o.text, want) {
		t.Fatalf("%+v", o)
	}
	if thinks := a.name != "opencode" || strings.HasPrefix(a.model, "openai"); thinks && !strings.Contains(o.thinking, "hm, first this") {
		t.Errorf("no thinking: %+v", o)
	}
	if len(o.tools) != 1 || !strings.Contains(o.tools[0], "from-the-$") || len(o.results) != 1 || !strings.Contains(o.results[0], "from-the-42") {
		t.Errorf("tools %v, results %v", o.tools, o.results)
	}
	var input, cached, output int
	for _, r := range s.models.Requests() {
		if r.Key != realKey {
			t.Errorf("the model received the key %q", r.Key)
		}
		probe := a.host == bedrock && strings.HasSuffix(r.Path, "/invoke") // Claude Code looks there for other models
		if _, name, _ := strings.Cut(a.model, "/"); r.Model != name && !probe {
			t.Errorf("the model is %q", r.Model)
		}
		input, cached, output = input+r.Usage.Input, cached+r.Usage.Cached, output+r.Usage.Output
	}
	if o.done.Input != input || o.done.Cached != cached || o.done.OutputN != output || o.done.SessionID == "" {
		t.Errorf("%d, %d and %d tokens, and the agent reports %+v", input, cached, output, o.done)
	}
}

// byCommand runs the agent on the command line: its answer is on standard output, its tools on standard error.
func (s studio) byCommand(box string, a agent) {
	t := s.T
	cmd := s.Command(t.Context(), "box", "agent", "run", box, prompt, "--folder", "project")
	var notes strings.Builder
	cmd.Stderr = &notes
	out, err := cmd.Output()
	if got := string(out); err != nil || !strings.Contains(got, "I look.") || !strings.Contains(got, "from-the-42\nboxuser\n") || !strings.HasSuffix(got, "\n") {
		t.Errorf("%s: %v: %q", a, err, got)
	}
	for _, want := range []string{"tool: ", "from-the-$", "result: ", `from-the-42\x0aboxuser`, " tokens in, "} {
		if !strings.Contains(notes.String(), want) {
			t.Errorf("%s: %q is not in %q", a, want, notes.String())
		}
	}
}

// second continues the conversation. The agent reports the tokens of this turn only.
func (s studio) second(box string, a agent, folder string) {
	s.models.Forget()
	o := s.run(box, "model: recall", map[string]any{"folder": folder})
	if !strings.Contains(o.done.Output, "noted: the pear") {
		s.T.Errorf("the conversation is not continued in %q: %+v", folder, o)
	}
	input := 0
	for _, r := range s.models.Requests() {
		input += r.Usage.Input
	}
	if o.done.Input != input {
		s.T.Errorf("the second turn has %d tokens, and the agent reports %d", input, o.done.Input)
	}
}

// busy has the model refuse requests with 429, then with 529.
func (s studio) busy(box string, a agent) {
	for _, refusal := range []string{"2 429", "1 529"} {
		o := s.run(box, "model: fail "+refusal+"\nmodel: say after "+refusal, nil)
		if !strings.Contains(o.done.Output, "after "+refusal) {
			s.T.Errorf("refused %s: %+v", refusal, o)
		}
	}
}

func (s studio) schema(box string, a agent) {
	schema := map[string]any{
		"type": "object", "properties": map[string]any{"n": map[string]any{"type": "number"}}, "required": []string{"n"}, "additionalProperties": false,
	}
	if o := s.run(box, `model: answer {"n":7}`, map[string]any{"json_schema": schema}); o.done.Output != `{"n":7}` {
		s.T.Errorf("%+v", o)
	}
}

// pixel is a picture of one pixel, as base64.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

func (s studio) files(box string, a agent) {
	s.models.Forget()
	o := s.run(box, "model: say seen", map[string]any{"files": []map[string]string{
		{"data": pixel, "media_type": "image/png", "filename": "a picture.png"}, {"data": "YSBzaG9ydCB0ZXh0", "media_type": "text/plain", "filename": "../note.txt"},
	}})
	all := s.models.Requests()
	if len(all) == 0 || o.done.Output != "seen" {
		s.T.Fatalf("%+v", o)
	}
	last := all[len(all)-1]
	if last.Images == 0 || !strings.Contains(strings.Join(last.Prompts, "\n"), "note.txt") || !strings.Contains(strings.Join(last.Prompts, "\n"), "a short text") {
		s.T.Errorf("the model received %d pictures and %q", last.Images, last.Prompts)
	}
}

// TestAgentsWithAWrongKey: a key that the model refuses ends the run within a minute, with the reason.
func TestAgentsWithAWrongKey(t *testing.T) {
	nightly.Only(t)
	s := newStudio(t)
	for _, a := range agents {
		t.Run(a.String(), func(t *testing.T) {
			s := studio{s.On(t), s.models}
			box := s.box(a, "sk-wrong")
			o := s.run(box, "model: say hi", nil)
			if o.done.Output != "" || !strings.Contains(o.problem, "401") && !strings.Contains(o.problem, "invalid x-api-key") {
				t.Errorf("%+v", o)
			}
			for _, r := range s.models.Requests() {
				if r.Status == 200 {
					t.Error("the model has answered")
				}
			}
		})
	}
}

// TestAgentsEndWithTheirRun: a run that is cut short leaves no program that goes on asking the model.
func TestAgentsEndWithTheirRun(t *testing.T) {
	nightly.Only(t)
	s := newStudio(t)
	for _, a := range agents[:3] {
		t.Run(a.String(), func(t *testing.T) {
			s := studio{s.On(t), s.models}
			s.models.Forget()
			box := s.box(a, realKey)
			if o := s.run(box, "model: stall", map[string]any{"timeout": 20_000}); o.problem == "" || o.done.Output != "" {
				t.Errorf("%+v", o)
			}
			s.Until("the program has ended", func() bool {
				_, code := s.Sh(box, "pgrep -x "+programs[a.name])
				return code == 1
			})
			s.Until("the model's client has left", func() bool { return len(s.models.Requests()) > 0 })
		})
	}
}
