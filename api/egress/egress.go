package egress

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/audit"
	"boxgate/policy"
)

// pingEvery is the interval of pings on a stream without decisions.
const pingEvery = 15 * time.Second

// eventsQuery selects decisions.
type eventsQuery struct {
	Since  string `json:"since,omitempty" doc:"a time, Unix seconds, or a duration back from now" example:"10m"`
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
	if query.Since != "" {
		var err error
		if f.Since, err = api.ParseSince(query.Since, time.Now()); err != nil {
			return f, false, problem.Refuse(http.StatusUnprocessableEntity, `query parameter "since" must be a time (2026-01-02T15:04:05Z), Unix seconds or a duration back from now (10m, 7d)`)
		}
	}
	return f, query.Follow, nil
}
