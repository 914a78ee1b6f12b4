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

// Attempts to deliver a webhook, the timeout of each, and the pause before the second one; the third waits twice as long.
const (
	webhookTries = 3
	webhookMost  = 30 * time.Second
	webhookPause = 5 * time.Second
)

// webhookPayload is the body of a webhook, in the SDK's format.
type webhookPayload struct {
	BoxID    policy.BoxID    `json:"box_id"`
	Status   string          `json:"status"`
	RunID    string          `json:"run_id"`
	Output   history.Text    `json:"output,omitempty"`
	Metadata webhookMetadata `json:"metadata"`
	Error    history.Text    `json:"error,omitempty"`
}

// webhookMetadata has details of a run.
type webhookMetadata struct {
	InputTokens  int64        `json:"input_tokens"`
	OutputTokens int64        `json:"output_tokens"`
	CachedTokens int64        `json:"cached_input_tokens"`
	SessionID    history.Text `json:"session_id,omitempty"`
	Model        string       `json:"model,omitempty"`
	DurationMS   int64        `json:"duration_ms"`
}

// payloadOf describes an ended run. The SDK's type knows two results: a cancelled run is a failed one.
func payloadOf(view history.RunDetail) webhookPayload {
	status := "completed"
	if view.Status != status {
		status = "failed"
	}
	return webhookPayload{
		BoxID: view.BoxID, Status: status, RunID: view.ID, Output: view.Output, Error: view.ErrorMessage,
		Metadata: webhookMetadata{view.InputTokens, view.OutputTokens, view.CachedTokens, view.SessionID, view.Model, view.DurationMS},
	}
}

// notify sends an ended run to its webhook, if there is one.
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

// send sends a run once, as traffic of its box, so that the box's policy decides about the destination.
func (e *Endpoints) send(ctx context.Context, box policy.BoxID, hook webhookBody, view history.RunDetail) error {
	client, err := e.Webhooks.WebhookClient(box)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, webhookMost)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, hook.URL, bytes.NewReader(mustMarshal(payloadOf(view))))
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

// statusError is a response without success.
type statusError struct{ status string }

// Error returns the status.
func (e *statusError) Error() string { return "it answered " + e.status }

// mustMarshal encodes types that always have a JSON encoding.
func mustMarshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return []byte("{}")
	}
	return data
}
