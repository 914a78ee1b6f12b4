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
	attempts     = 3                // per result
	attemptTime  = 30 * time.Second // timeout of one attempt
	firstPause   = 2 * time.Second  // before the second attempt; each later pause is four times as long
	maxURL       = 2048             // maximum length of a webhook's URL in bytes
	maxDiscarded = 64 << 10         // response bytes read before the connection is closed
)

// Payload is the body of a webhook request.
type Payload struct {
	BoxID    policy.BoxID `json:"box_id"`
	Status   string       `json:"status"`
	RunID    string       `json:"run_id"`
	Output   string       `json:"output,omitempty"`
	Metadata Metadata     `json:"metadata"`
	Error    string       `json:"error,omitempty"`
}

// Metadata has details of a run.
type Metadata struct {
	ScheduleID string `json:"schedule_id"`
	ExitCode   *int   `json:"exit_code,omitempty"`
	Truncated  bool   `json:"truncated,omitempty"` // the output is longer
	// Of an agent, as its harness reported them.
	InputTokens  *int64 `json:"input_tokens,omitempty"`
	OutputTokens *int64 `json:"output_tokens,omitempty"`
	CachedTokens *int64 `json:"cached_input_tokens,omitempty"`
}

func metadataOf(s store.Schedule, out Outcome) Metadata {
	m := Metadata{ScheduleID: s.ID, ExitCode: out.ExitCode, Truncated: out.Truncated}
	if a := out.Answer; a != nil {
		m.InputTokens, m.OutputTokens, m.CachedTokens = &a.InputTokens, &a.OutputTokens, &a.CachedTokens
	}
	return m
}

// Webhooks delivers results. The requests leave the host, so they must be treated like traffic of the box: Client returns
// a client that sends requests under the box's policy.
type Webhooks struct {
	Client func(box policy.BoxID) (*http.Client, error)
	// Note reports the end of a delivery to the box's owner; err is nil on success.
	Note func(s store.Schedule, err error)
}

// Deliver sends a result to the webhook of a schedule, with retries.
func (w *Webhooks) Deliver(ctx context.Context, s store.Schedule, p Payload) {
	body, err := json.Marshal(p)
	if err == nil {
		err = w.deliver(ctx, s, body)
	}
	w.Note(s, err)
}

// errRefused is a response that a retry would not change.
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

// attempt sends a result once. It does not follow redirects.
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
			err = failed.Err // drop the URL, which may contain a token in its query
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

// CheckURL checks the URL of a webhook.
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
