package gateway

import (
	"context"
	"net/http"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/internal/buildinfo"
	"boxgate/policy"
)

// recently is how far back denials are counted.
const recently = 10 * time.Minute

// gatewayView is the state of the gateway at a glance.
type gatewayView struct {
	Version       string             `json:"version"`
	Revision      string             `json:"revision"`
	Date          string             `json:"date,omitempty" doc:"of the revision"`
	StartedAt     string             `json:"started_at"`
	UptimeSeconds int64              `json:"uptime_seconds"`
	Boxes         map[api.Status]int `json:"boxes" doc:"how many are in each state"`
	Denials       denialsView        `json:"denials"`
}

// denialsView counts denials.
type denialsView struct {
	Seconds int                      `json:"seconds" doc:"how far back they are counted"`
	Total   uint64                   `json:"total"`
	Reasons map[policy.Reason]uint64 `json:"reasons"`
	AtLeast bool                     `json:"at_least" doc:"there may have been more that the gateway no longer remembers"`
}

func (e *Endpoints) status(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	boxes, err := e.Host.Boxes(r.Context(), api.BoxFilter{})
	if err != nil {
		return rest.Reply{}, err
	}
	denials, err := e.denials(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	b := buildinfo.Get()
	view := gatewayView{
		Version: b.Version, Revision: b.Revision, Date: b.Date, Boxes: map[api.Status]int{}, Denials: denials,
		StartedAt: e.Started.UTC().Format(time.RFC3339), UptimeSeconds: int64(time.Since(e.Started).Seconds()),
	}
	for _, box := range boxes {
		view.Boxes[box.Status]++
	}
	return rest.Reply{Body: view}, nil
}

// denials counts the denials that are still remembered. One event can stand for many.
func (e *Endpoints) denials(ctx context.Context) (denialsView, error) {
	past, err := e.Host.RecentEvents(ctx, api.EventFilter{Since: time.Now().Add(-recently), Denied: true})
	view := denialsView{Seconds: int(recently.Seconds()), Reasons: map[policy.Reason]uint64{}, AtLeast: past.Missing}
	for _, event := range past.Events {
		n := max(event.Count, 1)
		view.Total += n
		view.Reasons[event.Reason] += n
	}
	return view, err
}
