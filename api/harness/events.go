package harness

import (
	"bytes"
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/stream"
)

// maxEvent bounds an event, and thereby the output of a harness in memory.
const maxEvent = 1 << 20

// maxWritten bounds the total output of a harness. Parsing it costs the gateway more than writing it costs the box.
const maxWritten = 64 << 20

// maxText bounds the text used as the answer if a harness reports no answer.
const maxText = 64 << 10

var (
	eventName      = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`)
	reservedEvents = []string{"run_start", "stats"} // events reserved for the gateway
)

// The data of the events that the gateway generates or interprets.
type (
	runStart struct {
		RunID string `json:"run_id"`
	}
	doneData struct {
		Output       string  `json:"output"`
		InputTokens  int64   `json:"input_tokens"`
		OutputTokens int64   `json:"output_tokens"`
		CachedTokens int64   `json:"cached_input_tokens"`
		TotalCostUSD float64 `json:"total_cost_usd" doc:"of metered requests to models; otherwise 0"`
		SessionID    string  `json:"session_id"`
	}
	errorData struct {
		Error string `json:"error"`
	}
	statsData struct {
		CPUNs      int64 `json:"cpu_ns"`
		MemoryPeak int64 `json:"memory_peak_bytes" doc:"always 0: not measured per run"`
	}
)

// parser parses the events of a harness. It is the writer for the harness's standard output.
type parser struct {
	emit  func(name string, data []byte) // called with checked JSON on one line
	kill  func(error)                    // kills the harness
	check func(string) (string, error)   // returns the answer in its final form, or why it is no answer; nil: any text is one
	onEnd func()                         // called once the harness has reported the end of the run
	// metered returns the gateway's sums of the run's requests to models; nil: they are not counted.
	metered func() history.Metered

	written int
	line    []byte
	name    string
	data    []byte
	text    strings.Builder
	before  history.Answer // of an earlier attempt, whose tokens are counted too
	dropped int            // malformed events
	closed  bool           // further output is ignored
	ended   bool           // the harness has ended
	answer  *history.Answer
	problem string // message of an "error" event
	unfit   error  // why the output is no answer
	refused error  // why the harness was killed; nil if it was not
}

// Write implements [io.Writer] and never fails. A panic caused by the box's output ends the run, not the gateway.
func (p *parser) Write(b []byte) (int, error) {
	defer p.recoverPanic()
	n := len(b)
	if p.written += n; p.written > maxWritten && !p.closed {
		p.refuse("the harness wrote more than %d bytes", maxWritten)
	}
	for len(b) > 0 && !p.closed {
		line, rest, complete := bytes.Cut(b, []byte("\n"))
		if len(p.line)+len(line)+len(p.data) > maxEvent {
			p.refuse("the harness wrote an event or a line of more than %d bytes", maxEvent)
			break
		}
		p.line = append(p.line, line...)
		if complete {
			p.parseLine(strings.TrimSuffix(string(p.line), "\r"))
			p.line = p.line[:0]
		}
		b = rest
	}
	return n, nil
}

// refuse kills a harness that writes too much.
func (p *parser) refuse(format string, args ...any) {
	p.closed, p.line, p.data = true, nil, nil
	p.refused = api.Errorf(api.ErrUnavailable, format, args...)
	p.kill(p.refused)
}

// recoverPanic turns a panic into a failure of the run. The panic's text is dropped, because it might quote the box's output.
func (p *parser) recoverPanic() {
	if recover() != nil {
		p.refuse("the gateway failed to parse the output of the harness")
	}
}

// finish handles a last event without a blank line after it.
func (p *parser) finish() {
	defer p.recoverPanic()
	if !p.closed {
		p.parseLine(strings.TrimSuffix(string(p.line), "\r"))
		p.dispatch()
	}
}

// parseLine parses a line. Lines that belong to no event are ignored, because programs print all kinds of output.
func (p *parser) parseLine(line string) {
	if line == "" {
		p.dispatch()
		return
	}
	field, value, _ := strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	switch field {
	case "event":
		p.name = value
	case "data":
		if len(p.data) > 0 {
			p.data = append(p.data, '\n')
		}
		p.data = append(p.data, value...)
	}
}

// dispatch handles a complete event.
func (p *parser) dispatch() {
	name, data := p.name, p.data
	p.name, p.data = "", nil
	if name == "" || len(data) == 0 || p.closed {
		return
	}
	data = bytes.ToValidUTF8(data, []byte("\uFFFD")) // even a lone byte can be a control character
	var compact bytes.Buffer
	if !eventName.MatchString(name) || slices.Contains(reservedEvents, name) || json.Compact(&compact, data) != nil {
		p.dropped++
		return
	}
	switch name {
	case "done":
		p.done(data)
	case "error":
		var e struct {
			errorData
			doneData
		}
		_ = json.Unmarshal(data, &e)
		p.answer = p.answerOf(&e.doneData)
		p.problem = cmp.Or(cleanLine(e.Error, 4<<10), "the harness reported an error without a text")
		p.endRun()
	case "text":
		var t struct{ Text string }
		if json.Unmarshal(data, &t) == nil && p.text.Len() < maxText {
			p.text.WriteString(t.Text)
		}
		p.emit(name, stream.EscapeControls(compact.Bytes()))
	default:
		p.emit(name, stream.EscapeControls(compact.Bytes()))
	}
}

// done handles the end of the run. Costs reported by the box are ignored, and its counts of tokens where the gateway has its own.
func (p *parser) done(data []byte) {
	var d doneData
	if json.Unmarshal(data, &d) != nil {
		p.dropped++
		return
	}
	p.answerWith(d)
}

// endRun ignores all further output, after the harness has reported the end of the run.
func (p *parser) endRun() {
	p.closed = true
	if p.onEnd != nil {
		p.onEnd()
	}
}

// answerOf returns the sums and the conversation of a claimed result, and bounds them in place.
func (p *parser) answerOf(d *doneData) *history.Answer {
	d.TotalCostUSD = 0
	d.InputTokens, d.OutputTokens, d.CachedTokens = sum(d.InputTokens, p.before.InputTokens), sum(d.OutputTokens, p.before.OutputTokens), sum(d.CachedTokens, p.before.CachedTokens)
	if p.metered != nil {
		if m := p.metered(); m.Requests > 0 {
			d.TotalCostUSD = m.USD.Float()
			d.InputTokens, d.OutputTokens, d.CachedTokens = m.InputTokens(), int64(m.Output), int64(m.CacheRead)
		}
	}
	d.SessionID = cleanLine(d.SessionID, 256)
	return &history.Answer{SessionID: d.SessionID, InputTokens: d.InputTokens, OutputTokens: d.OutputTokens, CachedTokens: d.CachedTokens}
}

// answerWith ends the run with a result.
func (p *parser) answerWith(d doneData) {
	p.answer = p.answerOf(&d)
	if p.check != nil {
		d.Output, p.unfit = p.check(d.Output)
	}
	p.answer.Output = d.Output
	if p.unfit != nil {
		p.endRun()
		return
	}
	if quoted, err := json.Marshal(d); err == nil {
		p.emit("done", stream.EscapeControls(quoted))
	}
	p.endRun()
}

// maxTokens bounds the number of tokens that a box can claim.
const maxTokens = 1 << 50

// sum adds a number of tokens that a box claims to an earlier sum.
func sum(claimed, before int64) int64 { return min(min(max(0, claimed), maxTokens)+before, maxTokens) }

// cleanLine reduces a box's text to one line of bounded length.
func cleanLine(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text[:min(len(text), most)])
	return strings.TrimSpace(strings.ToValidUTF8(text, ""))
}
