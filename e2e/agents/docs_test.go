package agents

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"boxgate/internal/nightly"
)

// examplePattern finds the examples of docs/agents.md, by the name of their agent.
var examplePattern = regexp.MustCompile("(?s)<!-- example: ([a-z-]+) -->\n```sh\n(.*?)```")

// TestAgentsOfTheDocumentation runs the example of each agent in docs/agents.md.
func TestAgentsOfTheDocumentation(t *testing.T) {
	nightly.Only(t)
	page, err := os.ReadFile("../../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := examplePattern.FindAllSubmatch(page, -1)
	if len(examples) != len(programs) {
		t.Fatalf("the page has %d examples", len(examples))
	}
	s := newStudio(t)
	for _, e := range examples {
		agent, script := string(e[1]), string(e[2])
		s.models.Forget()
		cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail", "-c", script)
		cmd.Env = append(os.Environ(), "API=http://127.0.0.1:8600", "KEY="+strings.TrimSpace(s.KeyFile("api-key")), "MODEL_KEY="+realKey)
		var out, errout strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errout
		if err := s.Net.Gateway().Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%s: %v\n%s\n%s", agent, err, out.String(), errout.String())
		}
		answers := json.NewDecoder(strings.NewReader(out.String()))
		var box struct{ ID string }
		var run struct {
			Status, Output string
		}
		if err := answers.Decode(&box); err != nil {
			t.Fatal(err, out.String())
		}
		if err := answers.Decode(&run); err != nil || run.Status != "completed" || run.Output != "ok" {
			t.Errorf("%s: %v %+v\n%s", agent, err, run, out.String())
		}
		if requests := s.models.Requests(); len(requests) == 0 || requests[0].Key != realKey {
			t.Errorf("%s: the model received %d requests", agent, len(requests))
		}
	}
}
