package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/files"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Any deviation from the declared types is refused with a pointer, before the Host is called.
func TestStrictBodies(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.create(t, `{}`)
	tests := []struct {
		name, method, path, body string
		status                   int
		pointer                  string
	}{
		{"unknown field", "POST", "/v2/box", `{"nam":"x"}`, 422, "/nam"},
		{"field in other case", "POST", "/v2/box", `{"Name":"x"}`, 422, "/Name"},
		{"camel case", "POST", "/v2/box", `{"networkPolicy":{"mode":"deny-all"}}`, 422, "/networkPolicy"},
		{"repeated field", "POST", "/v2/box", `{"name":"a","name":"b"}`, 422, "/name"},
		{"repeated deep inside", "POST", "/v2/box", `{"network_policy":{"mode":"deny-all","mode":"allow-all"}}`, 422, "/network_policy/mode"},
		{"repeated header host", "POST", "/v2/box", `{"attach_headers":{"a.example":{"A":"1"},"a.example":{"A":"2"}}}`, 422, "/attach_headers/a.example"},
		{"null", "POST", "/v2/box", `{"network_policy":null,"name":null}`, 422, "/name"},
		{"null policy", "POST", "/v2/box", `{"network_policy":null}`, 422, "/network_policy"},
		{"headers of a host twice", "POST", "/v2/box", `{"network_policy":{"allow":{"a.example":[{"transform":[{"headers":{"x":"y"}}]}]}},"attach_headers":{"a.example:443":{"Y":"y"}}}`, 422, "/network_policy"},
		{"number for a string", "POST", "/v2/box", `{"name":1}`, 422, "/name"},
		{"string for a number", "POST", "/v2/box", `{"ephemeral":true,"ttl":"5"}`, 422, "/ttl"},
		{"fraction", "POST", "/v2/box", `{"ephemeral":true,"ttl":1.5}`, 422, "/ttl"},
		{"huge number", "POST", "/v2/box", `{"ephemeral":true,"ttl":99999999999999999999}`, 422, "/ttl"},
		{"string for a boolean", "POST", "/v2/box", `{"keep_alive":"true"}`, 422, "/keep_alive"},
		{"object for an array", "POST", "/v2/box", `{"labels":{}}`, 422, "/labels"},
		{"number in an array", "POST", "/v2/box", `{"labels":["a",2]}`, 422, "/labels/1"},
		{"unknown field in an array", "POST", "/v2/box", `{"mcp_servers":[{"name":"m","source":"npm","package_or_url":"p","x":1}]}`, 422, "/mcp_servers/0/x"},
		{"array for the body", "POST", "/v2/box", `[]`, 422, ""},
		{"pointer is escaped", "POST", "/v2/box", `{"a/b~c":1}`, 422, "/a~1b~0c"},
		{"trailing data", "POST", "/v2/box", `{} {}`, 400, ""},
		{"no value", "POST", "/v2/box", ``, 400, ""},
		{"half a value", "POST", "/v2/box", `{"name":`, 400, ""},
		{"no JSON", "POST", "/v2/box", `name=x`, 400, ""},
		{"trailing comma", "POST", "/v2/box", `{"name":"x",}`, 400, ""},
		{"bad UTF-8", "POST", "/v2/box", "{\"name\":\"\xff\"}", 400, ""},
		{"too deep", "POST", "/v2/box", strings.Repeat(`{"network_policy":`, 40) + `1` + strings.Repeat(`}`, 40), 400, ""},
		{"too large", "POST", "/v2/box", `{"name":"` + strings.Repeat("x", 2<<20) + `"}`, 413, ""},

		{"size", "POST", "/v2/box", `{"size":"huge"}`, 422, "/size"},
		{"label", "POST", "/v2/box", `{"labels":["ok","not ok"]}`, 422, "/labels/1"},
		{"label twice", "POST", "/v2/box", `{"labels":["a","a"]}`, 422, "/labels/1"},
		{"six labels", "POST", "/v2/box", `{"labels":["a","b","c","d","e","f"]}`, 422, "/labels"},
		{"name with a slash", "POST", "/v2/box", `{"name":"a/b"}`, 422, "/name"},
		{"name of the API", "POST", "/v2/box", `{"name":"settings"}`, 422, "/name"},
		{"init_command alone", "POST", "/v2/box", `{"init_command":"npm start"}`, 422, "/init_command"},
		{"a browser", "POST", "/v2/box", `{"browser":true}`, 422, "/browser"},
		{"ttl alone", "POST", "/v2/box", `{"ttl":60}`, 422, "/ttl"},
		{"ttl of zero", "POST", "/v2/box", `{"ephemeral":true,"ttl":0}`, 422, "/ttl"},
		{"ttl too long", "POST", "/v2/box", `{"ephemeral":true,"ttl":259201}`, 422, "/ttl"},
		{"environment name", "POST", "/v2/box", `{"env_vars":{"A=B":"x"}}`, 422, "/env_vars/A=B"},
		{"environment value", "POST", "/v2/box", `{"env_vars":{"A":"x\u0000"}}`, 422, "/env_vars/A"},
		{"runtime", "POST", "/v2/box", `{"runtime":"cobol"}`, 422, "/runtime"},
		{"mode", "POST", "/v2/box", `{"network_policy":{"mode":"open"}}`, 422, "/network_policy/mode"},
		{"domain", "POST", "/v2/box", `{"network_policy":{"mode":"custom","allowed_domains":["ok.example","https://x.example/"]}}`, 422, "/network_policy/allowed_domains/1"},
		{"unknown policy field", "POST", "/v2/box", `{"network_policy":{"mode":"deny-all","allow":[]}}`, 422, "/network_policy/allow"},
		{"header pattern", "POST", "/v2/box", `{"attach_headers":{"*":{"A":"sk-x"}}}`, 422, "/attach_headers/*"},
		{"header name", "POST", "/v2/box", `{"attach_headers":{"a.example":{"Content-Length":"sk-x"}}}`, 422, "/attach_headers/a.example/Content-Length"},
		{"custom runner", "POST", "/v2/box", `{"agent":"custom","custom_runner":{"command":""}}`, 422, "/custom_runner/command"},
		{"runner protocol", "POST", "/v2/box", `{"custom_runner":{"command":"x","protocol":"v9"}}`, 422, "/custom_runner/protocol"},
		{"MCP source", "POST", "/v2/box", `{"mcp_servers":[{"name":"m","source":"ftp","package_or_url":"p"}]}`, 422, "/mcp_servers/0/source"},

		{"no command", "POST", "/v2/box/box1/exec", `{}`, 422, "/command"},
		{"command as a string", "POST", "/v2/box/box1/exec", `{"command":"ls"}`, 422, "/command"},
		{"NUL", "POST", "/v2/box/box1/exec-stream", `{"command":["a","b\u0000"]}`, 422, "/command/1"},
		{"timeout", "POST", "/v2/box/box1/exec", `{"command":["ls"],"timeout":0}`, 422, "/timeout"},
		{"user by name", "POST", "/v2/box/box1/exec", `{"command":["ls"],"user":"www-data"}`, 422, "/user"},
		{"user beyond the box", "POST", "/v2/box/box1/exec-stream", `{"command":["ls"],"user":"65536"}`, 422, "/user"},
		{"group beyond the box", "POST", "/v2/box/box1/exec", `{"command":["ls"],"user":"0:65536"}`, 422, "/user"},
		{"port", "POST", "/v2/box/box1/preview", `{"port":65536}`, 422, "/port"},
		{"policy mode", "PUT", "/v2/box/box1/config/network-policy", `{"mode":"custom"}`, 422, ""},
		{"policy version", "PUT", "/v2/box/box1/config/network-policy", `{"mode":"deny-all","version":null}`, 422, "/version"},
		{"headers", "PUT", "/v2/box/box1/config/attach-headers", `{"a.example":["A"]}`, 422, "/a.example/0"},
		{"headers null", "PUT", "/v2/box/box1/config/attach-headers", `{"attach_headers":null}`, 422, "/attach_headers"},
		{"global headers", "PUT", "/v2/box/settings/attach-headers", `{"attach_headers":{"https://x":{"A":"sk-x"}}}`, 422, "/attach_headers/https:~1~1x"},
		{"nothing to explain", "POST", "/v2/box/box1/egress/explain", `{}`, 422, ""},
		{"explain a URL", "POST", "/v2/box/box1/egress/explain", `{"host":"http://x"}`, 422, "/host"},
		{"explain an address", "POST", "/v2/box/box1/egress/explain", `{"ip":"1.2.3"}`, 422, "/ip"},
		{"explain a query", "POST", "/v2/box/box1/egress/explain", `{"host":"a.example","query":"?a"}`, 422, "/query"},
		{"explain a protocol", "POST", "/v2/box/box1/egress/explain", `{"ip":"192.0.2.1","protocol":"sctp"}`, 422, "/protocol"},
		{"nothing to delete", "DELETE", "/v2/box", `{"ids":[]}`, 422, "/ids"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := f.Call(t, tt.method, tt.path, tt.body, func(r *http.Request) { r.Header.Set("Content-Type", "application/json") })
			if got.StatusCode != tt.status {
				t.Fatalf("%s: %s", got.Status, got.Text)
			}
			body := got.JSON(t)
			if pointer, _ := body["pointer"].(string); pointer != tt.pointer {
				t.Errorf("pointer %q, want %q: %s", pointer, tt.pointer, got.Text)
			}
			if text, _ := body["error"].(string); text == "" || strings.Contains(got.Text, "sk-x") {
				t.Errorf("answer: %s", got.Text)
			}
		})
	}
	if len(f.host.Created) != 1 || len(f.host.Execs) != 0 || f.host.ByID["box1"].Policy.Version != 1 {
		t.Error("a refused request had an effect")
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	f := serve(t)
	got := f.Call(t, "POST", "/v2/box", `{"size":"xl","labels":["a b"],"network_policy":{"mode":"custom","allowed_cidrs":["10.0.0.1/8"]},"attach_headers":{"*":{"A":"b"}}}`)
	var body problem.Body
	if err := json.Unmarshal([]byte(got.Text), &body); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"/size": true, "/labels/0": true, "/network_policy/allowed_cidrs/0": true, "/attach_headers/*": true}
	for _, p := range body.Problems {
		delete(want, p.Pointer)
	}
	if len(want) != 0 || !strings.Contains(got.Text, "10.0.0.0/8") {
		t.Errorf("not told: %v: %s", want, got.Text)
	}
}

// An unknown field that resembles a known one is answered with the correction.
func TestCorrection(t *testing.T) {
	t.Parallel()
	f := serve(t)
	if got := f.Call(t, "POST", "/v2/box", `{"keepAlive":true}`); !strings.Contains(got.Text, `did you mean \"keep_alive\"`) {
		t.Error(got.Text)
	}
}

// fuzzed returns the routes with a body.
func fuzzed(routes []rest.Route) []rest.Route {
	var list []rest.Route
	for _, rt := range routes {
		if rt.Request != nil {
			list = append(list, rt)
		}
	}
	return list
}

// FuzzBodies sends random bodies to every call with a body. The response must be JSON and not a 500, and must arrive.
func FuzzBodies(f *testing.F) {
	for i, body := range []string{
		`{"name":"a","size":"small","network_policy":{"mode":"custom","allowed_domains":["*.example.com"]},"attach_headers":{"api.example.com":{"A":"b"}}}`,
		`{"ids":["box1"]}`, `{"command":["true"]}`, `{"command":["true"],"folder":"../x","timeout":1}`,
		`{"mode":"deny-all","version":1}`, `{"attach_headers":{"a.example":{"A":"b"}}}`, `{"a.example":{"A":"b"}}`,
		`{"a.example":{"headers":{"A":{"secret":"known","prefix":"x "}},"placeholders":{"K":"v"},"scrub":true}}`, `{"attach_headers":1}`,
		`{"port":80,"bearer_token":true}`, `{"host":"a.example","ip":"192.0.2.1","port":1,"protocol":"udp"}`,
		`null`, `"allow-all"`, `[[[`, `{"a":{"a":1,"a":2}}`, "{\"\\ud800\":1}", `1e999`,
	} {
		f.Add(uint8(i), []byte(body))
	}
	s := serve(f)
	calls := fuzzed(s.api.routes)
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		rt := calls[int(which)%len(calls)]
		if strings.Contains(rt.Path, "/exec") {
			return // the fuzzer would choose the command
		}
		s.host.Mu.Lock()
		s.host.ByID = map[policy.BoxID]*apitest.Box{"box1": {Box: api.Box{ID: "box1", Policy: api.PolicyState{Version: 1}}, Rules: api.HeaderState{Version: 1}, URLs: map[uint16]api.URL{}}}
		s.host.Created = nil
		s.host.Mu.Unlock()
		got := s.Call(t, rt.Method, strings.Replace(rt.Path, "{id}", "box1", 1), string(body))
		if got.StatusCode >= 500 || !json.Valid([]byte(got.Text)) {
			t.Errorf("%s %s with %q: %s %s", rt.Method, rt.Path, body, got.Status, got.Text)
		}
	})
}

// TestEveryRouteRefusesQueriesItDoesNotKnow compares the query parameters that each route accepts with its description.
func TestEveryRouteRefusesQueriesItDoesNotKnow(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, "{}")
	var doc struct {
		Paths map[string]map[string]struct{ Parameters []struct{ Name, In string } }
	}
	if err := json.Unmarshal([]byte(f.Call(t, "GET", "/openapi.json", "").Text), &doc); err != nil {
		t.Fatal(err)
	}
	for _, rt := range f.api.routes {
		var described []string
		for _, p := range doc.Paths[rt.Path][strings.ToLower(rt.Method)].Parameters {
			if p.In == "query" {
				described = append(described, p.Name)
			}
		}
		var takes []string
		if rt.Query != nil {
			for _, f := range strict.FieldsOf(rt.Query) {
				takes = append(takes, f.Name)
			}
		}
		if !slices.Equal(described, takes) {
			t.Errorf("%s %s takes %v and describes %v", rt.Method, rt.Path, takes, described)
		}
		path := strings.NewReplacer("{id}", id, "{port}", "80", "{run}", "x").Replace(rt.Path)
		queries := map[string]string{"unknown=1": "unknown", "%zz": "cannot be parsed", "a=1;b=2": "cannot be parsed"}
		for _, name := range takes {
			queries[name+"=1&"+name+"=1"] = "twice"
		}
		for query, want := range queries {
			if got := f.Call(t, rt.Method, path+"?"+query, ""); got.StatusCode != 422 || !strings.Contains(got.Text, want) {
				t.Errorf("%s %s?%s: %s %s", rt.Method, path, query, got.Status, got.Text)
			}
		}
	}
	if got := f.Call(t, "GET", "/v2/box/"+id, ""); got.StatusCode != 200 {
		t.Errorf("the box: %s %s", got.Status, got.Text)
	}
}

// TestArgumentsThatTheKernelWouldRefuse: arguments that execve would reject are refused as problems of the request.
func TestArgumentsThatTheKernelWouldRefuse(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, "{}")
	exec := "/v2/box/" + id + "/exec"
	long := func(n int) string { return strings.Repeat("x", n) }
	env := func(vars map[string]string) string {
		data, err := json.Marshal(map[string]any{"env_vars": vars})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	many := func(n, size int) map[string]string {
		vars := map[string]string{}
		for i := range n {
			vars[fmt.Sprintf("V%05d", i)] = long(size)
		}
		return vars
	}
	command := func(args ...string) string {
		data, err := json.Marshal(map[string]any{"command": args})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	placeholders := map[string]any{}
	for host := range 9 {
		vars := map[string]string{}
		for i := range 60 {
			vars[fmt.Sprintf("P%d_%d", host, i)] = "v"
		}
		placeholders[fmt.Sprintf("h%d.test", host)] = map[string]any{"placeholders": vars}
	}
	rules, err := json.Marshal(placeholders)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what, path, body, pointer string
		status                    int
	}{
		{"the largest variable", "/v2/box", env(map[string]string{"A": long(128<<10 - 3)}), "", 201},
		{"one byte more", "/v2/box", env(map[string]string{"A": long(128<<10 - 2)}), "/env_vars/A", 422},
		{"as many as fit", "/v2/box", env(many(7, 120<<10)), "", 201},
		{"many small ones", "/v2/box", env(many(1<<20/16+1, 0)), "/env_vars", 422},
		{"the largest argument", exec, command("true", long(128<<10-1)), "", 200},
		{"an argument too large", exec, command("true", long(128<<10)), "/command/1", 422},
		{"arguments too large together", exec, command(slices.Repeat([]string{long(127 << 10)}, 5)...), "/command", 422},
		{"too many placeholders", "/v2/box", `{"attach_headers":` + string(rules) + `}`, "/attach_headers", 422},
	} {
		got := f.Call(t, "POST", tt.path, tt.body)
		if pointer, _ := got.JSON(t)["pointer"].(string); got.StatusCode != tt.status || pointer != tt.pointer {
			t.Errorf("%s: %s %.200s, want %d at %q", tt.what, got.Status, got.Text, tt.status, tt.pointer)
		}
	}
}

// loudHost is a host whose boxes print a lot and have large files. A call only completes once all calls of the test have
// progressed as far as they can.
type loudHost struct {
	*apitest.Host
	size  int
	met   sync.WaitGroup
	begin chan struct{} // closed: calls no longer wait for each other
}

func (h *loudHost) Exec(ctx context.Context, _ policy.BoxID, _ api.ExecRequest, stdout, _ io.Writer) (api.ExecResult, error) {
	piece := []byte(strings.Repeat("x", 8<<10))
	for range h.size / len(piece) {
		if _, err := stdout.Write(piece); err != nil {
			return api.ExecResult{}, err
		}
	}
	h.arrive()
	return api.ExecResult{}, ctx.Err()
}

// arrive waits for all other calls.
func (h *loudHost) arrive() {
	h.met.Done()
	<-h.begin
}

func (h *loudHost) OpenFiles(context.Context, policy.BoxID, string) (files.Files, error) {
	return loudFiles{host: h}, nil
}

type loudFiles struct {
	files.Files
	host *loudHost
}

func (loudFiles) Close() {}

func (f loudFiles) Read(string, int64, int64) (files.Info, io.Reader, error) {
	return files.Info{Type: "file", Size: int64(f.host.size)}, io.MultiReader(strings.NewReader(strings.Repeat("x", f.host.size)), &last{host: f.host}), nil
}

// last is the end of a file, which waits for the other calls.
type last struct {
	host *loudHost
	once sync.Once
}

func (l *last) Read([]byte) (int, error) {
	l.once.Do(l.host.arrive)
	return 0, io.EOF
}

// Many concurrent calls, of every kind with a buffered response, stay within the budget together and release all of it.
func TestManyAnswersStayWithinTheirBudget(t *testing.T) {
	t.Parallel()
	const size, budget = 256 << 10, 4 << 20
	loud := &loudHost{size: size, begin: make(chan struct{})}
	f := serve(t, func(c *Config) {
		loud.Host = c.Boxes.(*apitest.Host)
		c.Services, c.MaxOutput, c.MaxBuffered = services(loud), size, budget
	})
	id := f.create(t, `{}`)
	call := func(method, path, body string) (kept int) {
		got := f.Call(t, method, "/v2/box/"+id+"/"+path, body)
		switch got.StatusCode {
		case http.StatusTooManyRequests:
			loud.met.Done()
		case http.StatusOK:
			return strings.Count(got.Text, "x")
		default:
			t.Errorf("%s: %s %.200s", path, got.Status, got.Text)
		}
		return 0
	}
	calls := []func() int{
		func() int { return call("POST", "exec", `{"command":["x"]}`) },
		func() int { return call("POST", "code", `{"code":"x","language":"js"}`) },
		func() int { return call("POST", "git/exec", `{"args":["x"]}`) },
		func() int { return call("GET", "files/read?path=x", "") },
	}
	var all sync.WaitGroup
	var kept atomic.Int64
	loud.met.Add(20 * len(calls))
	for i := range 20 * len(calls) {
		all.Go(func() { kept.Add(int64(calls[i%len(calls)]())) })
	}
	loud.met.Wait()
	close(loud.begin)
	all.Wait()
	if n := kept.Load(); n > budget/2+1000 || n < budget/4 {
		t.Errorf("%d bytes were kept for one box, of %d for all boxes", n, budget)
	}
	for _, again := range calls {
		for loud.met.Add(1); again() < size; loud.met.Add(1) { // until the memory of the other calls is released
		}
	}
}
