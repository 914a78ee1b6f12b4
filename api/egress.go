package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"boxgate/audit"
	"boxgate/policy"
)

const (
	ndjson      = "application/x-ndjson"
	eventStream = "text/event-stream"
	pingEvery   = 15 * time.Second
)

// accepts reports whether a media type is named in Accept.
func accepts(r *http.Request, media string) bool {
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		if m, params, err := mime.ParseMediaType(part); err == nil && m == media && params["q"] != "0" {
			return true
		}
	}
	return false
}

func (a *API) boxEvents(w http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	return a.events(w, r, box.ID)
}

func (a *API) allEvents(w http.ResponseWriter, r *http.Request) (reply, error) {
	return a.events(w, r, "")
}

// events writes the remembered decisions and, with follow=true, those made from now on.
func (a *API) events(w http.ResponseWriter, r *http.Request, box policy.BoxID) (reply, error) {
	filter, follow, err := eventFilter(r, box)
	if err != nil {
		return reply{}, err
	}
	run, err := resumeAt(r, &filter)
	if err != nil {
		return reply{}, err
	}
	var live EventStream
	if follow {
		// Subscribe before reading the past, so that nothing is lost in between.
		if live, err = a.Host.FollowEvents(r.Context(), filter); err != nil {
			return reply{}, err
		}
	}
	past, err := a.Host.RecentEvents(r.Context(), filter)
	restarted := run != "" && run != past.Run
	if restarted && err == nil { // the numbers of another run have no meaning here
		filter.After = 0
		past, err = a.Host.RecentEvents(r.Context(), filter)
	}
	if err != nil {
		return reply{}, err
	}
	s := &eventWriter{w: w, rc: http.NewResponseController(w), sse: accepts(r, eventStream)}
	s.begin(past.Run)
	if restarted {
		err = s.gap("the gateway was restarted: its log has the earlier decisions")
	} else if run != "" && past.Missing {
		err = s.gap("decisions that the gateway no longer remembers may be missing here: its log has them")
	}
	if err == nil && s.all(past.Events) == nil && follow {
		a.follow(r, s, live, past.Events)
	}
	return reply{written: true}, nil
}

// follow copies the live decisions, leaving out those that were among the past ones.
func (a *API) follow(r *http.Request, s *eventWriter, live EventStream, past []audit.Event) {
	var told uint64
	for _, e := range past {
		told = max(told, e.Seq)
	}
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	var lost uint64
	for {
		var err error
		select {
		case <-r.Context().Done():
			return
		case <-a.stopping:
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
			if err == nil && e.Seq > told {
				err = s.event(e)
			}
		}
		if err != nil || s.flush() != nil {
			return
		}
	}
}

// resumeAt reads the query parameter "after": the run and the number of the last decision that the client has, as in
// "k3f9x2-1234". It returns the run, or "" if there is no such parameter.
func resumeAt(r *http.Request, f *EventFilter) (run string, err error) {
	after := r.URL.Query().Get("after")
	if after == "" {
		return "", nil
	}
	run, number, _ := strings.Cut(after, "-")
	if f.After, err = strconv.ParseUint(number, 10, 64); err != nil || run == "" {
		return "", refuse(http.StatusUnprocessableEntity, `query parameter "after" must be what the header `+runHeader+` said, a dash and the "seq" of a decision`)
	}
	return run, nil
}

func eventFilter(r *http.Request, box policy.BoxID) (EventFilter, bool, error) {
	f := EventFilter{Box: box}
	query := r.URL.Query()
	follow, err := flag(query.Get("follow"))
	if err != nil {
		return f, false, refuse(http.StatusUnprocessableEntity, `query parameter "follow" must be true or false`)
	}
	if f.Denied, err = flag(query.Get("denied")); err != nil {
		return f, false, refuse(http.StatusUnprocessableEntity, `query parameter "denied" must be true or false`)
	}
	if since := query.Get("since"); since != "" {
		if f.Since, err = parseSince(since, time.Now()); err != nil {
			return f, false, refuse(http.StatusUnprocessableEntity, `query parameter "since" must be a time (2026-01-02T15:04:05Z), Unix seconds or a duration back from now (10m)`)
		}
	}
	return f, follow, nil
}

func flag(text string) (bool, error) {
	if text == "" {
		return false, nil
	}
	return strconv.ParseBool(text)
}

func parseSince(text string, now time.Time) (time.Time, error) {
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.Unix(seconds, 0), nil
	}
	if back, err := time.ParseDuration(text); err == nil {
		return now.Add(-back.Abs()), nil
	}
	return time.Parse(time.RFC3339Nano, text)
}

// eventWriter writes decisions as NDJSON or server-sent events.
type eventWriter struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	sse bool
}

// runHeader names the run of the gateway whose decisions a stream has.
const runHeader = "Boxgate-Run"

func (s *eventWriter) begin(run string) {
	s.w.Header().Set(runHeader, run)
	s.w.Header().Set("Content-Type", ndjson)
	if s.sse {
		s.w.Header().Set("Content-Type", eventStream)
	}
	s.w.Header().Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
}

func (s *eventWriter) flush() error { return s.rc.Flush() }

// all writes past events; it fails when the client disconnected.
func (s *eventWriter) all(events []audit.Event) error {
	for _, e := range events {
		if err := s.event(e); err != nil {
			return err
		}
	}
	return s.flush()
}

func (s *eventWriter) event(e audit.Event) error { return s.write("decision", e) }

// lostView reports in the stream that the client was too slow.
type lostView struct {
	Lost uint64 `json:"lost"`
}

func (s *eventWriter) lost(n uint64) error { return s.write("lost", lostView{n}) }

// gapView reports in the stream that decisions may be missing from it.
type gapView struct {
	Gap string `json:"gap"`
}

func (s *eventWriter) gap(why string) error { return s.write("gap", gapView{why}) }

// ping keeps the connection alive; without it a dead client would be noticed only at the next decision.
func (s *eventWriter) ping() error {
	line := "\n" // readers of NDJSON skip empty lines
	if s.sse {
		line = ": ping\n\n"
	}
	_, err := s.w.Write([]byte(line))
	return err
}

func (s *eventWriter) write(name string, v any) error {
	text := event(name, v)
	if !s.sse {
		line, err := json.Marshal(v)
		if err != nil {
			return err
		}
		text = append(line, '\n')
	}
	_, err := s.w.Write(escapeControls(text))
	return err
}

// escapeControls escapes characters in JSON text that JSON allows and a terminal obeys: DEL, the C1 controls and those
// that change the direction of text. They can only be inside strings, where \u is equivalent.
func escapeControls(text []byte) []byte {
	obeyed := func(r rune) bool {
		return r >= 0x7f && r <= 0x9f || r >= 0x200e && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069
	}
	if !bytes.ContainsFunc(text, obeyed) {
		return text
	}
	var out bytes.Buffer
	for _, r := range string(text) {
		if obeyed(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	return out.Bytes()
}

// explainBody is a destination to judge.
type explainBody struct {
	Host     string `json:"host,omitempty" doc:"name, if it is known"`
	IP       string `json:"ip,omitempty" doc:"address, if it is known"`
	Port     *int64 `json:"port,omitempty" doc:"443 if not given"`
	Protocol string `json:"protocol,omitempty" doc:"tcp (default), udp or icmp"`
	Method   string `json:"method,omitempty" doc:"of an HTTP request"`
	Path     string `json:"path,omitempty" doc:"of an HTTP request, without the query"`
}

// decisionView is a decision.
type decisionView struct {
	Verdict  string        `json:"verdict" doc:"allow or deny"`
	Reason   policy.Reason `json:"reason"`
	Rule     string        `json:"rule,omitempty" doc:"the rule as written that decided"`
	Version  uint64        `json:"version"`
	DialName bool          `json:"dial_name,omitempty" doc:"holds for the name: the gateway dials one of its addresses and judges that one again"`
}

func (b *explainBody) request(box policy.BoxID) (policy.Request, error) {
	var p problems
	req := policy.Request{Stage: policy.StageConn, Box: box, Port: 443, Protocol: policy.Protocol(b.Protocol), Method: b.Method, Path: b.Path}
	var err error
	if b.Host == "" && b.IP == "" {
		p.add("", "host or ip is required")
	}
	if b.Host != "" {
		if req.Name, err = policy.ParseName(b.Host); err != nil {
			p.add("/host", "%v", err)
		}
	}
	if b.IP != "" {
		if req.Addr, err = netip.ParseAddr(b.IP); err != nil || req.Addr.Zone() != "" {
			p.add("/ip", "must be an IPv4 or IPv6 address")
		}
	}
	if b.Port != nil {
		if *b.Port < 1 || *b.Port > 65535 {
			p.add("/port", "must be between 1 and 65535")
		}
		req.Port = uint16(*b.Port)
	}
	switch req.Protocol {
	case "":
		req.Protocol = policy.TCP
	case policy.TCP, policy.UDP:
	case policy.ICMP:
		req.Port = 0
	default:
		p.add("/protocol", "must be tcp, udp or icmp")
	}
	if b.Path != "" && !strings.HasPrefix(b.Path, "/") {
		p.add("/path", "must begin with /")
	}
	if b.Method != "" || b.Path != "" {
		req.Stage = policy.StageHTTP
	}
	return req, p.err()
}

func (a *API) explain(w http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	var body explainBody
	if err := a.decode(w, r, &body); err != nil {
		return reply{}, err
	}
	req, err := body.request(box.ID)
	if err != nil {
		return reply{}, err
	}
	d, err := a.Host.Explain(r.Context(), box.ID, req)
	if err != nil {
		return reply{}, err
	}
	return reply{body: decisionView{d.Verdict.String(), d.Reason, d.Rule, d.Version, d.DialName}}, nil
}
