package models

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// turn is a request of any of the APIs.
type turn struct {
	model    string
	system   string
	streamed bool
	schema   bool
	thinking bool // the client wants to see thinking
	effort   string
	images   int
	tools    []tool
	said     []said
	at       place // of Chat Completions
}

// tool is a tool that the client offers.
type tool struct {
	name   string
	free   bool // its input is a text instead of JSON
	schema struct {
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
}

// said is one message of a conversation.
type said struct {
	role string // user, assistant, or result for the output of a tool
	text string
}

// answer is the next action of the model.
type answer struct {
	thinking, text string
	call           *call
	usage          Usage
	stall, broken  bool

	failure               string // the instruction to fail
	failTimes, failStatus int
}

// call is a call of a tool.
type call struct {
	name  string
	free  bool
	input any // a string if free, else an object
}

// json returns the call's input as JSON.
func (c *call) json() string {
	text, _ := json.Marshal(c.input) // strings, and maps of strings
	return string(text)
}

const instruction = "model: "

// note records what the server received.
func (t turn) note(r *Request) {
	r.Model, r.Schema, r.Images, r.Effort, r.System = t.model, t.schema, t.images, t.effort, t.system
	for _, tool := range t.tools {
		r.Tools = append(r.Tools, tool.name)
	}
	for _, s := range t.said {
		if s.role == "user" {
			r.Prompts = append(r.Prompts, s.text)
		}
	}
}

// follow decides the next action of the model, by the instructions of the latest prompt.
func (t turn) follow() answer {
	at := len(t.said) - 1
	for at > 0 && !(t.said[at].role == "user" && strings.Contains(t.said[at].text, instruction)) {
		at--
	}
	var todo, results []string
	if at >= 0 {
		todo = instructions(t.said[at].text)
		for _, s := range t.said[at:] {
			if s.role == "result" {
				text, _, _ := strings.Cut(s.text, "\n\n<system-reminder>") // words of the client
				results = append(results, text)
			}
		}
	}
	var a answer
	a.usage = Usage{Input: 100 + 10*len(t.said), Output: 1}
	if len(t.said) > 1 {
		a.usage.Cached = 50 + 5*len(t.said)
	} else {
		a.usage.Written = 30
	}
	done := len(results)
	for _, line := range todo {
		if verb, rest, _ := strings.Cut(line, " "); t.step(&a, verb, rest, &done, results) {
			break
		}
	}
	if a.text == "" && a.call == nil {
		a.text = "ok"
	}
	a.usage.Output += len(strings.Fields(a.thinking)) + len(strings.Fields(a.text))
	if a.call != nil {
		a.usage.Output += len(strings.Fields(a.call.json()))
	}
	return a
}

// instructions returns the instructions in a prompt.
func instructions(prompt string) (list []string) {
	for line := range strings.Lines(prompt) {
		if _, rest, ok := strings.Cut(strings.TrimSpace(line), instruction); ok {
			list = append(list, rest)
		}
	}
	return list
}

// step follows an instruction and reports whether the answer ends with it. done counts the calls of tools whose results
// are there.
func (t turn) step(a *answer, verb, rest string, done *int, results []string) bool {
	switch verb {
	case "run", "answer":
		c := t.callFor(verb, rest)
		if c == nil {
			a.say(*done, rest)
			return verb == "answer"
		}
		if *done--; *done < 0 {
			a.call = c
			return true
		}
	case "loop":
		a.call = t.callFor("run", rest)
		return a.call != nil
	case "spend":
		n, _ := strconv.Atoi(rest)
		a.usage.Output += n
	case "think":
		if *done == 0 {
			a.thinking = rest
		}
	case "say":
		a.say(*done, rest)
	case "repeat":
		a.say(*done, "printed: "+strings.Join(results[max(0, len(results)-1):], ""))
	case "recall":
		a.say(*done, "noted: "+t.firstNote())
	case "fail":
		times, status, _ := strings.Cut(rest, " ")
		a.failure = rest
		a.failTimes, _ = strconv.Atoi(times)
		a.failStatus, _ = strconv.Atoi(status)
	case "break":
		a.broken = true
	case "stall":
		a.stall = true
	}
	return false
}

// say adds words to the answer, unless they came before a call of a tool that has been made.
func (a *answer) say(done int, words string) {
	if done == 0 {
		a.text = strings.TrimSpace(a.text + " " + words)
	}
}

func (t turn) firstNote() string {
	for _, s := range t.said {
		for _, line := range instructions(s.text) {
			if note, ok := strings.CutPrefix(line, "note "); ok && s.role == "user" {
				return note
			}
		}
	}
	return "no note"
}

// Names of clients' tools for shell commands, and for answers of a schema.
var (
	shells  = []string{"Bash", "bash", "shell", "shell_command", "exec_command", "exec"}
	answers = []string{"StructuredOutput"}
)

// callFor returns the call that an instruction asks for, or nil if the client offers no such tool.
func (t turn) callFor(verb, text string) *call {
	wanted := shells
	if verb == "answer" {
		wanted = answers
	}
	at := slices.IndexFunc(t.tools, func(o tool) bool { return slices.Contains(wanted, o.name) })
	if at < 0 {
		return nil
	}
	offered := t.tools[at]
	c := &call{name: offered.name, free: offered.free}
	if verb == "answer" {
		var value any
		if json.Unmarshal([]byte(text), &value) != nil {
			return nil
		}
		c.input = value
		return c
	}
	c.input = offered.shell(text)
	return c
}

// shell returns the input of a tool for shell commands.
func (o tool) shell(command string) any {
	if o.free { // code of JavaScript with a function for commands
		return fmt.Sprintf("const r = await tools.exec_command({cmd: %q}); text(r.output);", command)
	}
	input := object{}
	for name, property := range o.schema.Properties {
		switch {
		case name == "command" && property.Type == "array":
			input[name] = []string{"sh", "-c", command}
		case name == "command" || name == "cmd":
			input[name] = command
		case name == "description":
			input[name] = "as the prompt says"
		}
	}
	return input
}
