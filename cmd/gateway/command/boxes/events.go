package boxes

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"boxgate/cmd/gateway/command/cli"
)

// event is one event of a run of an agent. The gateway has checked that Data is JSON; its content is the harness's.
type event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// maxEvent bounds an event, in bytes. The gateway's bound is lower.
const maxEvent = 8 << 20

// readEvents reads server-sent events (WHATWG HTML, section 9.2) and calls each for every one. Comments, which keep a connection open,
// and fields other than event and data are skipped. The error of a stream that ends within an event is [io.ErrUnexpectedEOF].
func readEvents(r io.Reader, each func(event) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	var e event
	begun := false
	for lines.Scan() {
		line := bytes.TrimSuffix(lines.Bytes(), []byte("\r"))
		if len(line) == 0 {
			if begun && len(e.Data) > 0 {
				if !json.Valid(e.Data) {
					return errors.New("the gateway sent an event that is not JSON")
				}
				if err := each(e); err != nil {
					return err
				}
			}
			e, begun = event{}, false
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			e.Name, begun = string(value), true
		case "data":
			if len(e.Data)+len(value) > maxEvent {
				return bufio.ErrTooLong
			}
			if len(e.Data) > 0 {
				e.Data = append(e.Data, '\n')
			}
			e.Data, begun = append(e.Data, value...), true
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if begun {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// eventData holds the members of events that are printed.
type eventData struct {
	RunID        string          `json:"run_id"`
	Text         string          `json:"text"`
	Name         string          `json:"name"`
	Input        json.RawMessage `json:"input"`
	Output       json.RawMessage `json:"output"`
	IsError      bool            `json:"is_error"`
	Error        string          `json:"error"`
	InputTokens  int64           `json:"input_tokens"`
	OutputTokens int64           `json:"output_tokens"`
	Cost         float64         `json:"total_cost_usd"`
}

// maxShown bounds the input or the result of a tool on the terminal, in bytes.
const maxShown = 400

// transcript prints the events of a run: the answer of the agent to out, everything else to notes, so that the answer alone can be
// redirected. With asJSON each event is a line of out.
type transcript struct {
	out, notes io.Writer
	asJSON     bool

	run      string // its ID; empty: not known yet
	answered bool   // the run ended with an answer
	failed   string // why the run failed; empty: it did not, so far
	texts    bool   // text was printed
	column   bool   // the cursor is behind text, not at the beginning of a line
}

// print prints one event.
func (t *transcript) print(e event) error {
	var d eventData
	known := json.Unmarshal(e.Data, &d) == nil // events of other names have members of any type
	if known {
		switch e.Name {
		case "run_start":
			t.run = d.RunID
		case "done":
			t.answered = true
		case "error":
			t.failed = d.Error
			if t.failed == "" {
				t.failed = "the gateway gave no reason"
			}
		}
	}
	switch {
	case t.asJSON:
		return cli.WriteJSON(t.out, e)
	case !known:
		return nil
	}
	return t.show(e.Name, d)
}

// show prints one event for people.
func (t *transcript) show(name string, d eventData) error {
	switch name {
	case "text":
		t.texts = t.texts || d.Text != ""
		return t.write(t.out, d.Text)
	case "thinking", "notice":
		return t.note("%s: %s", name, cli.Prose(strings.TrimSpace(d.Text)))
	case "tool":
		return t.note("tool: %s %s", word(d.Name), shown(d.Input))
	case "tool_result":
		if d.IsError {
			return t.note("failed: %s", shown(d.Output))
		}
		return t.note("result: %s", shown(d.Output))
	case "done":
		var output string
		if json.Unmarshal(d.Output, &output) == nil && !t.texts {
			if err := t.write(t.out, output); err != nil {
				return err
			}
		}
		if t.column {
			t.column = false
			if _, err := fmt.Fprintln(t.out); err != nil {
				return err
			}
		}
		cost := ""
		if d.Cost > 0 {
			cost = fmt.Sprintf(", %.4f USD", d.Cost)
		}
		return t.note("run %s: %s in, %d out%s", word(t.run), cli.Count(d.InputTokens, "token", "tokens"), d.OutputTokens, cost)
	}
	return nil
}

// write prints text of the agent.
func (t *transcript) write(w io.Writer, text string) error {
	if text == "" {
		return nil
	}
	t.column = !strings.HasSuffix(text, "\n")
	_, err := io.WriteString(w, cli.Prose(text))
	return err
}

// note prints a line about the run, below the text so far.
func (t *transcript) note(format string, args ...any) error {
	line := fmt.Sprintf(format, args...) + "\n"
	if t.column {
		line = "\n" + line
		t.column = false
	}
	_, err := io.WriteString(t.notes, line)
	return err
}

// shown formats the input or the result of a tool: a text itself, anything else as JSON, on one line.
func shown(data json.RawMessage) string {
	text := string(data)
	var plain string
	if json.Unmarshal(data, &plain) == nil {
		text = plain
	}
	return escape(strings.TrimSpace(text), maxShown)
}
