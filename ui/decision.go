package ui

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"boxgate/api"
	"boxgate/audit"
)

func (u *UI) decisionRoutes() []route {
	return []route{{"GET /ui/boxes/{id}/decisions/{seq}", serveDecision}}
}

// decisionPage is the input of the page of one decision.
type decisionPage struct {
	Box   box
	Event audit.Event
	Host  string
}

// errNoDecision answers for a decision that neither the memory nor the history has.
var errNoDecision = &api.ResponseError{Status: http.StatusNotFound, Message: "This decision is no longer known. The log of the gateway may have it."}

// serveDecision explains one decision: the destination, the verdict, the rule, and the remedy.
func serveDecision(v *visit) (view, error) {
	b, head, err := v.box()
	if err != nil {
		return view{}, err
	}
	e, err := v.decision(string(b.ID))
	if err != nil {
		return view{}, err
	}
	page := decisionPage{Box: b, Event: e, Host: Visible(hostOf(e))}
	return view{name: "decision", title: "One decision", section: "Boxes", box: head, data: page}, nil
}

// decision finds the decision of the path by its number and time, in memory or else on disk. The time makes it unique: numbers start
// again with each run of the gateway.
func (v *visit) decision(id string) (audit.Event, error) {
	seq, err := strconv.ParseUint(v.r.PathValue("seq"), 10, 64)
	nanos, errAt := strconv.ParseInt(v.r.URL.Query().Get("at"), 10, 64)
	if err != nil || errAt != nil {
		return audit.Event{}, errNoDecision
	}
	at := time.Unix(0, nanos)
	var found *audit.Event
	look := func(e audit.Event) {
		if e.Seq == seq && e.Time.Equal(at) {
			found = &e
		}
	}
	since := url.Values{"since": {at.UTC().Format(time.RFC3339Nano)}}
	if err := readEvents(v.r.Context(), v.client, api.BoxPath(id, "egress")+"?"+since.Encode(), look); err != nil {
		return audit.Event{}, err
	}
	if found == nil {
		since.Set("until", at.Add(time.Millisecond).UTC().Format(time.RFC3339Nano))
		if err := readEvents(v.r.Context(), v.client, api.BoxPath(id, "egress", "history")+"?"+since.Encode(), look); err != nil && !isRefusal(err) {
			return audit.Event{}, err
		}
	}
	if found == nil {
		return audit.Event{}, errNoDecision
	}
	return *found, nil
}

// isRefusal reports whether an error is a refusal of the API, such as that it keeps no history.
func isRefusal(err error) bool {
	_, ok := err.(*api.ResponseError)
	return ok
}
