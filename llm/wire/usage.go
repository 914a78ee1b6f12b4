package wire

import (
	"math"
	"strconv"

	"boxgate/llm"
)

// bytesPerToken is the length of a token in the estimates for responses that did not report their usage.
const bytesPerToken = 4

// Reader reads the usage of a response as its body passes, without content coding. Not safe for concurrent use.
type Reader struct {
	call   llm.Call
	scan   scanner
	stream events
	frames frames
	form   form

	model   string
	kind    [32]byte // "type" of an event
	kindLen int
	now     counts // as reported last
	before  counts // the most that earlier reports stated, which now replaces
	some    bool   // the input was reported
	bytes   uint64 // of the body
	parsed  bool   // some event was JSON
	final   bool   // that of the whole response was reported
	last    bool   // the response reported its end
}

// counts are numbers of tokens as reported. Vendors include the tokens of caches and of thinking in others, or do not.
type counts struct {
	input, output uint64
	read, written uint64 // of caches
	thinking      uint64
	tool          uint64 // of the input, in addition to input
	total         uint64 // of all kinds
}

// most returns the larger of each number.
func (c counts) most(o counts) counts {
	return counts{
		max(c.input, o.input), max(c.output, o.output), max(c.read, o.read), max(c.written, o.written), max(c.thinking, o.thinking), max(c.tool, o.tool),
		max(c.total, o.total),
	}
}

// form is the form of a body.
type form uint8

const (
	formUnknown form = iota
	formDocument
	formEvents
	formFrames
)

// NewReader returns a reader for the response to a call, whose status is below 400.
func NewReader(c llm.Call) *Reader {
	r := &Reader{call: c}
	r.scan.to = r
	r.stream.to, r.stream.ended = &r.scan, r.endEvent
	r.frames.payload = r.endFrame
	return r
}

// Feed takes the next piece of the body. It does not keep p.
func (r *Reader) Feed(p []byte) {
	r.bytes += uint64(len(p))
	if r.form == formUnknown {
		if p = r.findForm(p); len(p) == 0 {
			return
		}
	}
	switch r.form {
	case formDocument:
		r.scan.feed(p)
	case formFrames:
		r.frames.feed(p)
	default:
		r.stream.feed(p)
	}
}

// findForm finds the form by the first byte that is not white space.
func (r *Reader) findForm(p []byte) []byte {
	if len(p) > 0 && r.call.Vendor == llm.Bedrock && p[0] != '{' {
		r.form = formFrames
		return p
	}
	for i, c := range p {
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		case '{', '[':
			r.form = formDocument
		default:
			r.form = formEvents
		}
		return p[i:]
	}
	return nil
}

// Result returns the usage, and the model as the response names it, or "". clean reports whether the body ended as it should. If complete is
// false, the usage is the one reported until then, with estimates of the rest.
func (r *Reader) Result(clean bool) (u llm.Usage, model string, complete bool) {
	if clean && r.form == formEvents {
		r.stream.end() // the last event may lack its empty line
	}
	ended := r.last || clean
	switch r.form {
	case formDocument:
		ended = r.scan.whole()
	case formFrames:
		ended = r.last || clean && r.frames.between()
	}
	complete = r.final && ended
	if complete {
		return r.usage(r.now), r.model, true
	}
	u = r.usage(r.now.most(r.before))
	r.estimate(&u)
	return u, r.model, false
}

// usage returns the usage of reported numbers, in the form that is alike for all vendors.
func (r *Reader) usage(c counts) llm.Usage {
	u := llm.Usage{Input: c.input, Output: c.output, CacheRead: c.read, CacheWrite: c.written, Reasoning: c.thinking, Requests: 1}
	if r.call.Vendor == llm.OpenAI || r.call.Vendor == llm.Google {
		u.Input = less(c.input, c.read)
	}
	if r.call.Vendor == llm.OpenAI { // some servers report thinking in the total only
		u.Output = max(u.Output, less(c.total, c.input))
	}
	if r.call.Vendor == llm.Google {
		u.Input, u.Output = u.Input+c.tool, u.Output+c.thinking
	}
	return u
}

// estimate completes the usage of a response that did not report all of it.
func (r *Reader) estimate(u *llm.Usage) {
	if !r.some {
		u.Input = EstimateInput(r.call)
	}
	if u.Output = max(u.Output, Estimate(r.scan.Text)); (r.form == formEvents || r.form == formFrames) && !r.parsed {
		u.Output = max(u.Output, Estimate(r.bytes)) // it has another form
	}
}

// Estimate returns the estimated number of tokens of a text of n bytes.
func Estimate(n uint64) uint64 {
	return n/bytesPerToken + (n%bytesPerToken+bytesPerToken-1)/bytesPerToken
}

// AddedInput stands for the input that a vendor adds to a request, if it was not reported: the context of a large model.
const AddedInput = 200_000

// EstimateInput returns the estimated number of input tokens of a call.
func EstimateInput(c llm.Call) uint64 {
	if c.Adds {
		return llm.Add(Estimate(c.Input), AddedInput)
	}
	return Estimate(c.Input)
}

func less(a, b uint64) uint64 { return a - min(a, b) }

// endEvent follows an event.
func (r *Reader) endEvent(data []byte) {
	r.parsed = r.parsed || r.scan.whole()
	switch kind := string(r.kind[:r.kindLen]); {
	case string(data) == "[DONE]", kind == "message_stop",
		kind == "response.completed", kind == "response.incomplete", kind == "response.failed":
		r.last = true
	case kind == "message_delta":
		r.last = r.final
	}
	r.kindLen = 0
}

// key implements [visitor].
func (r *Reader) key([]byte) {}

// value implements [visitor].
func (r *Reader) value(place []byte, kind byte, text []byte, cut bool) {
	if r.form != formDocument && string(place) == "type" {
		if r.kindLen = 0; kind == '"' && len(text) <= len(r.kind) {
			r.kindLen = copy(r.kind[:], text)
		}
		return
	}
	switch r.call.Vendor {
	case llm.Anthropic:
		r.anthropic(place, kind, text, cut)
	case llm.Google:
		r.google(place, kind, text, cut)
	case llm.Bedrock:
		r.anthropic(place, kind, text, cut)
		r.converse(place, kind, text)
	default:
		r.openAI(place, kind, text, cut)
	}
}

// within returns a place inside the member that wraps the response, and whether it is there.
func within(place []byte, member string) (rest []byte, inside bool) {
	if n := len(member); len(place) > n && string(place[:n]) == member && place[n] == '/' {
		return place[n+1:], true
	}
	return place, false
}

// anthropic reads Messages. message_start has the usage of the input, message_delta the whole, in each member that it has.
func (r *Reader) anthropic(place []byte, kind byte, text []byte, cut bool) {
	start := false
	if r.form != formDocument {
		place, start = within(place, "message")
	}
	switch string(place) {
	case "model":
		r.named(kind, text, cut)
	case "usage/input_tokens":
		r.count(&r.now.input, kind, text)
	case "usage/cache_read_input_tokens":
		r.count(&r.now.read, kind, text)
	case "usage/cache_creation_input_tokens":
		r.count(&r.now.written, kind, text)
	case "usage/output_tokens":
		if r.count(&r.now.output, kind, text) && !start {
			r.final = true
		}
	}
}

// converse reads Converse and ConverseStream, whose last event has the usage.
func (r *Reader) converse(place []byte, kind byte, text []byte) {
	switch string(place) {
	case "usage/inputTokens":
		r.count(&r.now.input, kind, text)
	case "usage/cacheReadInputTokens":
		r.count(&r.now.read, kind, text)
	case "usage/cacheWriteInputTokens":
		r.count(&r.now.written, kind, text)
	case "usage/outputTokens":
		if r.count(&r.now.output, kind, text) {
			r.final, r.last = true, r.form == formFrames
		}
	}
}

// openAI reads Chat Completions, Completions, Responses and Embeddings.
func (r *Reader) openAI(place []byte, kind byte, text []byte, cut bool) {
	if r.form == formEvents {
		place, _ = within(place, "response")
	}
	switch string(place) {
	case "model":
		r.named(kind, text, cut)
	case "usage":
		r.again(kind)
	case "usage/prompt_tokens", "usage/input_tokens":
		r.final = r.count(&r.now.input, kind, text) || r.final
	case "usage/completion_tokens", "usage/output_tokens":
		r.count(&r.now.output, kind, text)
	case "usage/total_tokens":
		r.count(&r.now.total, kind, text)
	case "usage/prompt_tokens_details/cached_tokens", "usage/input_tokens_details/cached_tokens":
		r.count(&r.now.read, kind, text)
	case "usage/completion_tokens_details/reasoning_tokens", "usage/output_tokens_details/reasoning_tokens":
		r.count(&r.now.thinking, kind, text)
	}
}

// google reads generateContent and streamGenerateContent. Each event has the usage until then.
func (r *Reader) google(place []byte, kind byte, text []byte, cut bool) {
	place, _ = within(place, "response")
	switch string(place) {
	case "modelVersion":
		r.named(kind, text, cut)
	case "usageMetadata":
		r.again(kind)
	case "usageMetadata/promptTokenCount":
		r.final = r.count(&r.now.input, kind, text) || r.final
	case "usageMetadata/candidatesTokenCount":
		r.count(&r.now.output, kind, text)
	case "usageMetadata/cachedContentTokenCount":
		r.count(&r.now.read, kind, text)
	case "usageMetadata/thoughtsTokenCount":
		r.count(&r.now.thinking, kind, text)
	case "usageMetadata/toolUsePromptTokenCount":
		r.count(&r.now.tool, kind, text)
	}
}

// again begins a usage that replaces earlier ones.
func (r *Reader) again(kind byte) {
	if kind == '{' {
		r.before, r.now = r.before.most(r.now), counts{}
	}
}

// named takes the name of the model.
func (r *Reader) named(kind byte, text []byte, cut bool) {
	if kind == '"' && !cut && string(text) != r.model && isModel(string(text)) {
		r.model = string(text)
	}
}

// mostTokens bounds a reported number, so that sums cannot overflow.
const mostTokens = 1 << 40

// count takes a number of tokens, and reports whether it is one.
func (r *Reader) count(to *uint64, kind byte, text []byte) bool {
	if kind != '0' {
		return false
	}
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		f, err := strconv.ParseFloat(string(text), 64) // as encoders write whole numbers: 12.0, 1e3
		if err != nil && !math.IsInf(f, 1) || !(f >= 0) {
			return false
		}
		n = uint64(min(f, mostTokens))
	}
	*to = min(n, mostTokens)
	r.some = r.some || to == &r.now.input
	return true
}
