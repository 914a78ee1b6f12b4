package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"

	"boxgate/llm"
)

// response is a generated response with the usage that its vendor states.
type response struct {
	vendor llm.Vendor
	body   string
	want   llm.Usage
}

// decoys are texts and arguments of tools that look like usage.
var decoys = []string{
	`"usage":{"input_tokens":9,"output_tokens":9}`, `}],"usage":{"prompt_tokens":9,"completion_tokens":9}`, "data: [DONE]\n\n", "\u2028\\\"{[", "日本語\t\r\n",
	`{"usageMetadata":{"promptTokenCount":9}}`, "\\", `"`, "event: message_stop", "\x7f\x01", "😀", "message_delta",
}

// generate makes a response of a vendor, in events or as a document.
func generate(r *rand.Rand, v llm.Vendor, events bool) response {
	number := func() uint64 { return r.Uint64N(1 << (1 + r.UintN(20))) }
	var text []string
	for range 1 + r.IntN(3) {
		text = append(text, decoys[r.IntN(len(decoys))]+strings.Repeat("x", r.IntN(12)))
	}
	tool := map[string]any{"usage": map[string]any{"input_tokens": 7, "prompt_tokens": 7, "output_tokens": 7}, "model": "other", "": map[string]any{"usage": 1}}
	u := llm.Usage{Input: number(), Output: number(), CacheRead: number(), Requests: 1}
	g := generator{r: r, text: text, tool: tool, u: u, events: events}
	switch {
	case v == llm.Anthropic:
		g.u.CacheWrite = number()
		g.anthropic()
	case v == llm.Bedrock:
		g.u.CacheWrite = number()
		g.frames = events
		if r.IntN(2) == 0 {
			g.anthropic()
		} else {
			g.converse()
		}
	case v == llm.Google:
		g.u.Reasoning = number()
		g.u.Output += g.u.Reasoning
		g.google()
	case r.IntN(2) == 0:
		g.u.Reasoning = min(number(), u.Output)
		g.responses()
	default:
		g.u.Reasoning = min(number(), u.Output)
		g.chat()
	}
	return response{v, g.out.String(), g.u}
}

type generator struct {
	r      *rand.Rand
	text   []string
	tool   map[string]any
	u      llm.Usage
	events bool
	frames bool // of events, in place of lines
	plain  bool // frames have the events themselves, not in base64
	out    strings.Builder
}

type object = map[string]any

// write writes an event, or the document.
func (g *generator) write(kind string, data object) {
	b, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	if g.r.IntN(3) == 0 {
		b = []byte(strings.ReplaceAll(string(b), "s", `\u0073`))
	}
	if g.r.IntN(3) == 0 {
		b = []byte(strings.ReplaceAll(string(b), `":`, "\" :\t"))
	}
	switch {
	case !g.events:
		g.out.Write(b)
		return
	case g.frames && !g.plain:
		if b, err = json.Marshal(object{"bytes": b, "p": "abcd"[:g.r.IntN(4)]}); err != nil {
			panic(err)
		}
		kind = "chunk"
		fallthrough
	case g.frames:
		g.out.Write(frame(kind, b))
		return
	}
	end := []string{"\n", "\r\n", "\r"}[g.r.IntN(3)]
	if kind != "" {
		g.out.WriteString("event: " + kind + end)
	}
	if g.r.IntN(4) == 0 {
		g.out.WriteString(": ping" + end)
	}
	space := " "[:g.r.IntN(2)]
	g.out.WriteString("data:" + space + string(b) + end + end)
}

func (g *generator) anthropic() {
	usage := object{
		"input_tokens": g.u.Input, "cache_read_input_tokens": g.u.CacheRead, "cache_creation_input_tokens": g.u.CacheWrite,
		"cache_creation": object{"ephemeral_5m_input_tokens": g.u.CacheWrite}, "output_tokens": g.u.Output, "service_tier": "standard",
	}
	if !g.events {
		g.write("", object{"type": "message", "model": "claude-x", "content": []any{
			object{"type": "text", "text": g.text[0]}, object{"type": "tool_use", "input": g.tool},
		}, "usage": usage})
		return
	}
	early := object{"input_tokens": g.u.Input, "cache_read_input_tokens": g.u.CacheRead, "cache_creation_input_tokens": g.u.CacheWrite, "output_tokens": 1}
	g.write("message_start", object{"type": "message_start", "message": object{"model": "claude-x", "content": []any{}, "usage": early}})
	g.write("content_block_start", object{"type": "content_block_start", "content_block": object{"type": "tool_use", "input": g.tool}})
	for _, t := range g.text {
		g.write("content_block_delta", object{"type": "content_block_delta", "delta": object{"type": "text_delta", "text": t}})
	}
	late := object{"output_tokens": g.u.Output}
	if g.r.IntN(2) == 0 {
		late = usage
	}
	g.write("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": "end_turn"}, "usage": late})
	g.write("message_stop", object{"type": "message_stop"})
}

// frame returns a message of an event stream with a payload.
func frame(kind string, payload []byte) []byte {
	const name = ":event-type"
	headers := append([]byte{byte(len(name))}, name...)
	headers = binary.BigEndian.AppendUint16(append(headers, 7), uint16(len(kind))) // 7: a string
	headers = append(headers, kind...)
	out := binary.BigEndian.AppendUint32(nil, uint32(preludeSize+len(headers)+len(payload)+checksumSize))
	out = binary.BigEndian.AppendUint32(out, uint32(len(headers)))
	out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out))
	out = append(append(out, headers...), payload...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out))
}

func (g *generator) converse() {
	g.plain = true
	usage := object{
		"inputTokens": g.u.Input, "outputTokens": g.u.Output, "totalTokens": g.u.Input + g.u.Output, "cacheReadInputTokens": g.u.CacheRead, "cacheWriteInputTokens": g.u.CacheWrite,
	}
	content := []any{object{"text": g.text[0]}, object{"toolUse": object{"input": g.tool}}}
	if !g.events {
		g.write("", object{"output": object{"message": object{"content": content}}, "usage": usage, "metrics": object{"latencyMs": 1}})
		return
	}
	g.write("messageStart", object{"role": "assistant", "p": "abc"})
	for _, t := range g.text {
		g.write("contentBlockDelta", object{"contentBlockIndex": 0, "delta": object{"text": t}})
	}
	g.write("messageStop", object{"stopReason": "end_turn"})
	g.write("metadata", object{"usage": usage, "metrics": object{"latencyMs": 1}})
}

func (g *generator) chat() {
	usage := object{
		"prompt_tokens": g.u.Input + g.u.CacheRead, "completion_tokens": g.u.Output, "prompt_tokens_details": object{"cached_tokens": g.u.CacheRead},
		"completion_tokens_details": object{"reasoning_tokens": g.u.Reasoning, "audio_tokens": 0},
	}
	if !g.events {
		g.write("", object{"model": "gpt-x", "choices": []any{object{"message": object{"content": g.text[0], "tool_calls": []any{g.tool}}}}, "usage": usage})
		return
	}
	for _, t := range g.text {
		g.write("", object{"model": "gpt-x", "choices": []any{object{"delta": object{"content": t, "tool_calls": []any{g.tool}}}}, "usage": nil})
	}
	g.write("", object{"model": "gpt-x", "choices": []any{}, "usage": usage})
	g.out.WriteString("data: [DONE]\n\n")
}

func (g *generator) responses() {
	usage := object{
		"input_tokens": g.u.Input + g.u.CacheRead, "output_tokens": g.u.Output, "input_tokens_details": object{"cached_tokens": g.u.CacheRead},
		"output_tokens_details": object{"reasoning_tokens": g.u.Reasoning},
	}
	whole := object{"model": "gpt-x", "output": []any{object{"content": []any{object{"text": g.text[0]}}, "arguments": g.tool}}, "usage": usage}
	if !g.events {
		g.write("", whole)
		return
	}
	g.write("response.created", object{"type": "response.created", "response": object{"model": "gpt-x", "usage": nil}})
	for _, t := range g.text {
		g.write("response.output_text.delta", object{"type": "response.output_text.delta", "delta": t})
	}
	g.write("response.output_item.done", object{"type": "response.output_item.done", "item": g.tool})
	g.write("response.completed", object{"type": "response.completed", "response": whole})
}

func (g *generator) google() {
	chunk := func(text string, output uint64, last bool) object {
		usage := object{"promptTokenCount": g.u.Input + g.u.CacheRead, "cachedContentTokenCount": g.u.CacheRead, "candidatesTokenCount": output}
		if last {
			usage["thoughtsTokenCount"] = g.u.Reasoning
		}
		return object{
			"modelVersion": "gemini-x", "usageMetadata": usage,
			"candidates": []any{object{"content": object{"parts": []any{object{"text": text}, object{"functionCall": g.tool}}}}},
		}
	}
	if !g.events && g.r.IntN(2) == 0 {
		g.write("", chunk(g.text[0], g.u.Output-g.u.Reasoning, true))
		return
	}
	for i, t := range g.text {
		if !g.events {
			g.out.WriteString([]string{"[", ",\r\n"}[min(i, 1)])
		}
		last := i == len(g.text)-1
		n := uint64(i)
		if last {
			n = g.u.Output - g.u.Reasoning
		}
		g.write("", chunk(t, n, last))
	}
	if !g.events {
		g.out.WriteString("\n]\n")
	}
}

// read feeds a body in pieces.
func read(v llm.Vendor, clean bool, pieces ...string) (llm.Usage, string, bool) {
	r := NewReader(llm.Call{Vendor: v, Model: "m", Input: 400})
	for _, p := range pieces {
		r.Feed([]byte(p))
	}
	return r.Result(clean)
}

// TestUsageIsTheVendors: of 1,000 generated responses, cut at every byte, the usage is the one that the vendor states.
func TestUsageIsTheVendors(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 1000 {
		v := llm.Vendors()[i%len(llm.Vendors())]
		res := generate(r, v, r.IntN(3) > 0)
		check := func(how string, pieces ...string) {
			if got, model, complete := read(v, true, pieces...); got != res.want || !complete || !strings.HasSuffix(model, "-x") && v != llm.Bedrock {
				t.Fatalf("%d, %s, %s: %+v of %q, complete %v; want %+v\n%s", i, v, how, got, model, complete, res.want, res.body)
			}
		}
		check("byte by byte", strings.Split(res.body, "")...)
		for at := range len(res.body) {
			check(fmt.Sprintf("in two at %d", at), res.body[:at], res.body[at:])
		}
	}
}

// TestResponsesCutShort: wherever a response ends, it is incomplete unless its usage was complete, and never counts less than before.
func TestResponsesCutShort(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 60 {
		v := llm.Vendors()[i%len(llm.Vendors())]
		res := generate(r, v, true)
		for at := range len(res.body) {
			u, _, complete := read(v, false, res.body[:at])
			switch {
			case complete && u != res.want:
				t.Fatalf("%s: cut at %d it is complete with %+v; want %+v\n%s", v, at, u, res.want, res.body)
			case complete && v == llm.Google:
				t.Fatalf("%s: cut at %d it is complete", v, at)
			case u.Requests != 1:
				t.Fatalf("%s: cut at %d: %+v", v, at, u)
			case u.Input == 0 && res.want.Input > 0 && u.CacheRead == 0:
				t.Fatalf("%s: cut at %d the input is free: %+v", v, at, u)
			}
		}
	}
}

// TestEstimates: the text of an answer without usage counts.
func TestEstimates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		vendor llm.Vendor
		body   string
		output uint64
	}{
		{llm.OpenAI, `data: {"choices":[{"delta":{"content":"12345678"}}]}` + "\n\n" + `data: {"choices":[{"delta":{"content":"1"}}]}` + "\n\ndata: [DONE]\n\n", 3},
		{llm.OpenAI, `data: {"type":"response.output_text.delta","delta":"12345678"}` + "\n\n", 2},
		{llm.Anthropic, `data: {"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":1}}}` + "\n\n" +
			`data: {"type":"content_block_delta","delta":{"text":"123456789"}}` + "\n\n", 3},
		{llm.Google, "\x0a\x10 another form", 4},
		{llm.Bedrock, string(frame("contentBlockDelta", []byte(`{"delta":{"text":"123456789"}}`))), 3},
		{llm.Bedrock, string(frame("chunk", []byte(`{"bytes":"eyJkZWx0YSI6eyJ0ZXh0IjoiMTIzNDU2Nzg5In19"}`))), 3},
		{llm.Bedrock, string(frame("contentBlockDelta", []byte(`{"delta":{"text":"`+strings.Repeat("x", maxPayload)+`"}}`))), 16402}, // too long to be read
		{llm.Bedrock, "\x00\x00\x00\x00\x00\x00\x00\x00....", 3},                                                                     // shorter than itself
		{llm.Bedrock, "\xff\xff\xff\xff\x00\x00\x00\x00....", 3},
		{llm.Bedrock, "\x00\x00\x00\x20\xff\xff\xff\xff....", 3},
		{llm.Google, `data: {"candidates":[{"content":{"parts":[{"text":"1234"}]}}]}` + "\n\n", 1},
	} {
		u, _, complete := read(c.vendor, true, c.body)
		if complete || u.Output != c.output {
			t.Errorf("%s: %+v, complete %v; want %d\n%s", c.vendor, u, complete, c.output, c.body)
		}
		if want := uint64(100); c.vendor != llm.Anthropic && u.Input != want {
			t.Errorf("%s: an input of 400 bytes counts as %d tokens", c.vendor, u.Input)
		}
	}
}

// TestThinkingBesideTheOutput: xAI and Google's servers in the form of OpenAI report thinking in the total only.
func TestThinkingBesideTheOutput(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]llm.Usage{
		`{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":45,"completion_tokens_details":{"reasoning_tokens":30}}}`: {Input: 10, Output: 35, Reasoning: 30, Requests: 1},
		`{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":45}}`:                                                     {Input: 10, Output: 35, Requests: 1},
		`{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}`:                                                     {Input: 10, Output: 5, Requests: 1},
		`{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":0}}`:                                                      {Input: 10, Output: 5, Requests: 1},
	} {
		if u, _, complete := read(llm.OpenAI, true, body); u != want || !complete {
			t.Errorf("%s: %+v, complete %v", body, u, complete)
		}
	}
}

// TestOddResponses: other forms of numbers and bodies.
func TestOddResponses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body     string
		want     llm.Usage
		complete bool
	}{
		{`{"usage":{"input_tokens":1.0,"output_tokens":1e3}}`, llm.Usage{Input: 1, Output: 1000, Requests: 1}, true},
		{`{"usage":{"input_tokens":-1,"output_tokens":2}}`, llm.Usage{Output: 2, Requests: 1}, true},
		{`{"usage":{"input_tokens":1,"output_tokens":99999999999999999999999}}`, llm.Usage{Input: 1, Output: mostTokens, Requests: 1}, true},
		{`{"usage":{"input_tokens":1,"output_tokens":1e999}}`, llm.Usage{Input: 1, Output: mostTokens, Requests: 1}, true},
		{`{"usage":{"input_tokens":0,"output_tokens":0}}`, llm.Usage{Requests: 1}, true}, // the vendor is believed
		{`{"usage":{"input_tokens":"5","output_tokens":"6"}}`, llm.Usage{Input: 100, Requests: 1}, false},
		{`{"usage":null}`, llm.Usage{Input: 100, Requests: 1}, false},
		{`{"":{"usage":{"input_tokens":5,"output_tokens":6}}}`, llm.Usage{Input: 100, Requests: 1}, false},
		{`{"content":[{"usage":{"input_tokens":5,"output_tokens":6}}],"message":{"usage":{"output_tokens":7}}}`, llm.Usage{Input: 100, Requests: 1}, false},
		{`{"usage/output_tokens":5,"a":{"usage":{"output_tokens":6}}}`, llm.Usage{Input: 100, Requests: 1}, false},
		{`{"usage":{"input_tokens":5,"output_tokens":6}`, llm.Usage{Input: 5, Output: 6, Requests: 1}, false},
		{`{"usage":{"input_tokens":5,"output_tokens":6}} {`, llm.Usage{Input: 5, Output: 6, Requests: 1}, false},
		{"", llm.Usage{Input: 100, Requests: 1}, false},
		{strings.Repeat("[", 10000), llm.Usage{Input: 100, Requests: 1}, false},
	} {
		if u, _, complete := read(llm.Anthropic, true, c.body); u != c.want || complete != c.complete {
			t.Errorf("%.80s: %+v, %v; want %+v, %v", c.body, u, complete, c.want, c.complete)
		}
	}
}

// FuzzReader: no body makes it fail, and the way in which it is cut does not matter.
func FuzzReader(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 30 {
		res := generate(r, llm.Vendors()[i%len(llm.Vendors())], i%2 == 0)
		f.Add([]byte(res.body), uint8(i), uint16(r.IntN(len(res.body))))
	}
	f.Fuzz(func(t *testing.T, body []byte, vendor uint8, at uint16) {
		v := llm.Vendors()[int(vendor)%len(llm.Vendors())]
		whole, model, complete := read(v, true, string(body))
		n := min(int(at), len(body))
		again, model2, complete2 := read(v, true, string(body[:n]), string(body[n:]))
		if whole != again || model != model2 || complete != complete2 {
			t.Fatalf("%+v %q %v, but cut at %d %+v %q %v", whole, model, complete, n, again, model2, complete2)
		}
		if complete && body[0] == '{' && !json.Valid(body) && strings.Count(string(body), "{") < 2 {
			t.Fatalf("%q is complete", body)
		}
	})
}

// TestReadingAllocatesNothing: the pieces of a stream cost no memory, however it is cut, beyond the names and numbers that are kept.
func TestReadingAllocatesNothing(t *testing.T) {
	piece := []byte(`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + strings.Repeat("word ", 20) + `"}}` + "\n\n")
	r := NewReader(llm.Call{Vendor: llm.Anthropic})
	r.Feed(piece)
	if n := testing.AllocsPerRun(100, func() {
		r.Feed(piece)
		r.Feed(piece[:40])
		r.Feed(piece[40:])
	}); n > 0 {
		t.Errorf("%v allocations for two events", n)
	}
}

// BenchmarkReader reads a stream in the pieces that a vendor sends.
func BenchmarkReader(b *testing.B) {
	piece := []byte(`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + strings.Repeat("word ", 4) + `"}}` + "\n\n")
	r := NewReader(llm.Call{Vendor: llm.Anthropic})
	b.SetBytes(int64(len(piece)))
	b.ReportAllocs()
	for b.Loop() {
		r.Feed(piece)
	}
}
