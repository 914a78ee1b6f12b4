package models

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// maxBody bounds a request.
const maxBody = 32 << 20

// Server is a server of models. Its fields are set before the first request. Safe for concurrent use.
type Server struct {
	// Key is the only accepted key.
	Key string

	mu       sync.Mutex
	requests []Request
	failed   map[string]int // instruction → requests it has refused
}

// Request is a request for an answer, as the server received it.
type Request struct {
	API     string // messages, responses or chat
	Path    string
	Model   string
	Key     string // as shown; empty if none
	Agent   string // the field User-Agent
	Tools   []string
	Status  int // of the answer
	Usage   Usage
	Schema  bool // the request asks for an answer of a JSON schema
	Images  int
	Effort  string // of reasoning, if the request names one
	System  string
	Prompts []string // of the user, in order
}

// Usage is the cost of an answer, in tokens. Input includes Cached and Written.
type Usage struct{ Input, Cached, Written, Output int }

// Requests returns the requests so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Forget drops the recorded requests.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests, s.failed = nil, nil
}

// dialect is one of the APIs.
type dialect interface {
	// read parses a request.
	read(body []byte) (turn, error)
	// stream writes an answer as it is made, and whole at once. Both return errors of the connection only.
	stream(e *events, t turn, a answer) error
	whole(t turn, a answer) any
	// refusal returns the body of an error.
	refusal(kind, message string) any
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, api := apiOf(r.URL.Path)
	switch {
	case api == nil && strings.HasSuffix(r.URL.Path, "/models"):
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{}, "models": []any{}, "has_more": false})
	case api == nil || r.Method != http.MethodPost:
		writeJSON(w, http.StatusNotFound, messages{}.refusal("not_found_error", "there is no such path"))
	default:
		s.answer(w, r, name, api)
	}
}

// apiOf returns the API of a path, whatever its prefix.
func apiOf(path string) (string, dialect) {
	switch {
	case strings.HasSuffix(path, "/messages"):
		return "messages", messages{}
	case strings.HasSuffix(path, "/invoke"), strings.HasSuffix(path, streamedInvoke):
		return "bedrock", bedrock{}
	case strings.HasSuffix(path, "/responses"):
		return "responses", responses{}
	case strings.HasSuffix(path, "/chat/completions"):
		return "chat", chat{}
	}
	return "", nil
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, name string, api dialect) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return
	}
	record := Request{API: name, Path: r.URL.Path, Key: shownKey(r.Header), Agent: r.UserAgent()}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests = append(s.requests, record)
	}()
	refuse := func(status int, kind, message string) {
		record.Status = status
		writeJSON(w, status, api.refusal(kind, message))
	}
	if subtle.ConstantTimeCompare([]byte(record.Key), []byte(s.Key)) != 1 {
		refuse(http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
		return
	}
	t, err := api.read(body)
	if err != nil {
		refuse(http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	at, model := placeOf(r.URL.Path)
	if t.at = at; model != "" {
		t.model = model
	}
	t.streamed = t.streamed || strings.HasSuffix(r.URL.Path, streamedInvoke)
	if t.model == "" {
		refuse(http.StatusBadRequest, "invalid_request_error", "model is required")
		return
	}
	t.note(&record)
	a := t.follow()
	if status := s.failure(t, a); status != 0 {
		w.Header().Set("Retry-After", "1")
		refuse(status, kinds[status], fmt.Sprintf("refused with %d, as the prompt wants", status))
		return
	}
	record.Status, record.Usage = http.StatusOK, a.usage
	if a.stall {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	if !t.streamed {
		writeJSON(w, http.StatusOK, api.whole(t, a))
		return
	}
	_, framed := api.(bedrock)
	kind := "text/event-stream"
	if framed {
		kind = "application/vnd.amazon.eventstream"
	}
	w.Header().Set("Content-Type", kind)
	_ = api.stream(&events{w: w, rc: http.NewResponseController(w), framed: framed}, t, a) // the client has left
}

// kinds are the vendors' names of refusals, by status.
var kinds = map[int]string{
	http.StatusTooManyRequests: "rate_limit_error", http.StatusInternalServerError: "api_error", 529: "overloaded_error",
	http.StatusBadRequest: "invalid_request_error", http.StatusServiceUnavailable: "api_error",
}

// failure returns the status with which the request is refused, or 0. Requests without tools, such as for the title of a
// conversation, are not counted.
func (s *Server) failure(t turn, a answer) int {
	if a.failStatus == 0 || len(t.tools) == 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed[a.failure] >= a.failTimes {
		return 0
	}
	if s.failed == nil {
		s.failed = map[string]int{}
	}
	s.failed[a.failure]++
	return a.failStatus
}

// shownKey returns the key of a request: x-api-key of Anthropic, api-key of Azure, or a bearer token.
func shownKey(h http.Header) string {
	for _, name := range []string{"X-Api-Key", "Api-Key"} {
		if key := h.Get(name); key != "" {
			return key
		}
	}
	key, _ := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	return key
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// object is a JSON object that is written.
type object map[string]any

// events writes server-sent events, each at its time.
type events struct {
	w        io.Writer
	rc       *http.ResponseController
	sequence int
	framed   bool  // in messages of Amazon Bedrock
	err      error // of the first failed write
}

// send writes an event, with its name unless that is empty.
func (e *events) send(name string, data any) {
	if e.err != nil {
		return
	}
	text, err := json.Marshal(data)
	if err != nil {
		e.err = err
		return
	}
	if e.framed {
		if _, e.err = e.w.Write(chunk(text)); e.err == nil {
			e.err = e.rc.Flush()
		}
		return
	}
	if name != "" {
		_, e.err = fmt.Fprintf(e.w, "event: %s\n", name)
	}
	if e.err == nil {
		_, e.err = fmt.Fprintf(e.w, "data: %s\n\n", text)
	}
	if e.err == nil {
		e.err = e.rc.Flush()
	}
}

// comment writes a comment, which clients ignore.
func (e *events) comment(text string) {
	if e.err == nil {
		_, e.err = fmt.Fprintf(e.w, ": %s\n\n", text)
	}
	if e.err == nil {
		e.err = e.rc.Flush()
	}
}

// pieces splits a text into the deltas of a stream.
func pieces(text string) []string { return strings.SplitAfter(text, " ") }
