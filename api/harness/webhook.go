package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"boxgate/api/history"
	"boxgate/policy"
)

// How often a webhook is tried, how long it has, and how long is waited before the second and third time.
const (
	webhookTries = 3
	webhookMost  = 30 * time.Second
	webhookPause = 5 * time.Second
)

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
		if err = e.send(context.Background(), j.box.ID, hook, view); err == nil {
			return
		}
	}
	e.History.Log(j.box.ID, "warn", "system", "the webhook of run %s could not be delivered: %v", run.ID(), err)
}

// send sends a run once, as traffic of its box: the policy of the box decides where to.
func (e *Endpoints) send(ctx context.Context, box policy.BoxID, hook webhookBody, view history.RunDetail) error {
	client, err := e.Errands.ErrandClient(box)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, webhookMost)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, hook.URL, bytes.NewReader(mustMarshal(view)))
	if err != nil {
		return err
	}
	for name, value := range hook.Headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
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
