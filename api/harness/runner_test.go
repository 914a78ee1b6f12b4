package harness

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/history"
	"boxgate/api/schema"
	"boxgate/policy"
)

// scripted is a box whose harness gives one answer after the other.
type scripted struct {
	hostile
	answers  []string // events
	exit     int
	commands [][]string
	env      map[string]string
}

func (s *scripted) Exec(_ context.Context, _ policy.BoxID, req api.ExecRequest, out, _ io.Writer) (api.ExecResult, error) {
	s.commands, s.env = append(s.commands, req.Command), req.Env
	if len(s.answers) > 0 {
		_, _ = io.WriteString(out, s.answers[0])
		s.answers = s.answers[1:]
	}
	return api.ExecResult{CPU: 5, ExitCode: s.exit}, nil
}

// ask runs the agent of a box with a schema of its answer.
func ask(t *testing.T, s *scripted, text string) ([]string, history.RunDetail, error) {
	t.Helper()
	e := &Endpoints{Runner: Runner{Commands: s, Settings: s, History: history.New(nil)}}
	j := &job{box: api.Box{ID: "box1", Hosted: s.hosted}, body: runBody{Prompt: "p"}}
	if text != "" {
		var err error
		if j.schema, err = schema.Parse([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	j.prepare("")
	l := &listener{}
	end := <-e.start(access.WithCredential(t.Context(), func() bool { return true }), j, l, func(*history.Run) {})
	view, _ := e.History.Find("box1", end.run.ID())
	return l.events, view, end.err
}

func answer(output, session string) string {
	quoted, _ := json.Marshal(output)
	return "event: done\ndata: {\"output\":" + string(quoted) + ",\"input_tokens\":3,\"output_tokens\":2,\"session_id\":\"" + session + "\"}\n\n"
}

const wantsNumber = `{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]}`

// An answer that does not match the schema is asked for once more, in the same conversation. The client sees one result, and the
// run has the tokens of both attempts.
func TestAnswerIsAskedForOnceMore(t *testing.T) {
	t.Parallel()
	s := &scripted{answers: []string{answer(`{"n":"one"}`, "c1"), answer("```json\n{\"n\": 1}\n```", "c2")}}
	s.hosted = api.Hosted{Agent: "claude-code", Model: "anthropic/m"}
	events, view, err := ask(t, s, wantsNumber)
	if err != nil || view.Output != `{"n": 1}` || view.InputTokens != 6 || view.OutputTokens != 4 || view.CPUNs != 10 || view.SessionID != "c2" {
		t.Errorf("%+v %v", view, err)
	}
	if !slices.Equal(events, []string{"done", "stats"}) {
		t.Errorf("%v", events)
	}
	if len(s.commands) != 2 || !slices.Equal(s.commands[0], []string{"/usr/lib/boxgate/agents/claude-code", "-p", "p", "--model", "anthropic/m", "--stream"}) {
		t.Fatalf("%q", s.commands)
	}
	if again := s.commands[1]; !slices.Equal(again[3:], []string{"--model", "anthropic/m", "--stream", "--session", "c1"}) || !strings.HasPrefix(again[2], "p\n\n") || !strings.Contains(again[2], "/n must be number, and is string") {
		t.Errorf("%q", again)
	}
	if s.hosted.Session != "c2" || s.hosted.Totals != (api.AgentTotals{Prompts: 1, InputTokens: 6, OutputTokens: 4}) {
		t.Errorf("%+v", s.hosted)
	}
	if s.env["BOXGATE_AGENT_MODEL"] != "anthropic/m" || s.env["BOXGATE_AGENT_BASE_URL"] != "" {
		t.Errorf("%v", s.env)
	}
}

// A harness that does not give the answer is not asked a third time.
func TestAnswerIsNotAskedForTwiceMore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		schema  string
		answers []string
		exit    int
		asked   int
		want    string
	}{
		"two wrong answers":  {wantsNumber, []string{answer("no", ""), answer("no", ""), answer(`{"n":1}`, "")}, 0, 2, "does not match the schema: it is not JSON"},
		"then an error":      {wantsNumber, []string{answer("no", ""), "event: error\ndata: {\"error\":\"too much\",\"input_tokens\":4}\n\n"}, 0, 2, "too much"},
		"an error at first":  {wantsNumber, []string{"event: error\ndata: {\"error\":\"too much\"}\n\n"}, 1, 1, "too much"},
		"the program fails":  {wantsNumber, nil, 2, 1, "status 2"},
		"there is none":      {"", nil, 127, 1, "gateway image build debian-agents"},
		"text, not an event": {wantsNumber, []string{"event: text\ndata: {\"text\":\"hm\"}\n\n", "x"}, 0, 2, "does not match the schema"},
	} {
		s := &scripted{answers: tt.answers, exit: tt.exit}
		s.hosted = api.Hosted{Agent: "codex"}
		events, view, err := ask(t, s, tt.schema)
		if err == nil || !strings.Contains(err.Error(), tt.want) || view.Status != "failed" || len(s.commands) != tt.asked || slices.Contains(events, "done") {
			t.Errorf("%s: %d attempts, %v, %v, %s", name, len(s.commands), events, err, view.Status)
		}
		if name == "then an error" && view.InputTokens != 7 {
			t.Errorf("%d tokens", view.InputTokens)
		}
		if s.hosted.Totals.Prompts != 1 {
			t.Errorf("%s: %+v", name, s.hosted.Totals)
		}
	}
}

// Numbers of tokens that a box invents neither overflow the sums nor lower them.
func TestInventedTokens(t *testing.T) {
	t.Parallel()
	s := &scripted{}
	s.hosted = api.Hosted{Agent: "codex", Totals: api.AgentTotals{Prompts: 1, InputTokens: 10, OutputTokens: 10}}
	for _, claimed := range []string{"9223372036854775807", "-5", "9223372036854775807", "0"} {
		s.answers = []string{"event: done\ndata: {\"input_tokens\":" + claimed + "}\n\n"}
		before := s.hosted.Totals
		if _, _, err := ask(t, s, ""); err != nil || s.hosted.Totals.InputTokens < before.InputTokens || s.hosted.Totals.OutputTokens != 10 {
			t.Errorf("%s: %+v %v", claimed, s.hosted.Totals, err)
		}
	}
}

// The body of a webhook has the members of the SDK's type, with a failure for a cancelled run.
func TestWebhookPayload(t *testing.T) {
	t.Parallel()
	view := history.RunDetail{RunView: history.RunView{ID: "run_1", BoxID: "box1", Status: "cancelled", ErrorMessage: "a\x1bb", Model: "m", InputTokens: 3, SessionID: "s", DurationMS: 7}}
	want := `{"box_id":"box1","status":"failed","run_id":"run_1","metadata":{"input_tokens":3,"output_tokens":0,"cached_input_tokens":0,"session_id":"s","model":"m","duration_ms":7},"error":"a\u001bb"}`
	if got := string(mustMarshal(payloadOf(view))); got != want {
		t.Error(got)
	}
	view.Status, view.ErrorMessage, view.Output = "completed", "", "fine"
	if got := payloadOf(view); got.Status != "completed" || got.Output != "fine" || got.Error != "" {
		t.Errorf("%+v", got)
	}
}
