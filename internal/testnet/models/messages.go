package models

import (
	"encoding/json"
	"errors"
	"strings"
)

// messages is Anthropic's Messages API: https://docs.anthropic.com/en/api/messages.
type messages struct{}

type messagesRequest struct {
	Model    string          `json:"model"`
	Stream   bool            `json:"stream"`
	Most     int             `json:"max_tokens"`
	System   json.RawMessage `json:"system"`
	Thinking *struct {
		Type string `json:"type"`
	} `json:"thinking"`
	Output struct {
		Effort string          `json:"effort"`
		Format json.RawMessage `json:"format"`
	} `json:"output_config"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Name   string          `json:"name"`
		Schema json.RawMessage `json:"input_schema"`
	} `json:"tools"`
}

// block is a part of a message of either vendor.
type block struct {
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	Content json.RawMessage `json:"content"`
	Output  json.RawMessage `json:"output"`
}

func (messages) read(body []byte) (turn, error) {
	var r messagesRequest
	if err := json.Unmarshal(body, &r); err != nil {
		return turn{}, err
	}
	if r.Most <= 0 || len(r.Messages) == 0 {
		return turn{}, errors.New("max_tokens and messages are required")
	}
	t := turn{model: r.Model, streamed: r.Stream, effort: r.Output.Effort, schema: len(r.Output.Format) > 0}
	t.thinking = r.Thinking != nil && r.Thinking.Type != "disabled"
	t.system, _ = contentText(r.System)
	for _, o := range r.Tools {
		offered := tool{name: o.Name}
		_ = json.Unmarshal(o.Schema, &offered.schema) // tools of the vendor lack it
		t.tools = append(t.tools, offered)
	}
	for _, m := range r.Messages {
		t.add(m.Role, m.Content)
	}
	return t, nil
}

// add adds a message to the conversation: results of tools first, then its text.
func (t *turn) add(role string, content json.RawMessage) {
	var blocks []block
	if json.Unmarshal(content, &blocks) == nil {
		for _, b := range blocks {
			if b.Type == "tool_result" {
				text, _ := contentText(b.Content)
				t.said = append(t.said, said{"result", text})
			}
		}
	}
	text, images := contentText(content)
	t.images += images
	if text != "" || images > 0 {
		t.said = append(t.said, said{role, text})
	}
}

// contentText returns the text of a content of either vendor, which is a string or a list of blocks, and its images.
func contentText(content json.RawMessage) (string, int) {
	var whole string
	if json.Unmarshal(content, &whole) == nil {
		return whole, 0
	}
	var blocks []block
	_ = json.Unmarshal(content, &blocks) // absent
	var text []string
	images := 0
	for _, b := range blocks {
		switch b.Type {
		case "text", "input_text", "output_text":
			text = append(text, b.Text)
		case "image", "image_url", "input_image", "document", "input_file", "file":
			images++
		}
	}
	return strings.Join(text, "\n"), images
}

func (messages) refusal(kind, message string) any {
	return object{"type": "error", "error": object{"type": kind, "message": message}, "request_id": "req_1"}
}

func (a answer) messagesUsage() object {
	return object{
		"input_tokens": a.usage.Input - a.usage.Cached - a.usage.Written, "cache_read_input_tokens": a.usage.Cached,
		"cache_creation_input_tokens": a.usage.Written, "output_tokens": a.usage.Output, "service_tier": "standard",
	}
}

func (a answer) stopReason() string {
	if a.call != nil {
		return "tool_use"
	}
	return "end_turn"
}

// blocks returns the content of an answer.
func (messages) blocks(t turn, a answer) (list []object) {
	if a.thinking != "" && t.thinking {
		list = append(list, object{"type": "thinking", "thinking": a.thinking, "signature": "c2lnbmVk"})
	}
	if a.text != "" {
		list = append(list, object{"type": "text", "text": a.text})
	}
	if a.call != nil {
		list = append(list, object{"type": "tool_use", "id": "toolu_" + t.id(), "name": a.call.name, "input": a.call.input})
	}
	return list
}

func (m messages) whole(t turn, a answer) any {
	return object{
		"id": "msg_" + t.id(), "type": "message", "role": "assistant", "model": t.model, "content": m.blocks(t, a),
		"stop_reason": a.stopReason(), "stop_sequence": nil, "usage": a.messagesUsage(),
	}
}

func (m messages) stream(e *events, t turn, a answer) error {
	start := a.messagesUsage()
	start["output_tokens"] = 1
	e.send("message_start", object{"type": "message_start", "message": object{
		"id": "msg_" + t.id(), "type": "message", "role": "assistant", "model": t.model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": start,
	}})
	e.send("ping", object{"type": "ping"})
	for i, b := range m.blocks(t, a) {
		m.streamBlock(e, i, b, a)
		if a.broken {
			e.send("error", object{"type": "error", "error": object{"type": "overloaded_error", "message": "Overloaded"}})
			return e.err
		}
	}
	e.send("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": a.stopReason(), "stop_sequence": nil}, "usage": a.messagesUsage()})
	e.send("message_stop", object{"type": "message_stop"})
	return e.err
}

// streamBlock sends a block of the content in pieces.
func (messages) streamBlock(e *events, index int, b object, a answer) {
	delta := func(kind, field, text string) {
		e.send("content_block_delta", object{"type": "content_block_delta", "index": index, "delta": object{"type": kind, field: text}})
	}
	begin := func(empty object) {
		e.send("content_block_start", object{"type": "content_block_start", "index": index, "content_block": empty})
	}
	switch b["type"] {
	case "thinking":
		begin(object{"type": "thinking", "thinking": "", "signature": ""})
		for _, piece := range pieces(a.thinking) {
			delta("thinking_delta", "thinking", piece)
		}
		delta("signature_delta", "signature", "c2lnbmVk")
	case "text":
		begin(object{"type": "text", "text": ""})
		for _, piece := range pieces(a.text) {
			delta("text_delta", "text", piece)
		}
	default:
		begin(object{"type": "tool_use", "id": b["id"], "name": b["name"], "input": object{}})
		for _, piece := range pieces(a.call.json()) {
			delta("input_json_delta", "partial_json", piece)
		}
	}
	if !a.broken {
		e.send("content_block_stop", object{"type": "content_block_stop", "index": index})
	}
}
