package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/policy"
	"boxgate/store"
)

// wire answers requests in turn.
type wire struct {
	answers []int // statuses; 0: no response
	seen    []*http.Request
	bodies  []string
	times   []time.Duration
	start   time.Time
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.times = append(w.times, time.Since(w.start))
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	w.seen, w.bodies = append(w.seen, r), append(w.bodies, string(body))
	if len(w.answers) == 0 {
		return nil, errors.New("no more answers")
	}
	status := w.answers[0]
	w.answers = w.answers[1:]
	if status == 0 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Location": {"https://elsewhere.example"}}, Body: io.NopCloser(strings.NewReader("answer"))}, nil
}

// deliver delivers one result over w and returns the recorded error.
func deliver(t *testing.T, ctx context.Context, w *wire) (noted error) {
	t.Helper()
	w.start = time.Now()
	client := &http.Client{Transport: w, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	hooks := &Webhooks{
		Client: func(policy.BoxID) (*http.Client, error) { return client, nil },
		Note:   func(_ store.Schedule, err error) { noted = err },
	}
	code := 3
	hooks.Deliver(ctx, store.Schedule{ID: "s1", Box: "b1", WebhookURL: "https://hook.example/path?token=sk-url", WebhookHeaders: map[string]string{"Authorization": "Bearer t"}},
		Payload{BoxID: "b1", Status: Failed, RunID: "run_1", Output: "out", Metadata: Metadata{ScheduleID: "s1", ExitCode: &code}})
	return noted
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answers: []int{204}}
		if err := deliver(t, t.Context(), w); err != nil || len(w.seen) != 1 {
			t.Fatalf("%v, %d requests", err, len(w.seen))
		}
		var body map[string]any
		r := w.seen[0]
		if err := json.Unmarshal([]byte(w.bodies[0]), &body); err != nil || fmt.Sprint(body) != "map[box_id:b1 metadata:map[exit_code:3 schedule_id:s1] output:out run_id:run_1 status:failed]" {
			t.Errorf("%v: %s", err, w.bodies[0])
		}
		if r.Method != "POST" || r.Header.Get("Authorization") != "Bearer t" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %v", r.Method, r.Header)
		}
	})
}

// Attempts are limited in number and time; permanent failures are not retried; redirects are not followed.
func TestWebhookAttempts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		answers []int
		at      string // seconds
		err     string
	}{
		{[]int{500, 200}, "[0s 2s]", ""},
		{[]int{0, 429, 503, 200}, "[0s 32s 40s]", "503"},
		{[]int{302, 200}, "[0s]", "302"},
		{[]int{404, 200}, "[0s]", "404"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &wire{answers: tt.answers}
			err := deliver(t, t.Context(), w)
			if fmt.Sprint(w.times) != tt.at || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v: attempts at %v, %v", tt.answers, w.times, err)
			}
			if err != nil && strings.Contains(err.Error(), "sk-url") {
				t.Errorf("the error shows the URL: %v", err)
			}
		})
	}
}

func TestWebhookEndsWithTheGateway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := &wire{answers: []int{0, 200}}
		if err := deliver(t, ctx, w); err == nil || len(w.seen) != 1 {
			t.Errorf("%v, %d requests", err, len(w.seen))
		}
	})
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"https://example.com/webhook", "http://example.com:8080/?a=b", "https://[2001:db8::1]/x", "https://example.com"} {
		if err := CheckURL(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "example.com", "/path", "ftp://example.com/", "file:///etc/passwd", "https://", "https:///x", "https:example.com", "https://user:pass@example.com/", "https://example.com/#x",
		"https://example.com/ x", "https://example.com/\r\nX: y", "https://exämple.com/", "https://example.com/" + strings.Repeat("x", 2048), "unix:///run/x.sock",
	} {
		if err := CheckURL(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
