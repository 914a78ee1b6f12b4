// Package endpoint answers the requests of boxes to the gateway: a box reads its policy and its denials, asks for access, and
// waits for the answers. The caller has identified the box; each answer is about that box only.
package endpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/strict"
	"boxgate/audit"
	"boxgate/boundary"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Host has the data of the endpoint. Errors are as in package api; their messages are shown to the box.
type Host interface {
	// Asks reports whether a box may use the endpoint.
	Asks(id policy.BoxID) bool
	// Allow counts a request of a box, and reports whether it is within the rate.
	Allow(id policy.BoxID) bool
	// Serves reports whether this process still holds the requests. During a replacement it waits for the successor, or for ctx.
	Serves(ctx context.Context) bool
	// Asked returns the ID of the open request of a box for a denied destination, or "".
	Asked(id policy.BoxID, d boundary.Denial) string
	// Boundary returns the policy of a box as it may see it.
	Boundary(ctx context.Context, id policy.BoxID) (boundary.Policy, error)
	// Denials returns the latest denials of a box, oldest first.
	Denials(ctx context.Context, id policy.BoxID) ([]audit.Event, error)
	// Ask stores a request for access. created is false if it was made before.
	Ask(ctx context.Context, id policy.BoxID, r api.ApprovalRequest) (a api.Approval, created bool, err error)
	// Approvals returns the requests of a box, oldest first.
	Approvals(ctx context.Context, id policy.BoxID) ([]api.Approval, error)
	// Approval returns a request of a box.
	Approval(ctx context.Context, id policy.BoxID, approval string) (api.Approval, error)
	// Wait returns a request of a box once it is answered, or as it is when ctx ends.
	Wait(ctx context.Context, id policy.BoxID, approval string) (api.Approval, error)
	// CA returns the certificate of the authority that the box must trust, as PEM.
	CA(ctx context.Context, id policy.BoxID) ([]byte, error)
}

// Limits of requests.
const (
	mostBody    = 16 << 10         // bytes
	mostWait    = 60 * time.Second // for an answer
	mostDenials = 50               // in an answer
)

// Endpoint serves the endpoint of all boxes. Use [New]. Safe for concurrent use.
type Endpoint struct {
	host Host
	mux  *http.ServeMux
}

// New returns an endpoint with the data of host.
func New(host Host) *Endpoint {
	e := &Endpoint{host: host, mux: http.NewServeMux()}
	for pattern, handle := range map[string]handler{
		"GET /v1/policy": e.policy, "GET /v1/denials": e.denials, "GET /v1/ca": e.ca, "GET /ca.pem": e.ca, "GET /AGENTS.md": agents,
		"POST /v1/requests": e.ask, "GET /v1/requests": e.list, "GET /v1/requests/{id}": e.get, "GET /v1/requests/{id}/wait": e.wait,
	} {
		e.mux.Handle(pattern, handle)
	}
	return e
}

// Serves reports whether the requests of a box to a host are for the endpoint.
func (e *Endpoint) Serves(box *policy.Box, host name.Name) bool {
	return host == boundary.Name && box != nil && e.host.Asks(box.ID)
}

// Asked returns the ID of the open request of a box for a denied destination, or "".
func (e *Endpoint) Asked(box *policy.Box, d boundary.Denial) string { return e.host.Asked(box.ID, d) }

// boxKey is the context key of the box.
type boxKey struct{}

// boxOf returns the box that makes a request.
func boxOf(r *http.Request) *policy.Box {
	if box, ok := r.Context().Value(boxKey{}).(*policy.Box); ok {
		return box
	}
	return &policy.Box{} // no box has an empty ID
}

// ServeBox answers a request of a box. The caller has checked its Host.
func (e *Endpoint) ServeBox(box *policy.Box, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !e.host.Asks(box.ID) { // it may have been turned off since
		fail(w, api.Errorf(api.ErrForbidden, "the endpoint is not open to this box"))
		return
	}
	if !e.host.Allow(box.ID) {
		w.Header().Set("Retry-After", "1")
		fail(w, api.Errorf(api.ErrLimit, "the box sends more requests a second to the endpoint than it may"))
		return
	}
	if !e.serves(r) {
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "1")
		fail(w, errReplaced)
		return
	}
	e.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), boxKey{}, box)))
}

// errReplaced refuses requests on connections of a process that was replaced.
var errReplaced = api.Errorf(api.ErrUnavailable, "the gateway was replaced: repeat the request on another connection")

// serves reports whether this process may answer a request.
func (e *Endpoint) serves(r *http.Request) bool {
	ctx, cancel := context.WithTimeout(r.Context(), mostWait)
	defer cancel()
	return e.host.Serves(ctx)
}

// handler answers a request with a status and a value as JSON. A nil value means that it has written the response itself.
type handler func(w http.ResponseWriter, r *http.Request, id policy.BoxID) (int, any, error)

// ServeHTTP implements [http.Handler].
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, v, err := h(w, r, boxOf(r).ID)
	switch {
	case err != nil:
		fail(w, err)
	case v != nil:
		writeJSON(w, status, "application/json", v)
	}
}

// fail answers with an error: a problem as in denials (RFC 9457). Errors that are not meant for callers are not shown.
func fail(w http.ResponseWriter, err error) {
	status, shown := problem.StatusOf(err)
	body := map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": shown.Error}
	writeJSON(w, status, "application/problem+json", body)
}

// writeJSON writes text of the box only as ASCII, so that no terminal reads it as commands or reverses it.
func writeJSON(w http.ResponseWriter, status int, kind string, v any) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		http.Error(w, "{}", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write(ascii(out.Bytes())) // the box may have gone
}

// ascii returns JSON with every character outside ASCII, and DEL, as an escape (RFC 8259, 7).
func ascii(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch {
		case r < 0x7f:
			out = append(out, byte(r))
		case r > 0xffff:
			r -= 0x10000
			out = appendUnit(appendUnit(out, 0xd800+r>>10), 0xdc00+r&0x3ff)
		default:
			out = appendUnit(out, r)
		}
	}
	return out
}

func appendUnit(out []byte, u rune) []byte {
	const digits = "0123456789abcdef"
	return append(out, '\\', 'u', digits[u>>12&15], digits[u>>8&15], digits[u>>4&15], digits[u&15])
}

func agents(w http.ResponseWriter, _ *http.Request, _ policy.BoxID) (int, any, error) {
	w.Header().Set("Content-Type", "text/markdown; charset=utf-8")
	_, err := io.WriteString(w, boundary.Agents)
	return 0, nil, err
}

func (e *Endpoint) ca(w http.ResponseWriter, r *http.Request, id policy.BoxID) (int, any, error) {
	pem, err := e.host.CA(r.Context(), id)
	if err != nil {
		return 0, nil, err
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, _ = w.Write(pem)
	return 0, nil, nil
}

func (e *Endpoint) policy(_ http.ResponseWriter, r *http.Request, id policy.BoxID) (int, any, error) {
	b, err := e.host.Boundary(r.Context(), id)
	return http.StatusOK, b, err
}

// denialView is a denial with the steps that a program in the box can take.
type denialView struct {
	Time      time.Time    `json:"time"`
	Stage     policy.Stage `json:"stage"`
	Host      string       `json:"host,omitempty"`
	Addr      string       `json:"addr,omitempty"`
	Port      uint16       `json:"port,omitempty"`
	Protocol  string       `json:"protocol,omitempty"`
	Method    string       `json:"method,omitempty"`
	Path      string       `json:"path,omitempty"`
	Reason    name.Reason  `json:"reason"`
	Rule      string       `json:"rule,omitempty"`
	Count     uint64       `json:"count,omitempty"`
	NextSteps []string     `json:"next_steps,omitempty"`
}

func (e *Endpoint) denials(_ http.ResponseWriter, r *http.Request, id policy.BoxID) (int, any, error) {
	events, err := e.host.Denials(r.Context(), id)
	if err != nil {
		return 0, nil, err
	}
	views := []denialView{}
	for _, ev := range events[max(0, len(events)-mostDenials):] {
		v := denialView{
			Time: ev.Time, Stage: ev.Stage, Host: ev.Name, Port: ev.Port, Protocol: string(ev.Protocol), Method: ev.Method, Path: ev.Path, Reason: ev.Reason,
			Rule: policy.Decision{Reason: ev.Reason, Rule: ev.Rule}.ShownRule(), Count: ev.Count,
		}
		if ev.Addr.IsValid() {
			v.Addr = ev.Addr.String()
		}
		v.NextSteps = e.stepsOf(boxOf(r), &v)
		views = append(views, v)
	}
	return http.StatusOK, map[string]any{"denials": views}, nil
}

// stepsOf returns the next steps after a denial. An approval for an address opens all its ports.
func (e *Endpoint) stepsOf(box *policy.Box, v *denialView) []string {
	d := boundary.Denial{Reason: v.Reason, Rule: v.Rule, Host: v.Host, Port: v.Port, Method: v.Method, Path: v.Path}
	switch {
	case v.Host == "":
		d.Host, d.Port = v.Addr, 0
	case v.Stage == policy.StageDNS:
		d.Port = 0
	}
	d.Asked = e.host.Asked(box.ID, d)
	return boundary.NextSteps(box.Policy.Load(), d)
}

// askBody is a request for access.
type askBody struct {
	Host      string `json:"host"`
	Port      uint16 `json:"port"`
	Method    string `json:"method"` // with path: only such requests
	Path      string `json:"path"`
	Reason    string `json:"reason"`
	ExpiresIn *int64 `json:"expires_in"` // seconds
}

func (e *Endpoint) ask(w http.ResponseWriter, r *http.Request, id policy.BoxID) (int, any, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		w.Header().Set("Accept", "application/json")
		return 0, nil, problem.Refuse(http.StatusUnsupportedMediaType, "send the request as application/json")
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, mostBody+1))
	if err != nil || len(text) > mostBody {
		return 0, nil, problem.Refuse(http.StatusRequestEntityTooLarge, "the request is larger than 16 KiB")
	}
	var body askBody
	if err := strict.Unmarshal(text, &body); err != nil {
		return 0, nil, err
	}
	ask := api.ApprovalRequest{Destination: api.Destination{Host: body.Host, Port: body.Port, Method: body.Method, Path: body.Path}, Reason: body.Reason}
	if body.ExpiresIn != nil {
		if *body.ExpiresIn < 1 || *body.ExpiresIn > 30*24*3600 {
			return 0, nil, problem.Invalid("/expires_in", "must be between 1 and 2592000 seconds")
		}
		ask.Lasts = time.Duration(*body.ExpiresIn) * time.Second
	}
	a, created, err := e.host.Ask(r.Context(), id, ask)
	if err != nil {
		return 0, nil, err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return status, viewOf(a), nil
}

// requestView is a request as the box sees it. It does not show who has answered.
type requestView struct {
	ID         string            `json:"id"`
	Host       string            `json:"host"`
	Port       uint16            `json:"port,omitempty"`
	Method     string            `json:"method,omitempty"`
	Path       string            `json:"path,omitempty"`
	Reason     string            `json:"reason"`
	State      api.ApprovalState `json:"state"`
	Answer     string            `json:"answer,omitempty"`      // reason of the answer
	NeedsHuman string            `json:"needs_human,omitempty"` // why a person has to answer
	Until      *time.Time        `json:"until,omitempty"`       // end of the access
	CreatedAt  time.Time         `json:"created_at"`
	ExpiresAt  time.Time         `json:"expires_at"`
	URL        string            `json:"url"`
	WaitURL    string            `json:"wait_url,omitempty"`
}

func viewOf(a api.Approval) requestView {
	v := requestView{
		ID: a.ID, Host: a.Host, Port: a.Port, Method: a.Method, Path: a.Path, Reason: a.Reason, State: a.State, Answer: a.Answer, NeedsHuman: a.Human, CreatedAt: a.CreatedAt, ExpiresAt: a.ExpiresAt,
		URL: boundary.URL + "/v1/requests/" + a.ID,
	}
	if !a.Until.IsZero() {
		v.Until = &a.Until
	}
	if a.State == api.ApprovalOpen {
		v.WaitURL = v.URL + "/wait"
	}
	return v
}

func (e *Endpoint) list(_ http.ResponseWriter, r *http.Request, id policy.BoxID) (int, any, error) {
	list, err := e.host.Approvals(r.Context(), id)
	if err != nil {
		return 0, nil, err
	}
	views := []requestView{}
	for _, a := range list {
		views = append(views, viewOf(a))
	}
	return http.StatusOK, map[string]any{"requests": views}, nil
}

func (e *Endpoint) get(_ http.ResponseWriter, r *http.Request, id policy.BoxID) (int, any, error) {
	a, err := e.host.Approval(r.Context(), id, r.PathValue("id"))
	return http.StatusOK, viewOf(a), err
}

func (e *Endpoint) wait(w http.ResponseWriter, r *http.Request, id policy.BoxID) (int, any, error) {
	lasts := mostWait
	if text := r.URL.Query().Get("timeout"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 0 {
			return 0, nil, problem.Refuse(http.StatusUnprocessableEntity, `query parameter "timeout" must be a number of seconds`)
		}
		lasts = min(lasts, time.Duration(min(seconds, 3600))*time.Second)
	}
	ctx, cancel := context.WithTimeout(r.Context(), lasts)
	defer cancel()
	a, err := e.host.Wait(ctx, id, r.PathValue("id"))
	if err == nil && a.State == api.ApprovalOpen && ctx.Err() == nil { // another process goes on
		w.Header().Set("Connection", "close")
	}
	return http.StatusOK, viewOf(a), err
}
