package harness

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"boxgate/api/history"
	"boxgate/llm"
)

// parse feeds a parser in chunks of n bytes and returns the events it emitted.
func parse(text string, n int) (events []string, p *parser, failed error) {
	p = &parser{emit: func(name string, data []byte) { events = append(events, name+" "+string(data)) }}
	p.kill = func(err error) { failed = err }
	for len(text) > 0 {
		m := min(n, len(text))
		_, _ = p.Write([]byte(text[:m]))
		text = text[m:]
	}
	p.finish()
	return events, p, failed
}

func TestEvents(t *testing.T) {
	t.Parallel()
	text := "noise\r\n: comment\n\nevent: text\r\ndata: {\"text\":\"a\\u001b[2J\u009b\u202e\"}\r\n\r\n" +
		"event: run_start\ndata: {\"run_id\":\"run_forged\"}\n\n" + // only the gateway starts runs
		"event: stats\ndata: {\"cpu_ns\":0}\n\n" +
		"event: x\x1b[31m\ndata: {}\n\n" + "event: Exit\ndata: {}\n\n" +
		"event: tool\ndata: {\"a\":\ndata: 1}\n\n" + // one JSON text on two lines
		"event: tool\ndata: {\"a\":1}\nevent: done\n\n" +
		"event: text\ndata: not json\n\n" +
		"event: done\ndata: {\"output\":\"o\",\"input_tokens\":-5,\"output_tokens\":7,\"total_cost_usd\":1e9,\"session_id\":\"s\\n1\\u0000\"}\n\n" +
		"event: error\ndata: {\"error\":\"too late\"}\n\nevent: text\ndata: {\"text\":\"too late\"}\n\n"
	for _, n := range []int{1, 2, 7, 1 << 20} {
		events, p, failed := parse(text, n)
		want := []string{
			`text {"text":"a\u001b[2J\u009b\u202e"}`, `tool {"a":1}`,
			`done {"output":"","input_tokens":0,"output_tokens":0,"cached_input_tokens":0,"total_cost_usd":0,"session_id":""}`,
		}
		if strings.Join(events, "\n") != strings.Join(want, "\n") || failed != nil || p.problem != "" {
			t.Errorf("in chunks of %d: %v, %q:\n%s", n, failed, p.problem, strings.Join(events, "\n"))
		}
	}
	events, p, _ := parse(text[strings.LastIndex(text, "event: done"):], 3)
	if len(events) != 1 || p.answer == nil || p.answer.SessionID != "s 1" || p.answer.InputTokens != 0 || p.answer.OutputTokens != 7 || strings.Contains(events[0], "1e") {
		t.Errorf("%q %+v", events, p.answer)
	}
	if _, p, _ := parse("event: error\ndata: {\"error\":\"a\\u001b]0;x\\u0007\\nb\"}", 5); p.problem != "a ]0;x  b" {
		t.Errorf("%q", p.problem)
	}
	if events, _, _ := parse("event: text\ndata: {\"text\":\"\x9b2J\"}\n\n", 1<<10); len(events) != 1 || events[0] != "text {\"text\":\"\uFFFD2J\"}" {
		t.Errorf("of a lone control byte is left %q", events)
	}
	for _, flood := range []string{strings.Repeat("x", 2*maxEvent), strings.Repeat("data: "+strings.Repeat("y", 100)+"\n", maxEvent/50)} {
		if events, p, failed := parse(flood, 4096); failed == nil || len(events) > 0 || cap(p.line)+cap(p.data) > 4*maxEvent {
			t.Errorf("%d events, %v", len(events), failed)
		}
	}
}

// FuzzEvents checks that every emitted event is JSON on one line without control characters, with a well-formed name.
func FuzzEvents(f *testing.F) {
	f.Add("event: text\ndata: {\"text\":\"\u0080\"}\n\n", 3)
	f.Add("event: done\ndata: {}\n\n", 1)
	f.Add("event:a\ndata:[\ndata:\"\\u2028\"]", 9)
	f.Fuzz(func(t *testing.T, text string, n int) {
		events, _, _ := parse(text, max(1, n))
		for _, e := range events {
			name, data, _ := strings.Cut(e, " ")
			if !eventName.MatchString(name) || name == "run_start" || name == "stats" || !json.Valid([]byte(data)) || !utf8.ValidString(data) || strings.ContainsAny(data, "\n\r\x1b\x7f\u0085\u2028") {
				t.Errorf("%q becomes %q", text, e)
			}
		}
	})
}

// TestCountsOfTheGatewayReplaceThoseOfTheHarness: the end of a run has the counted tokens and their cost.
func TestCountsOfTheGatewayReplaceThoseOfTheHarness(t *testing.T) {
	t.Parallel()
	metered := history.Metered{}
	for want, usage := range map[string]llm.Usage{
		`"input_tokens":1,"output_tokens":2,"cached_input_tokens":0,"total_cost_usd":0`:     {},
		`"input_tokens":12,"output_tokens":5,"cached_input_tokens":2,"total_cost_usd":1.25`: {Input: 10, CacheRead: 2, Output: 5, Requests: 1},
	} {
		metered.Usage, metered.USD = usage, llm.Dollar+llm.Dollar/4
		var end string
		p := &parser{emit: func(_ string, data []byte) { end = string(data) }, metered: func() history.Metered { return metered }}
		_, _ = p.Write([]byte("event: done\ndata: {\"output\":\"o\",\"input_tokens\":1,\"output_tokens\":2,\"total_cost_usd\":9}\n\n"))
		if !strings.Contains(end, want) {
			t.Errorf("the end is %s, want %s", end, want)
		}
	}
}
