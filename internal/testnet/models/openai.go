package models

import (
	"encoding/json"
	"errors"
	"fmt"
)

// responses is OpenAI's Responses API: https://platform.openai.com/docs/api-reference/responses.
type responses struct{}

// chat is OpenAI's Chat Completions: https://platform.openai.com/docs/api-reference/chat.
type chat struct{}

type responsesRequest struct {
	Model        string          `json:"model"`
	Stream       bool            `json:"stream"`
	Instructions string          `json:"instructions"`
	Input        json.RawMessage `json:"input"`
	Reasoning    struct {
		Effort string `json:"effort"`
	} `json:"reasoning"`
	Text struct {
		Format *struct {
			Type string `json:"type"`
		} `json:"format"`
	} `json:"text"`
	Tools []responsesTool `json:"tools"`
}

// responsesTool is a function, a tool with free input, or a namespace of tools.
type responsesTool struct {
	Type       string          `json:"type"`
	Name       string          `json:"name"`
	Parameters json.RawMessage `json:"parameters"`
}

type responsesItem struct {
	block

	Role string `json:"role"`
}

func (responses) read(body []byte) (turn, error) {
	var r responsesRequest
	if err := json.Unmarshal(body, &r); err != nil {
		return turn{}, err
	}
	if r.Model == "" || len(r.Input) == 0 {
		return turn{}, errors.New("model and input are required")
	}
	t := turn{model: r.Model, streamed: r.Stream, effort: r.Reasoning.Effort, system: r.Instructions, thinking: true}
	t.schema = r.Text.Format != nil && r.Text.Format.Type == "json_schema"
	for _, o := range r.Tools {
		offered := tool{name: o.Name, free: o.Type == "custom"}
		_ = json.Unmarshal(o.Parameters, &offered.schema) // tools of the vendor lack it
		t.tools = append(t.tools, offered)
	}
	var items []responsesItem
	if json.Unmarshal(r.Input, &items) != nil {
		t.add("user", r.Input)
		return t, nil
	}
	for _, item := range items {
		switch item.Type {
		case "function_call_output", "custom_tool_call_output", "local_shell_call_output":
			text, _ := contentText(item.Output)
			t.said = append(t.said, said{"result", text})
		case "message", "":
			t.add(item.Role, item.Content)
		}
	}
	return t, nil
}

// id identifies an answer in its conversation.
func (t turn) id() string { return fmt.Sprintf("%04d", len(t.said)) }

// openaiRefusal is the body of an error of both APIs.
func openaiRefusal(kind, message string) any {
	return object{"error": object{"message": message, "type": kind, "param": nil, "code": kind}}
}

func (responses) refusal(kind, message string) any { return openaiRefusal(kind, message) }
func (chat) refusal(kind, message string) any      { return openaiRefusal(kind, message) }

// items returns the output of an answer.
func (responses) items(t turn, a answer) (list []object) {
	if a.thinking != "" {
		list = append(list, object{"type": "reasoning", "id": "rs_" + t.id(), "summary": []object{{"type": "summary_text", "text": a.thinking}}, "encrypted_content": "b3BhcXVl"})
	}
	if a.text != "" {
		list = append(list, object{"type": "message", "id": "msg_" + t.id(), "role": "assistant", "status": "completed", "content": []object{{"type": "output_text", "text": a.text, "annotations": []any{}}}})
	}
	switch {
	case a.call == nil:
	case a.call.free:
		list = append(list, object{"type": "custom_tool_call", "id": "ctc_" + t.id(), "call_id": "call_" + t.id(), "name": a.call.name, "input": a.call.input, "status": "completed"})
	default:
		list = append(list, object{"type": "function_call", "id": "fc_" + t.id(), "call_id": "call_" + t.id(), "name": a.call.name, "arguments": a.call.json(), "status": "completed"})
	}
	return list
}

func (r responses) whole(t turn, a answer) any {
	return r.response(t, "completed", r.items(t, a), object{
		"input_tokens": a.usage.Input, "input_tokens_details": object{"cached_tokens": a.usage.Cached}, "output_tokens": a.usage.Output,
		"output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": a.usage.Input + a.usage.Output,
	})
}

func (responses) response(t turn, status string, items []object, usage any) object {
	return object{
		"id": "resp_" + t.id(), "object": "response", "created_at": 1700000000, "status": status, "model": t.model, "output": items, "usage": usage,
		"error": nil, "incomplete_details": nil, "instructions": nil, "metadata": object{}, "parallel_tool_calls": true, "tools": []any{}, "tool_choice": "auto",
	}
}

func (r responses) stream(e *events, t turn, a answer) error {
	send := func(kind string, fields object) {
		fields["type"], fields["sequence_number"] = kind, e.sequence
		e.sequence++
		e.send(kind, fields)
	}
	send("response.created", object{"response": r.response(t, "in_progress", []object{}, nil)})
	for i, item := range r.items(t, a) {
		id := item["id"]
		begun := object{}
		for name, value := range item {
			begun[name] = value
		}
		begun["status"] = "in_progress"
		switch item["type"] {
		case "message":
			begun["content"] = []any{}
			send("response.output_item.added", object{"output_index": i, "item": begun})
			streamText(send, i, id, a.text)
		case "reasoning":
			begun["summary"] = []any{}
			send("response.output_item.added", object{"output_index": i, "item": begun})
			streamSummary(send, i, id, a.thinking)
		default:
			send("response.output_item.added", object{"output_index": i, "item": begun})
		}
		if a.broken {
			failed := r.response(t, "failed", []object{}, nil)
			failed["error"] = object{"code": "server_error", "message": "Overloaded"}
			send("response.failed", object{"response": failed})
			return e.err
		}
		streamInput(send, i, item)
		send("response.output_item.done", object{"output_index": i, "item": item})
	}
	send("response.completed", object{"response": r.whole(t, a)})
	return e.err
}

func streamText(send func(string, object), i int, id any, text string) {
	at := func(more object) object {
		more["item_id"], more["output_index"], more["content_index"] = id, i, 0
		return more
	}
	send("response.content_part.added", at(object{"part": object{"type": "output_text", "text": "", "annotations": []any{}}}))
	for _, piece := range pieces(text) {
		send("response.output_text.delta", at(object{"delta": piece}))
	}
	send("response.output_text.done", at(object{"text": text}))
	send("response.content_part.done", at(object{"part": object{"type": "output_text", "text": text, "annotations": []any{}}}))
}

func streamSummary(send func(string, object), i int, id any, text string) {
	at := func(more object) object {
		more["item_id"], more["output_index"], more["summary_index"] = id, i, 0
		return more
	}
	send("response.reasoning_summary_part.added", at(object{"part": object{"type": "summary_text", "text": ""}}))
	for _, piece := range pieces(text) {
		send("response.reasoning_summary_text.delta", at(object{"delta": piece}))
	}
	send("response.reasoning_summary_text.done", at(object{"text": text}))
	send("response.reasoning_summary_part.done", at(object{"part": object{"type": "summary_text", "text": text}}))
}

// streamInput sends the input of a call of a tool.
func streamInput(send func(string, object), i int, item object) {
	switch item["type"] {
	case "function_call":
		send("response.function_call_arguments.delta", object{"item_id": item["id"], "output_index": i, "delta": item["arguments"]})
		send("response.function_call_arguments.done", object{"item_id": item["id"], "output_index": i, "arguments": item["arguments"]})
	case "custom_tool_call":
		send("response.custom_tool_call_input.delta", object{"item_id": item["id"], "output_index": i, "delta": item["input"]})
		send("response.custom_tool_call_input.done", object{"item_id": item["id"], "output_index": i, "input": item["input"]})
	}
}

type chatRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Effort   string `json:"reasoning_effort"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Function responsesTool `json:"function"`
	} `json:"tools"`
	Format *struct {
		Type string `json:"type"`
	} `json:"response_format"`
}

func (chat) read(body []byte) (turn, error) {
	var r chatRequest
	if err := json.Unmarshal(body, &r); err != nil {
		return turn{}, err
	}
	if len(r.Messages) == 0 {
		return turn{}, errors.New("messages are required")
	}
	t := turn{model: r.Model, streamed: r.Stream, effort: r.Effort, thinking: true, schema: r.Format != nil && r.Format.Type == "json_schema"}
	for _, o := range r.Tools {
		offered := tool{name: o.Function.Name}
		_ = json.Unmarshal(o.Function.Parameters, &offered.schema) // without parameters
		t.tools = append(t.tools, offered)
	}
	for _, m := range r.Messages {
		switch m.Role {
		case "tool":
			text, _ := contentText(m.Content)
			t.said = append(t.said, said{"result", text})
		case "system", "developer":
			t.system, _ = contentText(m.Content)
		default:
			t.add(m.Role, m.Content)
		}
	}
	return t, nil
}

func (a answer) chatUsage() object {
	return object{
		"prompt_tokens": a.usage.Input, "completion_tokens": a.usage.Output, "total_tokens": a.usage.Input + a.usage.Output,
		"prompt_tokens_details": object{"cached_tokens": a.usage.Cached}, "completion_tokens_details": object{"reasoning_tokens": 0},
	}
}

func (a answer) finishReason() string {
	if a.call != nil {
		return "tool_calls"
	}
	return "stop"
}

func (chat) calls(t turn, a answer) []object {
	if a.call == nil {
		return nil
	}
	return []object{{"index": 0, "id": "call_" + t.id(), "type": "function", "function": object{"name": a.call.name, "arguments": a.call.json()}}}
}

func (c chat) whole(t turn, a answer) any {
	message := object{"role": "assistant", "content": a.text}
	if calls := c.calls(t, a); calls != nil {
		message["tool_calls"] = calls
	}
	return t.at.decorate(object{
		"id": "chatcmpl-" + t.id(), "object": "chat.completion", "created": 1700000000, "model": t.model, "usage": a.chatUsage(),
		"choices": []object{{"index": 0, "message": message, "finish_reason": a.finishReason(), "logprobs": nil}},
	})
}

func (c chat) stream(e *events, t turn, a answer) error {
	send := func(delta object, finish any, usage any) {
		choices := []object{}
		if usage == nil {
			choices = append(choices, object{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": nil})
		}
		chunk := object{"id": "chatcmpl-" + t.id(), "object": "chat.completion.chunk", "created": 1700000000, "model": t.model, "choices": choices, "usage": usage}
		if usage != nil {
			t.at.decorate(chunk)
		}
		e.send("", chunk)
	}
	t.at.begin(e)
	send(object{"role": "assistant", "content": ""}, nil, nil)
	if a.thinking != "" {
		for _, piece := range pieces(a.thinking) {
			send(object{"reasoning_content": piece}, nil, nil)
		}
	}
	for _, piece := range pieces(a.text) {
		send(object{"content": piece}, nil, nil)
	}
	if a.broken {
		e.send("", openaiRefusal("server_error", "Overloaded"))
		return e.err
	}
	if calls := c.calls(t, a); calls != nil {
		send(object{"tool_calls": calls}, nil, nil)
	}
	send(object{}, a.finishReason(), nil)
	send(nil, nil, a.chatUsage())
	if e.err == nil {
		_, e.err = fmt.Fprint(e.w, "data: [DONE]\n\n")
	}
	return e.err
}
