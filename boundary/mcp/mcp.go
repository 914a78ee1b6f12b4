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
	"net"
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
	mostLine    = 1 << 20          // bytes of a message
	mostCalls   = 16               // tools that run at the same time
	mostBatch   = 64               // messages on a line
	mostAnswer  = 8 << 20          // bytes of an answer of the endpoint
	defaultWait = 50 * time.Second // for an answer to a request: clients give up after a minute unless configured otherwise
	longestWait = time.Hour
	pollTime    = 20 * time.Second // between two reports of progress
	replacing   = 2 * time.Minute  // for the gateway to be replaced
	connectTime = 5 * time.Second  // for a connection: packets to a gateway that starts may be lost
	requestTime = time.Minute      // for an answer of the endpoint
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
	dialer := net.Dialer{Timeout: connectTime}
	s.client.Transport = &http.Transport{DisableCompression: true, DialContext: dialer.DialContext} // without a proxy: the gateway is the next hop
	var running sync.WaitGroup
	defer running.Wait()
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), mostLine)
	for lines.Scan() {
		switch line := bytes.TrimSpace(lines.Bytes()); {
		case len(line) == 0:
		case line[0] == '[':
			s.handleBatch(ctx, &running, line)
		default:
			s.handle(ctx, &exchange{running: &running, answer: s.write}, line)
		}
	}
	cancel()
	return lines.Err()
}

// exchange is what the messages of one line have in common.
type exchange struct {
	running *sync.WaitGroup // the tools that run
	answer  func(reply)
}

// handleBatch handles a line of several messages, which is answered by one line with all responses, if there are any (JSON-RPC 2.0, 6).
func (s *Server) handleBatch(ctx context.Context, running *sync.WaitGroup, line []byte) {
	var messages []json.RawMessage
	if err := json.Unmarshal(line, &messages); err != nil {
		s.write(failed(null, codeParse, "the line is not a list of JSON objects"))
		return
	}
	if len(messages) == 0 || len(messages) > mostBatch {
		s.write(failed(null, codeRequest, fmt.Sprintf("a line has between 1 and %d messages", mostBatch)))
		return
	}
	var mu sync.Mutex
	var own sync.WaitGroup
	var replies []reply
	x := &exchange{running: &own, answer: func(r reply) {
		mu.Lock()
		defer mu.Unlock()
		replies = append(replies, r)
	}}
	for _, m := range messages {
		s.handle(ctx, x, m)
	}
	running.Go(func() {
		own.Wait()
		if len(replies) > 0 {
			s.writeList(replies)
		}
	})
}

// null is the ID of responses to messages whose ID is unknown.
var null = json.RawMessage("null")

// handle handles one message.
func (s *Server) handle(ctx context.Context, x *exchange, line []byte) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		x.answer(failed(null, codeParse, "the message is not a JSON object"))
		return
	}
	switch {
	case m.ID == nil && m.Method == "notifications/cancelled":
		s.cancel(m.Params)
	case m.ID == nil || m.Method == "": // another notification, or a response: this server sends no requests
	case m.Version != "2.0" || !isID(m.ID):
		x.answer(failed(null, codeRequest, "the message is no request of JSON-RPC 2.0"))
	case m.Method == "tools/call":
		m.ID = slices.Clone(m.ID)
		m.Params = slices.Clone(m.Params)
		s.start(ctx, x, m)
	default:
		m.ID = slices.Clone(m.ID)
		x.answer(s.answer(m))
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

// answer returns the response to a request that needs no waiting.
func (s *Server) answer(m message) reply {
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
		return reply{ID: m.ID, Result: map[string]any{
			"protocolVersion": version, "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]any{"name": "boxgate", "version": s.Version}, "instructions": boundary.Agents,
		}}
	case "ping":
		return reply{ID: m.ID, Result: map[string]any{}}
	case "tools/list":
		return reply{ID: m.ID, Result: map[string]any{"tools": tools()}}
	}
	return failed(m.ID, codeMethod, "this server has no such method")
}

// start runs a tool in a goroutine, so that others run while it waits.
func (s *Server) start(ctx context.Context, x *exchange, m message) {
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Meta      struct {
			Progress json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		x.answer(failed(m.ID, codeParams, "params must have a name and arguments"))
		return
	}
	if !slices.ContainsFunc(tools(), func(t tool) bool { return t.Name == p.Name }) {
		x.answer(failed(m.ID, codeParams, "this server has no such tool"))
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	if !s.begin(string(m.ID), cancel) {
		cancel()
		x.answer(reply{ID: m.ID, Result: resultOf("", errors.New("too many tools run at the same time, or a request with the same ID does"))})
		return
	}
	c := &call{server: s}
	if isID(p.Meta.Progress) {
		c.token = p.Meta.Progress
	}
	x.running.Go(func() {
		defer s.end(string(m.ID))
		text, err := c.run(ctx, p.Name, p.Arguments)
		if ctx.Err() == nil { // a cancelled request is not answered
			x.answer(reply{ID: m.ID, Result: resultOf(text, err)})
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

// failed returns a response with an error of the protocol.
func failed(id json.RawMessage, code int, text string) reply {
	return reply{ID: id, Error: &failure{code, text}}
}

// write writes a response.
func (s *Server) write(r reply) {
	r.Version = "2.0"
	s.writeLine(r)
}

// writeList writes the responses to the messages of one line.
func (s *Server) writeList(list []reply) {
	for i := range list {
		list[i].Version = "2.0"
	}
	s.writeLine(list)
}

// writeLine writes a message in one line.
func (s *Server) writeLine(v any) {
	line, err := json.Marshal(v)
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
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
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
		return nil, &refusal{res.StatusCode, fmt.Sprintf("%s: %s", res.Status, text)}
	}
	return text, nil
}

// refusal is an answer of the endpoint with an error.
type refusal struct {
	status int
	text   string
}

// Error returns the answer.
func (r *refusal) Error() string { return r.text }

// requestUntil makes a request until it is answered, as long as the gateway is being replaced; with lost also if the gateway does not answer.
func (s *Server) requestUntil(ctx context.Context, until time.Time, lost bool, method, path string, body []byte) ([]byte, error) {
	for {
		text, err := s.request(ctx, method, path, body)
		var refused *refusal
		again := lost && err != nil
		if errors.As(err, &refused) {
			again = refused.status == http.StatusServiceUnavailable || lost && refused.status >= 500 || lost && refused.status == http.StatusTooManyRequests
		}
		if !again || ctx.Err() != nil || time.Now().After(until) {
			return text, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
