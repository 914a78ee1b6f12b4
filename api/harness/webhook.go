package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"boxgate/api/history"
)

// How often a webhook is tried, how long it has, and how long is waited before the second and third time.
const (
	webhookTries = 3
	webhookMost  = 10 * time.Second
	webhookPause = 5 * time.Second
)

// webhooks sends without the proxy of the environment and follows no redirect.
var webhooks = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	Timeout:       webhookMost,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// notify sends a run that has ended to the webhook that was given with it, if any.
func (e *Endpoints) notify(j *job, run *history.Run) {
	hook := j.body.Webhook
	view, ok := e.History.Find(j.box.ID, run.ID())
	if hook.URL == "" || !ok {
		return
	}
	var err error
	for try := range webhookTries {
		if try > 0 {
			time.Sleep(time.Duration(try) * webhookPause)
		}
		if err = send(context.Background(), hook, view); err == nil {
			return
		}
	}
	e.History.Log(j.box.ID, "warn", "system", "the webhook of run %s could not be delivered: %v", run.ID(), err)
}

func send(ctx context.Context, hook webhookBody, view history.RunDetail) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, hook.URL, bytes.NewReader(mustMarshal(view)))
	if err != nil {
		return err
	}
	for name, value := range hook.Headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := webhooks.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	if resp.StatusCode >= http.StatusMultipleChoices {
		return &statusError{resp.Status}
	}
	return nil
}

// statusError is an answer that is no success.
type statusError struct{ status string }

// Error returns the status.
func (e *statusError) Error() string { return "it answered " + e.status }

// mustMarshal formats what has only fields that JSON has.
func mustMarshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return []byte("{}")
	}
	return data
}
