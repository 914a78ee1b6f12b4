// Package egress serves the decisions about the traffic of boxes: past ones, a live stream, and explanations of
// hypothetical requests.
package egress

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/api/strict"
	"boxgate/audit"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Host gives access to the decisions about the traffic of boxes. Errors are as in package api.
type Host interface {
	// RecentEvents returns the decisions still in memory.
	RecentEvents(ctx context.Context, f api.EventFilter) (api.PastEvents, error)
	// Activity sums up the latest decisions about each box.
	Activity(ctx context.Context) (map[policy.BoxID]audit.Activity, error)
	// FollowEvents delivers new decisions until ctx ends.
	FollowEvents(ctx context.Context, f api.EventFilter) (api.EventStream, error)
	// SearchEvents calls begin with the time since which the log of the filter's boxes is complete, and then do for each
	// matching decision on disk, oldest first. If the gateway keeps no decisions on disk, the error is an ErrConflict.
	SearchEvents(ctx context.Context, f api.EventSearch, begin func(whole time.Time), do func(audit.Event) error) error
	// Observations returns the sums of the decisions about a box. If the gateway keeps none, the error is an ErrConflict.
	Observations(ctx context.Context, id policy.BoxID) (observe.Summary, error)
}

// Rules explains decisions.
type Rules interface {
	// Explain returns the decision of the active policy without sending a request. knowsQuery is set if an empty query in
	// req means that the request has no query.
	Explain(ctx context.Context, id policy.BoxID, req policy.Request, knowsQuery bool) (policy.Explanation, error)
	// Resolve returns the addresses, not yet decided on, from which the gateway would answer a query of the box for a name, without
	// granting them. looked is false if the gateway would not look the name up; err is then about the box, otherwise about the look-up.
	Resolve(ctx context.Context, id policy.BoxID, n name.Name) (addrs []netip.Addr, looked bool, err error)
}

// Endpoints serves decisions about egress.
type Endpoints struct {
	Boxes    rest.Finder
	Host     Host
	Rules    Rules
	Versions Versions
	Bodies   strict.Bodies
	Stopping <-chan struct{} // closed when the server shuts down, which ends streams
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	items := []reflect.Type{reflect.TypeFor[audit.Event](), reflect.TypeFor[lostView](), reflect.TypeFor[gapView]()}
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/egress", ID: "listBoxDecisions", Summary: "Decisions about a box", Query: reflect.TypeFor[eventsQuery](), Produces: []string{stream.NDJSON, stream.EventStream}, Items: items, Handle: e.boxEvents},
		{Method: "GET", Path: "/v2/egress", ID: "listDecisions", Summary: "Decisions about every box", Query: reflect.TypeFor[eventsQuery](), Produces: []string{stream.NDJSON, stream.EventStream}, Items: items, Handle: e.allEvents},
		{Method: "GET", Path: "/v2/egress/activity", ID: "listActivity", Summary: "The latest decision about each box that the key sees, and its denials in the last hour", Response: reflect.TypeFor[[]activityView](), Handle: e.activity},
		{Method: "GET", Path: "/v2/box/{id}/egress/history", ID: "searchBoxDecisions", Summary: "Decisions on disk about a box, including those of earlier runs of the gateway", Query: reflect.TypeFor[searchQuery](), Produces: []string{stream.NDJSON}, Items: items[:1], Handle: e.searchBox},
		{Method: "GET", Path: "/v2/egress/history", ID: "searchDecisions", Summary: "Decisions on disk about every box, including those of earlier runs of the gateway", Query: reflect.TypeFor[searchAllQuery](), Produces: []string{stream.NDJSON}, Items: items[:1], Handle: e.searchAll},
		{Method: "GET", Path: "/v2/box/{id}/egress/observations", ID: "listObservations", Summary: "The traffic of a box, summed up by destination, request and decision", Query: reflect.TypeFor[observationsQuery](), Response: reflect.TypeFor[observationsView](), Handle: e.observations},
		{Method: "GET", Path: "/v2/egress/observations", ID: "listPastObservations", Summary: "The traffic of a box by its ID, which may be that of a deleted box", Query: reflect.TypeFor[pastObservationsQuery](), Response: reflect.TypeFor[observationsView](), Handle: e.pastObservations},
		{Method: "GET", Path: "/v2/box/{id}/egress/learned", ID: "learnPolicy", Summary: "The least policy for the traffic of the box, with the evidence for each entry; the policy stays as it is", Query: reflect.TypeFor[learnQuery](), Response: reflect.TypeFor[learnedView](), Handle: e.learned},
		{Method: "GET", Path: "/v2/box/{id}/egress/policy-history", ID: "listPolicyVersions", Summary: "The versions of a box's policy, the latest first: who set each, when and by what; also of a deleted box, by its ID", Query: reflect.TypeFor[versionsQuery](), Response: reflect.TypeFor[api.PolicyVersions](), Handle: e.versions},
		{Method: "GET", Path: "/v2/box/{id}/egress/policy-history/{version}", ID: "getPolicyVersion", Summary: "One version of a box's policy, and everything that decided along with it", Response: reflect.TypeFor[api.PolicyDocument](), Handle: e.version},
		{Method: "POST", Path: "/v2/box/{id}/egress/explain", ID: "explainDecision", Summary: "The decision of the active policy; nothing is sent to the destination", Request: reflect.TypeFor[explainBody](), Example: `{"host":"api.example.com","port":443,"protocol":"tcp"}`, Response: reflect.TypeFor[decisionView](), Handle: e.explain},
	}
}

// pingEvery is the interval of pings on a stream without decisions.
const pingEvery = 15 * time.Second

// eventsQuery selects decisions.
type eventsQuery struct {
	Since  string `json:"since,omitempty" doc:"a time, a date (UTC), Unix seconds, or a duration back from now" example:"10m"`
	Follow bool   `json:"follow,omitempty" doc:"continue with new decisions"`
	Denied bool   `json:"denied,omitempty" doc:"only denials"`
	After  string `json:"after,omitempty" doc:"the header Boxgate-Run of an earlier response, a dash, and the seq of the last decision received" example:"k3f9x2-1234"`
}

func (e *Endpoints) boxEvents(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.events(w, r, box.ID)
}

func (e *Endpoints) allEvents(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.events(w, r, "")
}

// events writes past decisions and, with follow=true, new ones.
func (e *Endpoints) events(w http.ResponseWriter, r *http.Request, box policy.BoxID) (rest.Reply, error) {
	filter, follow, err := eventFilter(r, box)
	if err != nil {
		return rest.Reply{}, err
	}
	run, err := resumeAt(r, &filter)
	if err != nil {
		return rest.Reply{}, err
	}
	var live api.EventStream
	if follow {
		// Subscribe before reading past events, so that no event is lost in between.
		if live, err = e.Host.FollowEvents(r.Context(), filter); err != nil {
			return rest.Reply{}, err
		}
	}
	past, err := e.Host.RecentEvents(r.Context(), filter)
	restarted := run != "" && run != past.Run
	if restarted && err == nil { // numbers of another run are meaningless here
		filter.After = 0
		past, err = e.Host.RecentEvents(r.Context(), filter)
	}
	if err != nil {
		return rest.Reply{}, err
	}
	s := &eventWriter{w: w, rc: http.NewResponseController(w), sse: stream.Accepts(r, stream.EventStream)}
	s.begin(past.Run)
	if restarted {
		err = s.gap("the gateway was restarted: its log has the earlier decisions")
	} else if run != "" && past.Missing {
		err = s.gap("decisions that the gateway no longer remembers may be missing here: its log has them")
	}
	if err == nil && s.all(past.Events) == nil && follow {
		e.follow(r, s, live, past.Events)
	}
	return rest.Reply{Written: true}, nil
}

// follow copies live decisions, except those already among the past ones.
func (e *Endpoints) follow(r *http.Request, s *eventWriter, live api.EventStream, past []audit.Event) {
	var sent uint64
	for _, e := range past {
		sent = max(sent, e.Seq)
	}
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	var lost uint64
	for {
		var err error
		select {
		case <-r.Context().Done():
			return
		case <-e.Stopping:
			return
		case <-ping.C:
			err = s.ping()
		case e, ok := <-live.Events():
			if !ok {
				return
			}
			if now := live.Lost(); now != lost {
				err = s.lost(now - lost)
				lost = now
			}
			if err == nil && e.Seq > sent {
				err = s.event(e)
			}
		}
		if err != nil || s.flush() != nil {
			return
		}
	}
}

// resumeAt parses the query parameter "after": the run and the number of the last decision that the client received, such
// as "k3f9x2-1234". It returns the run, or "" if the parameter is absent.
func resumeAt(r *http.Request, f *api.EventFilter) (run string, err error) {
	after := r.URL.Query().Get("after")
	if after == "" {
		return "", nil
	}
	run, number, _ := strings.Cut(after, "-")
	if f.After, err = strconv.ParseUint(number, 10, 64); err != nil || run == "" {
		return "", problem.Refuse(http.StatusUnprocessableEntity, `query parameter "after" must be what the header `+stream.RunHeader+` said, a dash and the "seq" of a decision`)
	}
	return run, nil
}

func eventFilter(r *http.Request, box policy.BoxID) (api.EventFilter, bool, error) {
	f := api.EventFilter{Box: box}
	var query eventsQuery
	if err := rest.Query(r, &query); err != nil {
		return f, false, err
	}
	f.Denied = query.Denied
	window, err := rest.Window(query.Since, "")
	if err != nil {
		return f, false, err
	}
	f.Since = window.Since
	return f, query.Follow, nil
}

// eventWriter writes decisions as NDJSON or server-sent events.
type eventWriter struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	sse bool
}

func (s *eventWriter) begin(run string) {
	s.w.Header().Set(stream.RunHeader, run)
	s.w.Header().Set("Content-Type", stream.NDJSON)
	if s.sse {
		s.w.Header().Set("Content-Type", stream.EventStream)
	}
	s.w.Header().Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
}

func (s *eventWriter) flush() error { return s.rc.Flush() }

// all writes past events. It fails if the client has disconnected.
func (s *eventWriter) all(events []audit.Event) error {
	for _, e := range events {
		if err := s.event(e); err != nil {
			return err
		}
	}
	return s.flush()
}

func (s *eventWriter) event(e audit.Event) error { return s.write("decision", e) }

// lostView reports in the stream that events were lost because the client was too slow.
type lostView struct {
	Lost uint64 `json:"lost"`
}

func (s *eventWriter) lost(n uint64) error { return s.write("lost", lostView{n}) }

// gapView reports in the stream that decisions may be missing.
type gapView struct {
	Gap string `json:"gap"`
}

func (s *eventWriter) gap(why string) error { return s.write("gap", gapView{why}) }

// ping keeps the connection alive and detects a dead client before the next decision.
func (s *eventWriter) ping() error {
	line := "\n" // readers of NDJSON skip empty lines
	if s.sse {
		line = ": ping\n\n"
	}
	_, err := s.w.Write([]byte(line))
	return err
}

func (s *eventWriter) write(name string, v any) error {
	text := stream.Event(name, v)
	if !s.sse {
		line, err := json.Marshal(v)
		if err != nil {
			return err
		}
		text = append(line, '\n')
	}
	_, err := s.w.Write(stream.EscapeControls(text))
	return err
}
