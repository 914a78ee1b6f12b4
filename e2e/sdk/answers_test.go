package sdk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// operation is an operation of the description.
type operation struct {
	method, path string
	OperationID  string
	Parameters   []struct {
		Name, In string
		Schema   *schema
	}
	RequestBody struct {
		Content map[string]struct {
			Schema  *schema
			Example json.RawMessage
		}
	}
	Responses map[string]struct {
		Content map[string]struct{ Schema *schema }
	}
}

// fuzz sends requests generated from the description of the API to a gateway.
type fuzz struct {
	*harness.World
	client http.Client
	gen    *generator
	ops    []operation
	seen   []string // IDs in answers
}

// notFuzzed are slow operations, with the reason.
var notFuzzed = map[string]string{
	"testBox": "runs for seconds each time", "captureRequests": "records for up to an hour",
	"watchFiles": "streams until the client leaves", "readProcess": "streams until the process ends",
}

// TestAnswersMatchTheDescription sends valid and invalid requests generated from the description, in a fixed order. No
// answer is a 500, each answer matches the description, and undescribed requests are refused. With API_FUZZ=n it sends
// n other requests.
func TestAnswersMatchTheDescription(t *testing.T) {
	t.Parallel()
	seed, count := uint64(1), 600
	if n, err := strconv.Atoi(os.Getenv("API_FUZZ")); err == nil {
		seed, count = rand.Uint64(), n
	}
	f := newFuzz(t, seed)
	t.Logf("seed %d, %d operations", seed, len(f.ops))
	for i := range count {
		f.ensureBox()
		if f.send(f.ops[i%len(f.ops)]); t.Failed() {
			t.Fatalf("request %d of seed %d", i, seed)
		}
	}
}

func newFuzz(t *testing.T, seed uint64) *fuzz {
	t.Helper()
	w := harness.NewWorld(t, nil)
	var doc struct {
		Paths      map[string]map[string]operation
		Components struct{ Schemas schemas }
	}
	if err := w.Client.Do(t.Context(), "GET", "/openapi.json", nil, &doc); err != nil {
		t.Fatal(err)
	}
	f := &fuzz{World: w, gen: &generator{
		Rand: rand.New(rand.NewPCG(seed, seed)), all: doc.Components.Schemas,
		skip: []string{"pid", "container", "follow"}, // would attach foreign sandboxes, or never end
	}}
	f.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", w.Socket)
	}}
	f.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(doc.Paths[path])) {
			op := doc.Paths[path][method]
			if op.method, op.path = strings.ToUpper(method), path; notFuzzed[op.OperationID] == "" {
				f.ops = append(f.ops, op)
			}
		}
	}
	return f
}

// ensureBox creates the box of the requests if it is gone.
func (f *fuzz) ensureBox() {
	f.T.Helper()
	err := f.Client.Do(f.T.Context(), "GET", "/v2/box/fuzz-a", nil, nil)
	if err == nil {
		return
	}
	if f.Client, err = f.Dial(); err != nil { // with the present key
		f.T.Fatal(err)
	}
	if err := f.Client.Do(f.T.Context(), "GET", "/v2/box/fuzz-a", nil, nil); err != nil {
		f.Create(map[string]any{"name": "fuzz-a"})
	}
}

// send makes a request of an operation and checks the answer.
func (f *fuzz) send(op operation) {
	f.T.Helper()
	target, known := f.target(op)
	body, media, spoiled := f.body(op)
	req, err := http.NewRequestWithContext(f.T.Context(), op.method, "http://localhost"+target, bytes.NewReader(body))
	if err != nil {
		f.T.Fatal(err)
	}
	req.Header.Set("X-Box-Api-Key", strings.TrimSpace(f.KeyFile("api-key")))
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	answer, err := f.client.Do(req)
	if err != nil {
		f.T.Errorf("%s %s %.500s: %v", op.method, target, body, err)
		return
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		f.T.Errorf("%s %s %.500s: %v", op.method, target, body, err)
		return
	}
	for _, fault := range f.checkAnswer(op, answer, text, known && spoiled) {
		f.T.Errorf("%s %s %.500s: %s: %s (%.500s)", op.method, target, body, answer.Status, fault, text)
	}
}

// target returns the path and the query of an operation. known reports whether the path is that of the box.
func (f *fuzz) target(op operation) (target string, known bool) {
	path, query := op.path, url.Values{}
	known = true
	for _, p := range op.Parameters {
		switch {
		case p.In == "path" && p.Name == "id" && f.gen.IntN(8) > 0:
			path = strings.ReplaceAll(path, "{id}", "fuzz-a")
		case p.In == "path":
			known = false
			word := f.gen.pick([]string{"a", "1", "3000", "..%2f..", "%00", "%F0%9F%A6%80", "run_x", "x%20y"})
			if len(f.seen) > 0 && f.gen.IntN(2) == 0 {
				word = url.PathEscape(f.gen.pick(f.seen))
			}
			path = strings.ReplaceAll(path, "{"+p.Name+"}", word)
		case p.In == "query" && f.gen.IntN(2) == 0 && !slices.Contains(f.gen.skip, p.Name):
			query.Set(p.Name, fmt.Sprint(f.gen.value(p.Schema, 1)))
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path, known && len(query) == 0
}

// body returns the body of a request. spoiled reports whether the schema forbids it.
func (f *fuzz) body(op operation) (body []byte, media string, spoiled bool) {
	described, ok := op.RequestBody.Content["application/json"]
	if !ok {
		for media := range op.RequestBody.Content {
			return []byte(f.gen.pick(words)), media, false
		}
		return nil, "", false
	}
	v := f.gen.value(described.Schema, 5)
	if f.gen.IntN(3) == 0 && json.Unmarshal(described.Example, &v) != nil {
		f.T.Fatalf("%s has no example", op.OperationID)
	}
	if spoiled = f.gen.IntN(3) == 0; spoiled {
		v = f.gen.makeInvalid(f.gen.all.resolve(described.Schema), v)
	}
	body, err := json.Marshal(v)
	if err != nil {
		f.T.Fatal(err)
	}
	return body, "application/json", spoiled
}

// checkAnswer returns the faults of an answer.
func (f *fuzz) checkAnswer(op operation, answer *http.Response, text []byte, mustRefuse bool) []string {
	status := strconv.Itoa(answer.StatusCode)
	described, ok := op.Responses[status]
	if !ok {
		if answer.StatusCode < 400 {
			return []string{"the status is not described"}
		}
		described = op.Responses["default"]
	}
	if answer.StatusCode == http.StatusInternalServerError {
		return []string{"the gateway failed"}
	}
	if mustRefuse && answer.StatusCode != http.StatusUnprocessableEntity && answer.StatusCode != http.StatusNotImplemented {
		return []string{"what is not described was not refused"}
	}
	media, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	content, ok := described.Content[media]
	if !ok && (len(described.Content) > 0 || len(text) > 0) {
		return []string{fmt.Sprintf("the media type %q is not described (%v)", media, err)}
	}
	switch media {
	case "application/json":
		return f.faultsOf(content.Schema, text)
	case "application/x-ndjson":
		var found []string
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			found = append(found, f.faultsOf(content.Schema, lines.Bytes())...)
		}
		return found
	}
	return nil
}

func (f *fuzz) faultsOf(s *schema, text []byte) []string {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return []string{err.Error()}
	}
	f.remember(v)
	if s.Type == "object" && s.Properties == nil && s.AdditionalProperties == nil {
		return nil // described as any object
	}
	return f.gen.all.faults(s, v, "")
}

// remember stores the IDs in an answer for the paths of later requests.
func (f *fuzz) remember(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			f.remember(item)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if id, ok := v[name].(string); ok && strings.HasSuffix(name, "id") && len(f.seen) < 1000 && !slices.Contains(f.seen, id) {
				f.seen = append(f.seen, id)
			}
			f.remember(v[name])
		}
	}
}
