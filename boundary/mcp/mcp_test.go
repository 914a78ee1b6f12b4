package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"boxgate/boundary"
)

// client is a client of a server in this process.
type client struct {
	in  io.WriteCloser
	out *bufio.Reader
	end func() error
}

// serve runs a server against an endpoint.
func serve(t *testing.T, endpoint http.Handler) *client {
	t.Helper()
	web := httptest.NewServer(endpoint)
	t.Cleanup(web.Close)
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	s := &Server{URL: web.URL, Version: "test"}
	ended := make(chan error, 1)
	go func() {
		err := s.Serve(t.Context(), inRead, outWrite)
		_ = outWrite.Close()
		ended <- err
	}()
	c := &client{inWrite, bufio.NewReader(outRead), func() error { _ = inWrite.Close(); return <-ended }}
	t.Cleanup(func() { _ = inWrite.Close() })
	return c
}

func (c *client) send(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// read returns the next message of the server.
func (c *client) read(t *testing.T) string {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// TestProtocol: the handshake, the list of tools, and mistakes of the client.
func TestProtocol(t *testing.T) {
	t.Parallel()
	c := serve(t, http.NotFoundHandler())
	for _, step := range []struct{ send, has string }{
		{`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, `"protocolVersion":"2025-06-18"`},
		{`{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"1999-01-01"}}`, `"protocolVersion":"2025-06-18"`},
		{`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" + `{"jsonrpc":"2.0","id":"a","method":"ping"}`, `"id":"a","result":{}`},
		{`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`, `"name":"request_access"`},
		{`{"jsonrpc":"2.0","id":4,"method":"resources/list"}`, `-32601`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"other"}}`, `-32602`},
		{`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":[]}`, `-32602`},
		{`{"jsonrpc":"1.0","id":7,"method":"ping"}`, `-32600`},
		{`{"jsonrpc":"2.0","id":{},"method":"ping"}`, `-32600`},
		{`[{"jsonrpc":"2.0","id":8,"method":"ping"}]`, `[{"jsonrpc":"2.0","id":8,"result":{}}]`},
		{`[{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":81,"method":"tools/list"},{"jsonrpc":"2.0","id":82,"method":"tools/call","params":{"name":"network_policy"}},[]]`, `"id":82,"result":{"content"`},
		{`[]`, `-32600`},
		{`[` + strings.Repeat(`1,`, mostBatch) + `1]`, `-32600`},
		{`[1]`, `[{"jsonrpc":"2.0","id":null,"error":{"code":-32700`},
		{`[`, `-32700`},
		{`[{"jsonrpc":"2.0","method":"notifications/initialized"}]` + "\n" + `{"jsonrpc":"2.0","id":null,"method":"ping"}`, `-32600`},
		{`{"jsonrpc":"2.0","id":1.5,"method":"ping","params":{"_meta":{"progressToken":1}}}`, `"id":1.5`},
		{`{"jsonrpc":"2.0","id":10,"method":"initialize","params":{"protocolVersion":"2024-11-05"}}`, `"protocolVersion":"2024-11-05"`},
		{`{"jsonrpc":"2.0","id":10,"method":"initialize"}`, `"protocolVersion":"2025-06-18"`},
		{`{"jsonrpc":"2.0","id":11,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":12,"method":"prompts/list"}`, `"id":12,"error":{"code":-32601`},
		{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}` + "\n" + `{"jsonrpc":"2.0","id":13,"method":"logging/setLevel","params":{"level":"debug"}}`, `-32601`},
		{`nonsense`, `-32700`},
		{`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"network_policy"}}`, `"isError":true`},
	} {
		c.send(t, step.send)
		if got := c.read(t); !strings.Contains(got, step.has) {
			t.Errorf("%s: %s", step.send, got)
		}
	}
	if err := c.end(); err != nil {
		t.Error(err)
	}
}

// TestRequestAccess: the tool asks, waits as long as the request is open, and returns the answer; refusals are errors of the tool. A
// cancelled call is not answered.
func TestRequestAccess(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	polls, waiting := 0, make(chan bool, 1)
	endpoint := http.NewServeMux()
	endpoint.HandleFunc("POST /v1/requests", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var asked struct{ Host string }
		switch {
		case json.Unmarshal(body, &asked) != nil || strings.Contains(string(body), "wait_seconds"):
			http.Error(w, string(body), 500)
		case asked.Host == "never.example":
			http.Error(w, `{"detail":"an approval cannot open it"}`, 403)
		default:
			fmt.Fprintf(w, `{"id":%q,"state":"open"}`, asked.Host)
		}
	})
	endpoint.HandleFunc("GET /v1/requests/{id}/wait", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") == "slow.example" {
			waiting <- true
			<-r.Context().Done()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if polls++; polls < 3 {
			fmt.Fprint(w, `{"id":"a.example","state":"open"}`)
			return
		}
		fmt.Fprint(w, `{"id":"a.example","state":"once","answer":"fine"}`)
	})
	c := serve(t, endpoint)
	call := func(id int, host string, more string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"request_access","arguments":{"host":%q,"reason":"x"%s}}}`, id, host, more)
	}
	c.send(t, call(1, "a.example", ""))
	if got := c.read(t); !strings.Contains(got, `\"state\":\"once\"`) || strings.Contains(got, "isError") {
		t.Error(got)
	}
	c.send(t, call(2, "never.example", ""))
	if got := c.read(t); !strings.Contains(got, "isError") || !strings.Contains(got, "cannot open it") {
		t.Error(got)
	}
	c.send(t, call(3, "b.example", `,"wait_seconds":0`))
	if got := c.read(t); !strings.Contains(got, `\"state\":\"open\"`) {
		t.Error(got)
	}
	c.send(t, call(4, "slow.example", ""))
	<-waiting
	c.send(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}`)
	c.send(t, `{"jsonrpc":"2.0","id":5,"method":"ping"}`)
	if got := c.read(t); !strings.Contains(got, `"id":5`) {
		t.Error("a cancelled call was answered:", got)
	}
	if err := c.end(); err != nil {
		t.Error(err)
	}
}

// TestWaitingSurvivesAReplacement: a call goes on while the gateway is replaced: its refusals, connections that are lost and an
// early answer of the process that ends do not reach the agent. The client learns that the call goes on, if it wants to.
func TestWaitingSurvivesAReplacement(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asks, polls := 0, 0
	endpoint := http.NewServeMux()
	endpoint.HandleFunc("POST /v1/requests", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if asks++; asks == 1 {
			http.Error(w, `{}`, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"id":"a","state":"open"}`)
	})
	endpoint.HandleFunc("GET /v1/requests/{id}/wait", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch polls++; polls {
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			http.Error(w, `{}`, http.StatusServiceUnavailable)
		case 3:
			w.Header().Set("Connection", "close")
			fmt.Fprint(w, `{"id":"a","state":"open"}`)
		default:
			fmt.Fprint(w, `{"id":"a","state":"always"}`)
		}
	})
	c := serve(t, endpoint)
	c.send(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"request_access","arguments":{"host":"a.example","reason":"x"},"_meta":{"progressToken":"t"}}}`)
	for i := 1; i <= 2; i++ {
		if got := c.read(t); !strings.Contains(got, fmt.Sprintf(`"progress":%d,"progressToken":"t"`, i)) {
			t.Error(got)
		}
	}
	if got := c.read(t); !strings.Contains(got, `\"state\":\"always\"`) || strings.Contains(got, "isError") {
		t.Error(got)
	}
	if err := c.end(); err != nil {
		t.Error(err)
	}
}

// FuzzServe: whatever a client sends, each line of the output is a response of JSON-RPC, and the server ends with its input.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}` + "\n"))
	f.Add([]byte(`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"network_policy"}},1]` + "\n"))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"request_access","arguments":{"wait_seconds":-1}}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		s := Server{URL: "http://127.0.0.1:0"} // no server has port 0
		_ = s.Serve(t.Context(), bytes.NewReader(in), &out)
		for line := range bytes.Lines(out.Bytes()) {
			if !bytes.HasPrefix(line, []byte("[")) {
				line = slices.Concat([]byte("["), line, []byte("]"))
			}
			var list []struct {
				Version string `json:"jsonrpc"`
				ID      any
				Result  any
				Error   *failure
			}
			err := json.Unmarshal(line, &list)
			for _, r := range list {
				if r.Version != "2.0" || (r.Result == nil) == (r.Error == nil) {
					t.Errorf("%q: %q", in, line)
				}
			}
			if err != nil || len(list) == 0 {
				t.Errorf("%q: %q: %v", in, line, err)
			}
		}
	})
}

// TestTheTextsAgree: the introduction for agents names the endpoint and the requests that this server makes.
func TestTheTextsAgree(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v1/policy", "/v1/denials", "/v1/requests", "/wait"} {
		if !strings.Contains(boundary.Agents, path) {
			t.Errorf("%s is not in the introduction", path)
		}
	}
}
