package schedule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/store"
)

const (
	attempts     = 3                // to deliver a result
	attemptTime  = 30 * time.Second // that one may take
	firstPause   = 2 * time.Second  // before the second; each later one is four times as long
	maxURL       = 2048             // bytes of a webhook's URL
	maxDiscarded = 64 << 10         // bytes read of an answer, so that its connection ends in order
)

// Payload is what a webhook gets.
type Payload struct {
	BoxID    policy.BoxID `json:"box_id"`
	Status   string       `json:"status"`
	RunID    string       `json:"run_id"`
	Output   string       `json:"output,omitempty"`
	Metadata Metadata     `json:"metadata"`
	Error    string       `json:"error,omitempty"`
}

// Metadata says more of a run.
type Metadata struct {
	ScheduleID string `json:"schedule_id"`
	ExitCode   *int   `json:"exit_code,omitempty"`
	Truncated  bool   `json:"truncated,omitempty"` // the output is longer
}

// Webhooks delivers results. Requests leave the host, so they must go the way of the box's own traffic: Client returns what
// makes requests under the policy of a box.
type Webhooks struct {
	Client func(box policy.BoxID) (*http.Client, error)
	// Note tells the box's owner how the delivery ended; err is nil if the result was delivered.
	Note func(s store.Schedule, err error)
}

// Deliver sends a result to the webhook of a schedule, some times if it must.
func (w *Webhooks) Deliver(ctx context.Context, s store.Schedule, p Payload) {
	body, err := json.Marshal(p)
	if err == nil {
		err = w.deliver(ctx, s, body)
	}
	w.Note(s, err)
}

// errRefused is an answer that a repetition would not change.
var errRefused = errors.New("the webhook refused the result")

func (w *Webhooks) deliver(ctx context.Context, s store.Schedule, body []byte) error {
	client, err := w.Client(s.Box)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	pause := fault.Interval(firstPause)
	for n := 1; ; n++ {
		err = attempt(ctx, client, s, body)
		if err == nil || n == attempts || errors.Is(err, errRefused) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause *= 4
	}
}

// attempt sends a result once. Redirects are answers like any other: they are not followed.
func attempt(ctx context.Context, client *http.Client, s store.Schedule, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.WebhookURL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "boxgate-webhook")
	for name, value := range s.WebhookHeaders {
		req.Header.Set(name, value)
	}
	answer, err := client.Do(req)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // its text has the URL, which may have a token in its query
		}
		return err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxDiscarded)
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code >= 500, code == http.StatusRequestTimeout, code == http.StatusTooManyRequests:
		return fmt.Errorf("the webhook answered %d", code)
	default:
		return fmt.Errorf("%w: it answered %d", errRefused, code)
	}
}

// CheckURL returns what is wrong with the URL of a webhook, or nil.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > maxURL || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("must be a URL of at most %d bytes", maxURL)
	case u.Scheme != "https" && u.Scheme != "http":
		return errors.New("must begin with https:// or http://")
	case u.User != nil:
		return errors.New("must not contain a user or a password; send them in a header")
	case u.Hostname() == "" || u.Opaque != "":
		return errors.New("must name a host")
	case u.Fragment != "":
		return errors.New("must not have a fragment, which is never sent")
	}
	return nil
}
