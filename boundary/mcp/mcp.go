// Package mcp is a server of the Model Context Protocol (https://modelcontextprotocol.io/specification/2025-06-18) in a box. It gives
// agents the endpoint of the gateway as tools: JSON-RPC 2.0 on standard input and output, a message on each line.
//
// It has no keys, no configuration and no state: the gateway identifies the box by its traffic.
package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"boxgate/boundary"
)

// versions are the supported versions of the protocol, the preferred one first.
var versions = []string{"2025-06-18", "2025-03-26", "2024-11-05"}

// Limits of the server.
const (
	mostLine    = 1 << 20         // bytes of a message
	mostCalls   = 16              // tools that run at the same time
	mostAnswer  = 1 << 20         // bytes of an answer of the endpoint
	defaultWait = 5 * time.Minute // for an answer to a request
	longestWait = time.Hour
)

// Error codes of JSON-RPC 2.0.
const (
	codeParse   = -32700
	codeRequest = -32600
	codeMethod  = -32601
	codeParams  = -32602
)

// Server serves one client. The zero value uses the endpoint of the gateway.
type Server struct {
	// URL is the address of the endpoint, without a slash at the end. Empty: that of the gateway.
	URL     string
	Version string // of the program
	client  http.Client
	writing sync.Mutex
	out     io.Writer

	mu    sync.Mutex
	calls map[string]context.CancelFunc // tools that run, by the ID of their request
}

// message is a request, a notification, or a response of the client.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
}

// reply is a response.
type reply struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   *failure        `json:"error,omitempty"`
}

// failure is an error of the protocol.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Serve answers the messages of in until it ends, or ctx does, and waits for the tools that run. A message that is too long ends it.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.out, s.calls = out, map[string]context.CancelFunc{}
	if s.URL == "" {
		s.URL = boundary.URL
	}
	s.client.Transport = &http.Transport{DisableCompression: true} // without a proxy: the gateway is the next hop
	var running sync.WaitGroup
	defer running.Wait()
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), mostLine)
	for lines.Scan() {
		if line := bytes.TrimSpace(lines.Bytes()); len(line) > 0 {
			s.handle(ctx, &running, line)
		}
	}
	cancel()
	return lines.Err()
}

// handle handles one message.
func (s *Server) handle(ctx context.Context, running *sync.WaitGroup, line []byte) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		s.fail(json.RawMessage("null"), codeParse, "the message is not a JSON object")
		return
	}
	switch {
	case m.ID == nil && m.Method == "notifications/cancelled":
		s.cancel(m.Params)
	case m.ID == nil || m.Method == "": // another notification, or a response to a request, of which this server makes none
	case m.Version != "2.0" || !isID(m.ID):
		s.fail(json.RawMessage("null"), codeRequest, "the message is no request of JSON-RPC 2.0")
	case m.Method == "tools/call":
		m.ID = slices.Clone(m.ID)
		m.Params = slices.Clone(m.Params)
		s.start(ctx, running, m)
	default:
		s.answer(m)
	}
}

// isID reports whether an ID is a string or a number.
func isID(id json.RawMessage) bool {
	var v any
	if json.Unmarshal(id, &v) != nil {
		return false
	}
	switch v.(type) {
	case string, float64:
		return true
	}
	return false
}

// answer answers a request that needs no waiting.
func (s *Server) answer(m message) {
	switch m.Method {
	case "initialize":
		var p struct {
			Version string `json:"protocolVersion"`
		}
		_ = json.Unmarshal(m.Params, &p) // without a version, the preferred one
		version := versions[0]
		if slices.Contains(versions, p.Version) {
			version = p.Version
		}
		s.write(reply{ID: m.ID, Result: map[string]any{
			"protocolVersion": version, "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]any{"name": "boxgate", "version": s.Version}, "instructions": boundary.Agents,
		}})
	case "ping":
		s.write(reply{ID: m.ID, Result: map[string]any{}})
	case "tools/list":
		s.write(reply{ID: m.ID, Result: map[string]any{"tools": tools()}})
	default:
		s.fail(m.ID, codeMethod, "this server has no such method")
	}
}

// start runs a tool in a goroutine, so that others run while it waits.
func (s *Server) start(ctx context.Context, running *sync.WaitGroup, m message) {
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		s.fail(m.ID, codeParams, "params must have a name and arguments")
		return
	}
	if !slices.ContainsFunc(tools(), func(t tool) bool { return t.Name == p.Name }) {
		s.fail(m.ID, codeParams, "this server has no such tool")
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	if !s.begin(string(m.ID), cancel) {
		cancel()
		s.write(reply{ID: m.ID, Result: resultOf("", errors.New("too many tools run at the same time"))})
		return
	}
	running.Go(func() {
		defer s.end(string(m.ID))
		text, err := s.run(ctx, p.Name, p.Arguments)
		if ctx.Err() == nil { // a cancelled request is not answered
			s.write(reply{ID: m.ID, Result: resultOf(text, err)})
		}
	})
}

func (s *Server) begin(id string, cancel context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[id] != nil || len(s.calls) >= mostCalls {
		return false
	}
	s.calls[id] = cancel
	return true
}

func (s *Server) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[id]()
	delete(s.calls, id)
}

// cancel ends the tool that a notification names, if it runs.
func (s *Server) cancel(params json.RawMessage) {
	var p struct {
		ID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := s.calls[string(p.ID)]; end != nil {
		end()
	}
}

func (s *Server) fail(id json.RawMessage, code int, text string) {
	s.write(reply{ID: id, Error: &failure{code, text}})
}

// write writes a message in one line.
func (s *Server) write(r reply) {
	r.Version = "2.0"
	line, err := json.Marshal(r)
	if err != nil {
		return
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	_, _ = s.out.Write(append(line, '\n')) // a client that has gone ends the input too
}

// resultOf returns the result of a tool: its text, or the error, which is one of the tool and not of the protocol.
func resultOf(text string, err error) map[string]any {
	result := map[string]any{}
	if err != nil {
		text, result["isError"] = err.Error(), true
	}
	result["content"] = []any{map[string]any{"type": "text", "text": text}}
	return result
}

// request makes a request to the endpoint, and returns its answer. The error contains the answer if it is a refusal.
func (s *Server) request(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	res, err := s.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("the gateway has no endpoint for this box, or does not answer: %w", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, mostAnswer))
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		return nil, fmt.Errorf("%s: %s", res.Status, text)
	}
	return text, nil
}
