// Package approvals serves the requests of boxes for access, and takes the answers to them.
package approvals

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"boxgate/api"
	"boxgate/api/change"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host keeps the requests of boxes and their answers. Errors are as in package api.
type Host interface {
	// Approvals returns the requests of a box, or of all boxes if id is "", oldest first.
	Approvals(ctx context.Context, id policy.BoxID) ([]api.Approval, error)
	// Approval returns a request of a box.
	Approval(ctx context.Context, id policy.BoxID, approval string) (api.Approval, error)
	// AnswerApproval answers an open request. An approval applies the candidate with the given digest, else the error is an ErrConflict. The
	// policy is nil unless it was changed; the answer is in force when it returns.
	AnswerApproval(ctx context.Context, id policy.BoxID, approval string, given api.ApprovalAnswer) (api.Approval, *api.PolicyState, error)
	// Asks reports whether a box may ask.
	Asks(id policy.BoxID) bool
	// SetAsks changes whether a box may ask, and reports whether it may now. nil: as configured.
	SetAsks(ctx context.Context, id policy.BoxID, on *bool) (bool, error)
}

// Endpoints serves approvals.
type Endpoints struct {
	Boxes   rest.Finder
	Host    Host
	History *history.History
	Bodies  strict.Bodies
}

const (
	boxPath    = "/v2/box/{id}/approvals"
	onePath    = boxPath + "/{approval}"
	askingPath = "/v2/box/{id}/config/approvals"
)

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	one, list := reflect.TypeFor[approvalView](), reflect.TypeFor[[]approvalView]()
	return []rest.Route{
		{Method: "GET", Path: "/v2/approvals", ID: "listApprovals", Summary: "The requests of all boxes for access, oldest first", Query: reflect.TypeFor[listQuery](), Response: list, Handle: e.listAll},
		{Method: "GET", Path: boxPath, ID: "listBoxApprovals", Summary: "The requests of a box for access, oldest first", Query: reflect.TypeFor[listQuery](), Response: list, Handle: e.listBox},
		{Method: "GET", Path: onePath, ID: "getApproval", Summary: "A request for access, and the effect that an approval would have now", Response: one, Handle: e.get},
		{Method: "POST", Path: onePath, ID: "answerApproval", Summary: "Answer a request; an approval applies the candidate that was shown or nothing, and is in force everywhere when the call returns", Request: reflect.TypeFor[answerBody](), Example: `{"answer":"once","expires_in":3600,"reason":"fixtures of the tests","candidate":"0123456789abcdef0123456789abcdef"}`, Response: one, Handle: e.answer},
		{Method: "GET", Path: askingPath, ID: "getAsking", Summary: "Whether a box may ask for access", Response: reflect.TypeFor[askingView](), Handle: e.getAsking},
		{Method: "PUT", Path: askingPath, ID: "setAsking", Summary: "Set whether a box may ask for access", Request: reflect.TypeFor[askingBody](), Example: `{"enabled":true}`, Response: reflect.TypeFor[askingView](), Handle: e.setAsking},
	}
}

// approvalView is a request of a box for access.
type approvalView struct {
	ID         string            `json:"id"`
	Box        policy.BoxID      `json:"box"`
	BoxName    string            `json:"box_name,omitempty"`
	State      api.ApprovalState `json:"state"`
	Host       string            `json:"host"`
	Port       uint16            `json:"port,omitempty"`
	Method     string            `json:"method,omitempty" doc:"of requests that a request rule denies; absent: the destination itself"`
	Path       string            `json:"path,omitempty" doc:"of these requests; a prefix if it ends with a star"`
	Entry      string            `json:"entry" doc:"the entry of a policy that gives the access"`
	Reason     string            `json:"reason" doc:"text of the box: anything may stand there"`
	ExpiresIn  int64             `json:"expires_in,omitempty" doc:"seconds of access that the box asks for"`
	Candidate  *candidateView    `json:"candidate,omitempty" doc:"the effect of an approval under the current policy"`
	Obstacle   string            `json:"obstacle,omitempty" doc:"why it cannot be approved now"`
	Barred     string            `json:"barred,omitempty" doc:"why this API key may not answer it, if approvals.four_eyes requires another one"`
	NeedsHuman string            `json:"needs_human,omitempty" doc:"why the reviewer left it to a person"`
	Answer     string            `json:"answer,omitempty" doc:"reason of the answer"`
	By         string            `json:"answered_by,omitempty" doc:"name of the API key, or reviewer or automatic"`
	Until      int64             `json:"until,omitempty" doc:"end of the access"`
	Version    uint64            `json:"policy_version,omitempty" doc:"of the policy with the access"`
	CreatedAt  int64             `json:"created_at"`
	ExpiresAt  int64             `json:"expires_at" doc:"when the request is forgotten"`
	AnsweredAt int64             `json:"answered_at,omitempty"`
}

// candidateView is the effect of an approval.
type candidateView struct {
	Digest    string   `json:"digest" doc:"identifies the effect; an answer repeats it"`
	Opens     string   `json:"opens"`
	Denied    string   `json:"denied" doc:"reason of the current decision"`
	Before    string   `json:"before,omitempty" doc:"for requests: the request rule that the approval precedes"`
	Mode      string   `json:"mode" doc:"of the policy"`
	Headers   []string `json:"headers,omitempty" doc:"patterns of the header rules that add credentials to requests to it"`
	Rules     int      `json:"rules,omitempty" doc:"number of request rules that continue to apply"`
	NotAlways string   `json:"not_always,omitempty" doc:"why it can be approved only for a time"`
}

func viewOf(a api.Approval, boxName string) approvalView {
	v := approvalView{
		ID: a.ID, Box: a.Box, BoxName: boxName, State: a.State, Host: a.Host, Port: a.Port, Method: a.Method, Path: a.Path, Entry: a.Entry, Reason: a.Reason, ExpiresIn: int64(a.Lasts / time.Second),
		Obstacle: a.Obstacle, Barred: a.Barred, NeedsHuman: a.Human, Answer: a.Answer, By: a.By, Version: a.Version, Until: unix(a.Until), CreatedAt: unix(a.CreatedAt),
		ExpiresAt: unix(a.ExpiresAt), AnsweredAt: unix(a.ClosedAt),
	}
	if c := a.Candidate; c != nil {
		v.Candidate = &candidateView{c.Digest, c.Opens, string(c.Denied), c.Before, string(c.Mode), c.Headers, c.Rules, c.NotAlways}
	}
	return v
}

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// listQuery selects requests.
type listQuery struct {
	State string `json:"state,omitempty" enum:"open once always denied" doc:"only requests in this state"`
}

func (e *Endpoints) listAll(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.list(r, "")
}

func (e *Endpoints) listBox(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.list(r, box.ID)
}

// list answers with the requests of the boxes that the key sees.
func (e *Endpoints) list(r *http.Request, id policy.BoxID) (rest.Reply, error) {
	var q listQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	all, err := e.Host.Approvals(r.Context(), id)
	if err != nil {
		return rest.Reply{}, err
	}
	views, caller, known := []approvalView{}, api.CallerOf(r.Context()), map[policy.BoxID]api.Box{}
	for _, a := range all {
		box, ok := known[a.Box]
		if !ok {
			if box, err = rest.FindBox(r.Context(), e.Boxes, string(a.Box)); err != nil {
				continue // deleted at the same time
			}
			known[a.Box] = box
		}
		if caller.Sees(box) && (q.State == "" || q.State == string(a.State)) {
			views = append(views, viewOf(a, box.Name))
		}
	}
	return rest.Reply{Body: views}, nil
}

func (e *Endpoints) get(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	a, err := e.Host.Approval(r.Context(), box.ID, r.PathValue("approval"))
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewOf(a, box.Name)}, nil
}

// answerBody is an answer to a request.
type answerBody struct {
	Answer    string `json:"answer" enum:"once always denied needs_human" doc:"once: for a time; always: by a change of the policy; needs_human: left open for a person"`
	ExpiresIn *int64 `json:"expires_in,omitempty" doc:"with once: seconds of access; default: as the box asks, or an hour" min:"1" max:"2592000"`
	Reason    string `json:"reason" doc:"for the box and the audit trail; up to 1,000 bytes"`
	Candidate string `json:"candidate,omitempty" doc:"with once and always: the digest of the candidate that was shown"`
}

// mostSeconds is the longest access for a time.
const mostSeconds = 30 * 24 * 3600

func (e *Endpoints) answer(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body answerBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	given := api.ApprovalAnswer{Answer: body.Answer, Reason: body.Reason, Digest: body.Candidate}
	approves := body.Answer == string(api.ApprovalOnce) || body.Answer == string(api.ApprovalAlways)
	switch {
	case approves && body.Candidate == "":
		return rest.Reply{}, problem.Invalid("/candidate", "is missing: repeat the digest of the candidate that was shown")
	case body.ExpiresIn != nil && body.Answer != string(api.ApprovalOnce):
		return rest.Reply{}, problem.Invalid("/expires_in", "goes with the answer once")
	case body.ExpiresIn != nil && (*body.ExpiresIn < 1 || *body.ExpiresIn > mostSeconds):
		return rest.Reply{}, problem.Invalid("/expires_in", "must be between 1 and %d seconds", mostSeconds)
	case body.ExpiresIn != nil:
		given.Lasts = time.Duration(*body.ExpiresIn) * time.Second
	}
	a, state, err := e.Host.AnswerApproval(r.Context(), box.ID, r.PathValue("approval"), given)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "the request %s for access was answered: %s", a.ID, body.Answer)
	return rest.Reply{Body: viewOf(a, box.Name), Change: change.OfApproval(a, given, state)}, nil
}

// askingView reports whether a box may ask.
type askingView struct {
	Enabled bool `json:"enabled"`
}

// askingBody sets whether a box may ask.
type askingBody struct {
	Enabled *bool `json:"enabled" doc:"null: as configured for every box"`
}

func (e *Endpoints) getAsking(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: askingView{e.Host.Asks(box.ID)}}, nil
}

func (e *Endpoints) setAsking(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body askingBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	on, err := e.Host.SetAsks(r.Context(), box.ID, body.Enabled)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: askingView{on}, Change: &rest.Change{Box: box.ID, What: map[string]any{"approvals": map[string]any{"enabled": body.Enabled}}}}, nil
}
