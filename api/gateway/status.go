package gateway

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/internal/buildinfo"
	"boxgate/policy"
	"boxgate/policy/name"
)

// denialPeriod is the period over which denials are counted.
const denialPeriod = 10 * time.Minute

// gatewayView is an overview of the gateway's state.
type gatewayView struct {
	Version       string             `json:"version"`
	Revision      string             `json:"revision"`
	Date          string             `json:"date,omitempty" doc:"of the revision"`
	StartedAt     string             `json:"started_at"`
	UptimeSeconds int64              `json:"uptime_seconds"`
	Boxes         map[api.Status]int `json:"boxes" doc:"number of boxes in each state"`
	Denials       denialsView        `json:"denials"`
	Listeners     []listenerView     `json:"listeners"`
	Places        []placeView        `json:"places" doc:"resources shared by all boxes or by all visitors"`
	Descriptors   placeView          `json:"descriptors" doc:"open files of the process"`
}

// listenerView is one listener.
type listenerView struct {
	Name        string `json:"name" doc:"what it serves"`
	Address     string `json:"address"`
	Accepts     bool   `json:"accepts" doc:"whether it accepted the gateway's latest test connection"`
	Connections int    `json:"connections" doc:"accepted connections that are still open"`
	Limit       int    `json:"limit" doc:"maximum number of connections; 0: only limits per box or per peer"`
}

// placeView is the usage of a bounded resource.
type placeView struct {
	Name  string `json:"name"`
	Used  int    `json:"used"`
	Limit int    `json:"limit" doc:"0: no limit"`
}

// denialsView counts denials.
type denialsView struct {
	Seconds int                    `json:"seconds" doc:"length of the period that is counted"`
	Total   uint64                 `json:"total"`
	Reasons map[name.Reason]uint64 `json:"reasons"`
	Boxes   []boxDenials           `json:"boxes" doc:"the boxes with the most denials, at most ten"`
	AtLeast bool                   `json:"at_least" doc:"older denials of the period may already have been dropped"`
}

// boxDenials counts the denials of one box.
type boxDenials struct {
	ID    policy.BoxID `json:"id"`
	Name  string       `json:"name,omitempty"`
	Total uint64       `json:"total"`
}

// maxDeniedBoxes bounds the boxes in a [denialsView].
const maxDeniedBoxes = 10

func (e *Endpoints) status(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	boxes, err := e.Boxes.Boxes(r.Context(), api.BoxFilter{})
	if err != nil {
		return rest.Reply{}, err
	}
	denials, err := e.denials(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	capacity, err := e.Health.Capacity(r.Context())
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
	view.Listeners, view.Places, view.Descriptors = []listenerView{}, []placeView{}, placeView(capacity.Descriptors)
	for _, l := range capacity.Listeners {
		view.Listeners = append(view.Listeners, listenerView(l))
	}
	for _, p := range capacity.Places {
		view.Places = append(view.Places, placeView(p))
	}
	return rest.Reply{Body: view}, nil
}

// denials counts the denials still in memory. One event can stand for many denials.
func (e *Endpoints) denials(ctx context.Context) (denialsView, error) {
	past, err := e.Events.RecentEvents(ctx, api.EventFilter{Since: time.Now().Add(-denialPeriod), Denied: true})
	boxes := map[policy.BoxID]*boxDenials{}
	view := denialsView{Seconds: int(denialPeriod.Seconds()), Reasons: map[name.Reason]uint64{}, AtLeast: past.Missing}
	for _, event := range past.Events {
		n := max(event.Count, 1)
		view.Total += n
		view.Reasons[event.Reason] += n
		if event.Box == "" {
			continue
		}
		if boxes[event.Box] == nil {
			boxes[event.Box] = &boxDenials{ID: event.Box, Name: event.BoxName}
		}
		boxes[event.Box].Total += n
	}
	view.Boxes = mostDenied(boxes)
	return view, err
}

// mostDenied returns the boxes with the most denials, in descending order.
func mostDenied(boxes map[policy.BoxID]*boxDenials) []boxDenials {
	list := make([]boxDenials, 0, len(boxes))
	for _, b := range boxes {
		list = append(list, *b)
	}
	slices.SortFunc(list, func(a, b boxDenials) int { return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.ID, b.ID)) })
	return list[:min(len(list), maxDeniedBoxes)]
}
