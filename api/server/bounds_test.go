package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/rest"
	"boxgate/policy"
)

// notStored are the calls whose bodies are not stored, and why.
var notStored = map[string]string{
	"runCommand": "runs", "streamCommand": "runs", "startCommand": "runs", "runCode": "runs", "streamCode": "runs", "runAgent": "runs", "streamAgent": "runs",
	"startProcess": "runs", "writeProcess": "input, bounded by api/process TestInput", "signalProcess": "signals", "resizeProcess": "sizes",
	"gitClone": "runs", "gitCommit": "runs", "gitPush": "runs", "gitCheckout": "runs", "gitExec": "runs", "gitCreatePullRequest": "runs",
	"writeFile": "a file of the box, bounded by its disk", "uploadFiles": "a file of the box", "makeDirectory": "a file of the box",
	"renameFile": "a file of the box", "removeFile": "a file of the box", "setFileAttributes": "a file of the box",
	"diagnoseHost": "asks", "explainDecision": "asks", "replayPolicy": "asks", "signUrl": "makes a link", "deleteBoxes": "deletes", "deleteSnapshots": "deletes",
	"rotateStoreKey": "becomes the key of the store", "rotateApiKey": "has a time only", "replaceApiKey": "has a time only",
}

// byService are calls whose text is bounded by their service, where the tests of the service are.
var byService = map[string]string{"answerApproval": "host/approvals TestAnswers", "createApiKey /box": "the name of a box that exists", "sharePorts /except": "api/urls TestPorts", "sharePorts /https_ports": "api/urls TestPorts"}

// besides are the members that a body needs besides its example, so that a member is judged by its size alone. nil removes one.
var besides = map[string]map[string]any{
	"createBox /init_command":              {"keep_alive": true},
	"createBox /custom_runner":             {"agent": "custom"},
	"createBox /agent_api_key":             {"agent": "custom"},
	"createBoxFromSnapshot /init_command":  {"keep_alive": true},
	"createBoxFromSnapshot /custom_runner": {"agent": "custom"},
	"createBoxFromSnapshot /agent_api_key": {"agent": "custom"},
	"addSchedule /prompt":                  {"type": "prompt", "command": nil},
	"addSchedule /agent_options":           {"type": "prompt", "command": nil, "prompt": "p"},
	"addSchedule /webhook_headers":         {"webhook_url": "https://example.com"},
	"changeSchedule /webhook_headers":      {"webhook_url": "https://example.com"},
	"setModel /agent_api_key":              {"agent": "claude-code"},
	"createApiKey /box":                    {"role": "one-box"},
}

// Sizes above every bound of stored text.
const (
	longText  = 600_000
	manyItems = 6_000
	fatItems  = 64
	fatText   = 20_000
)

// probe is a value for a member that a gateway must not store.
type probe struct {
	at    string // JSON pointer of the member that is refused
	what  string
	value any // of the member of the body that at begins with
}

// probesOf returns too large values for a member of a type, in all of its strings, lists and maps. wrap puts a value of the member into
// the value of the body's member.
func probesOf(at string, t reflect.Type, wrap func(any) any) (list []probe) {
	add := func(what string, value any) { list = append(list, probe{at, what, wrap(value)}) }
	if t.Implements(reflect.TypeFor[interface{ Forms() []reflect.Type }]()) {
		return nil // documents, such as policies, which their parsers bound
	}
	switch t.Kind() {
	case reflect.Pointer:
		return probesOf(at, t.Elem(), wrap)
	case reflect.String:
		add("a long text", strings.Repeat("a", longText))
	case reflect.Slice:
		short, fat := []any{}, []any{}
		for i := range manyItems {
			short = append(short, itemOf(t.Elem(), fmt.Sprintf("i%d", i)))
		}
		for i := range fatItems {
			fat = append(fat, itemOf(t.Elem(), fmt.Sprintf("i%d", i)+strings.Repeat("a", fatText)))
		}
		add("a long list", short)
		add("a list of large items", fat)
		return append(list, probesOf(at+"/0", t.Elem(), func(v any) any { return wrap([]any{v}) })...)
	case reflect.Map:
		var small, large any = "v", strings.Repeat("a", fatText)
		if t.Elem().Kind() != reflect.String {
			small, large = 1, 1
		}
		short, fat := map[string]any{}, map[string]any{}
		for i := range manyItems {
			short[fmt.Sprintf("n%d", i)] = small
		}
		for i := range fatItems {
			fat[fmt.Sprintf("n%d", i)] = large
		}
		add("a large map", short)
		add("a map of large values", fat)
		add("a long name", map[string]any{strings.Repeat("n", longText): small})
		return append(list, probesOf(at+"/n", t.Elem(), func(v any) any { return wrap(map[string]any{"n": v}) })...)
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous && name == "" || name == "-" || !f.IsExported() {
				continue
			}
			list = append(list, probesOf(at+"/"+name, f.Type, func(v any) any {
				item := map[string]any{} // the body begins with its example
				if at != "" {
					item, _ = itemOf(t, "a").(map[string]any)
				}
				item[name] = v
				return wrap(item)
			})...)
		}
	}
	return list
}

// itemOf returns a small value of a type that has a text.
func itemOf(t reflect.Type, text string) any {
	if t.Kind() != reflect.Struct {
		return text
	}
	item := map[string]any{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		enum, _, _ := strings.Cut(f.Tag.Get("enum"), " ")
		switch {
		case options == "omitempty" || f.Type.Kind() != reflect.String:
		case name == "source": // of an MCP server
			item[name], text = "url", "https://mcp.example.com/"+text
		case enum != "":
			item[name] = enum
		default:
			item[name] = text
		}
	}
	return item
}

// TestStoredTextIsBounded sends to every call that stores its body too much in each of its texts, lists and maps, found by reflection. The
// refusal is about that member and has its bound.
func TestStoredTextIsBounded(t *testing.T) {
	t.Parallel()
	f := serve(t, func(c *Config) { c.MaxBody = 8 << 20 })
	seen := map[string]bool{}
	for _, rt := range f.api.routes {
		if rt.Request == nil {
			continue
		}
		if seen[rt.ID] = true; notStored[rt.ID]+byService[rt.ID] != "" {
			continue
		}
		base := map[string]any{}
		if rt.Example != "" {
			if err := json.Unmarshal([]byte(rt.Example), &base); err != nil {
				t.Fatal(rt.ID, err)
			}
		}
		for _, p := range probesOf("", rt.Request, func(v any) any { return v }) {
			if byService[rt.ID+" "+p.at] != "" {
				continue
			}
			members, _ := p.value.(map[string]any)
			body := maps.Clone(base)
			for at, more := range besides {
				if strings.HasPrefix(rt.ID+" "+p.at, at) {
					maps.Copy(body, more)
				}
			}
			maps.Copy(body, members)
			maps.DeleteFunc(body, func(_ string, v any) bool { return v == nil })
			f.requireBound(t, rt, p, body)
		}
	}
	for id := range notStored {
		if !seen[id] {
			t.Errorf("there is no call %s with a body", id)
		}
	}
}

// requireBound sends a body, and requires a refusal that names the member and its bound.
func (f *fixture) requireBound(t *testing.T, rt rest.Route, p probe, body any) {
	t.Helper()
	f.host.Mu.Lock()
	f.host.ByID = map[policy.BoxID]*apitest.Box{"box1": {Box: api.Box{ID: "box1", Hosted: api.Hosted{Agent: api.AgentCustom}, Policy: api.PolicyState{Version: 1}}, Rules: api.HeaderState{Version: 1}, URLs: map[uint16]api.URL{}}}
	f.host.Created = nil
	f.host.Mu.Unlock()
	path := pathTo(rt, "box1")
	if strings.Contains(rt.Path, "{schedule}") {
		made := f.Call(t, "POST", "/v2/box/box1/schedules", fmt.Sprintf(`{"type":%q,"cron":"@daily","command":["true"]}`, "exec"))
		path = strings.Replace(rt.Path, "{schedule}", fmt.Sprint(made.JSON(t)["id"]), 1)
		path = strings.Replace(path, "{id}", "box1", 1)
	}
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	got := f.Call(t, rt.Method, path, string(data))
	var refusal struct {
		Problems []struct{ Pointer, Message string } `json:"problems"`
	}
	_ = json.Unmarshal([]byte(got.Text), &refusal)
	about := slices.ContainsFunc(refusal.Problems, func(one struct{ Pointer, Message string }) bool {
		return (strings.HasPrefix(one.Pointer, strings.TrimSuffix(p.at, "/n")) || strings.HasPrefix(p.at, one.Pointer+"/")) && (strings.ContainsAny(one.Message, "0123456789") || closed(one.Message))
	})
	if got.StatusCode != http.StatusUnprocessableEntity || !about {
		t.Errorf("%s %s with %s in %s: %s %.200s", rt.Method, rt.Path, p.what, p.at, got.Status, got.Text)
	}
}

// closed reports whether a message is the refusal of a value outside a small set or form.
func closed(message string) bool {
	return strings.HasPrefix(message, "must be ") || strings.Contains(message, "is not ") || strings.Contains(message, "too long") || strings.Contains(message, "is no ")
}
