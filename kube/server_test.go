package kube

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap/zaptest"
	"golang.org/x/time/rate"
)

// apiServer is an API server with BoxgatePolicies in memory. e2e/cni has the real one.
type apiServer struct {
	*httptest.Server
	t     *testing.T
	token string
	ca    string // path
	file  string // of the token

	mu      sync.Mutex
	changed chan struct{} // closed at each change
	version int
	objects map[string]map[string]any
	events  []storedEvent
	oldest  int // watches from an earlier version are refused
	lists   int
	watches int
	answer  func(w http.ResponseWriter, r *http.Request) bool // serves a request instead, if it returns true
}

type storedEvent struct {
	version int
	line    []byte
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{t: t, token: "secret-token", objects: map[string]map[string]any{}, changed: make(chan struct{}), version: 1}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	dir := t.TempDir()
	s.ca, s.file = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	s.write(s.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	s.write(s.file, []byte(s.token+"\n"))
	return s
}

func (s *apiServer) write(path string, data []byte) {
	s.t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// controller returns a controller of the server's resources, which does not wait long.
func (s *apiServer) controller(p Policies) *Controller {
	s.t.Helper()
	c, err := New(Config{Server: Server{URL: s.URL, TokenFile: s.file, CAFile: s.ca}, Node: "node-1", Policies: p, Log: zaptest.NewLogger(s.t)})
	if err != nil {
		s.t.Fatal(err)
	}
	c.wait = 1
	c.statuses.limit = rate.NewLimiter(rate.Inf, 1)
	return c
}

// put makes or replaces a resource NAMESPACE/NAME.
func (s *apiServer) put(ref, spec string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(ref, json.RawMessage(spec))
}

func (s *apiServer) putLocked(ref string, spec json.RawMessage) {
	namespace, name, _ := strings.Cut(ref, "/")
	old, kind, generation := s.objects[ref], eventAdded, 1
	var status any
	if old != nil {
		kind, generation, status = eventModified, old["metadata"].(map[string]any)["generation"].(int)+1, old["status"]
	}
	s.version++
	s.objects[ref] = map[string]any{"metadata": map[string]any{"namespace": namespace, "name": name, "uid": "uid-" + ref, "generation": generation, "resourceVersion": strconv.Itoa(s.version)}, "spec": spec}
	if status != nil {
		s.objects[ref]["status"] = status
	}
	s.note(kind, s.objects[ref])
}

// remove deletes a resource; quietly: without an event.
func (s *apiServer) remove(ref string, quietly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	object := s.objects[ref]
	delete(s.objects, ref)
	object["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
	if !quietly {
		s.note(eventDeleted, object)
	}
}

// note adds an event. The caller holds the lock.
func (s *apiServer) note(kind string, object any) {
	line, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		s.t.Error(err)
	}
	s.events = append(s.events, storedEvent{s.version, append(line, '\n')})
	s.wake()
}

// wake has watches look for events. The caller holds the lock.
func (s *apiServer) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// status returns the status of a resource as it was written.
func (s *apiServer) status(ref string) (st status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err := json.Marshal(s.objects[ref]["status"])
	if err == nil {
		err = json.Unmarshal(data, &st)
	}
	if err != nil {
		s.t.Error(err)
	}
	return st
}

// instead sets a function that serves a request itself if it returns true.
func (s *apiServer) instead(f func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	switch {
	case answer != nil && answer(w, r):
	case r.Header.Get("Authorization") != "Bearer "+s.token:
		http.Error(w, `{"message":"Unauthorized"}`, http.StatusUnauthorized)
	case r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/status"):
		s.putStatus(w, r)
	case r.Method != http.MethodGet || r.URL.Path != resourcesPath:
		http.Error(w, `{"message":"no"}`, http.StatusForbidden)
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	default:
		s.list(w, r)
	}
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	var refs []string
	for ref := range s.objects {
		refs = append(refs, ref)
	}
	slices.Sort(refs)
	from, _ := slices.BinarySearch(refs, r.URL.Query().Get("continue"))
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit < 1 || limit > pageSize {
		s.t.Errorf("a list of %q", r.URL.RawQuery)
	}
	items, metadata := []any{}, map[string]any{"resourceVersion": strconv.Itoa(s.version)}
	for _, ref := range refs[from:] {
		if len(items) == limit {
			metadata["continue"] = ref
			break
		}
		items = append(items, s.objects[ref])
	}
	if err := json.NewEncoder(w).Encode(map[string]any{"metadata": metadata, "items": items}); err != nil {
		s.t.Log(err)
	}
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	version, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		s.t.Errorf("a watch from %q", r.URL.RawQuery)
	}
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	for first := true; ; first = false {
		s.mu.Lock()
		if first {
			s.watches++
		}
		changed, oldest := s.changed, s.oldest
		var lines []byte
		for _, e := range s.events {
			if e.version > version {
				lines = append(lines, e.line...)
			}
		}
		now := s.version
		s.mu.Unlock()
		if version < oldest {
			lines = []byte(`{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}` + "\n")
		}
		if version = now; len(lines) > 0 {
			_, _ = w.Write(lines)
			_ = http.NewResponseController(w).Flush()
		}
		if version < oldest {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func (s *apiServer) putStatus(w http.ResponseWriter, r *http.Request) {
	var given struct {
		Metadata metadata
		Status   any
	}
	if err := json.NewDecoder(r.Body).Decode(&given); err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[given.Metadata.Namespace+"/"+given.Metadata.Name]
	if object == nil {
		http.Error(w, `{"message":"not found"}`, http.StatusNotFound)
		return
	}
	meta := object["metadata"].(map[string]any)
	if meta["resourceVersion"] != given.Metadata.ResourceVersion || meta["uid"] != given.Metadata.UID {
		http.Error(w, `{"message":"the object has been modified"}`, http.StatusConflict)
		return
	}
	s.version++
	next := map[string]any{"metadata": map[string]any{}, "spec": object["spec"], "status": given.Status}
	for key, value := range meta {
		next["metadata"].(map[string]any)[key] = value
	}
	next["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
	s.objects[given.Metadata.Namespace+"/"+given.Metadata.Name] = next
	s.note(eventModified, next)
	_, _ = w.Write([]byte("{}"))
}
