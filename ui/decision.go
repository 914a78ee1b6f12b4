package ui

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/remedy"
	"boxgate/policy"
)

func (u *UI) decisionRoutes() []route {
	return []route{{"GET /ui/boxes/{id}/decisions/{seq}", serveDecision}}
}

// decisionPage is the input of the page of one decision.
type decisionPage struct {
	Box     box
	Row     row
	Event   audit.Event
	Meaning string
	Remedy  advice // empty: an allowed destination
	Near    string // the entry of the policy that nearly allows it, and why it does not
	Allow   string // path of the page that allows it; empty: the caller may not, or no entry of a policy does
	Policy  bool   // the caller may read the policy
	Now     *judgement
}

// advice is a sentence of package remedy, and the command in it.
type advice struct{ Before, Command, After string }

// adviceOf splits a sentence at its first command, which follows a colon and ends before a bracket, a semicolon or at the end.
func adviceOf(text string) advice {
	text = Visible(text)
	if text == "" {
		return advice{}
	}
	text = strings.ToUpper(text[:1]) + text[1:] + "."
	at := strings.Index(text, ": gateway ")
	if at < 0 {
		return advice{Before: text}
	}
	before, command := text[:at+2], text[at+2:]
	end := strings.IndexAny(command, "(;,")
	if end < 0 {
		end = len(command) - 1
	}
	end = len(strings.TrimRight(command[:end], " "))
	return advice{before, command[:end], command[end:]}
}

// judgement is the decision of the policy in force.
type judgement struct {
	Verdict policy.Verdict `json:"verdict"`
	Reason  string         `json:"reason"`
	Rule    string         `json:"rule"`
	Version uint64         `json:"version"`
	Beaten  []string       `json:"beaten"`
	Unknown []string       `json:"unknown"`
}

// Event returns the judgement for the mark of its verdict.
func (j *judgement) Event() audit.Event { return audit.Event{Verdict: j.Verdict} }

// errNoDecision answers for a decision that neither the memory nor the history has.
var errNoDecision = &api.ResponseError{Status: http.StatusNotFound, Message: "This decision is no longer known. The log of the gateway may have it."}

// serveDecision explains one decision: the destination, the verdict, the rule, the remedy, and the decision of the policy in force.
func serveDecision(v *visit) (view, error) {
	b, head, err := v.box()
	if err != nil {
		return view{}, err
	}
	e, err := v.decision(string(b.ID))
	if err != nil {
		return view{}, err
	}
	p := decisionPage{
		Box: b, Row: rowOf(e), Event: e, Meaning: remedy.Meaning(e.Reason), Remedy: adviceOf(remedy.For(e)), Policy: head.Status != "",
		Near: Visible(remedy.NearMiss(policy.Spec{Mode: b.Policy.Mode, AllowedDomains: b.Policy.AllowedDomains}, e)),
	}
	if mayChange(v.session.Caller.Role) {
		p.Allow = allowPath(e)
	}
	if p.Now, err = v.judge(string(b.ID), e); err != nil {
		return view{}, err
	}
	head.Tab = "Decisions"
	return view{name: "decision", title: "One decision", section: "Boxes", box: head, data: p}, nil
}

// judge asks for the decision of the policy in force about the same destination. It returns nil if the caller may not ask, or if
// the decision was not about a destination of the box.
func (v *visit) judge(id string, e audit.Event) (*judgement, error) {
	if e.Stage == policy.StageURL || e.Name == "" && !e.Addr.IsValid() {
		return nil, nil
	}
	in := map[string]any{"port": cmp.Or(e.Port, remedy.HTTPSPort)}
	if e.Protocol != "" && e.Stage != policy.StageDNS {
		in["protocol"] = e.Protocol
	}
	if e.Name != "" {
		in["host"] = e.Name
	}
	if e.Addr.IsValid() && e.Stage != policy.StageDNS {
		in["ip"] = e.Addr.Unmap().WithZone("").String()
	}
	if e.Stage == policy.StageHTTP && e.Method != "" && e.Path != "" {
		in["method"], in["path"] = e.Method, e.Path
	}
	var now judgement
	err := v.client.Do(v.r.Context(), http.MethodPost, api.BoxPath(id, "egress", "explain"), in, &now)
	if isRefusal(err) { // a name that is not one, or a caller who may not ask
		return nil, nil
	}
	return &now, err
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
	if _, err := readEvents(v.r.Context(), v.client, api.BoxPath(id, "egress")+"?"+since.Encode(), look); err != nil {
		return audit.Event{}, err
	}
	if found == nil {
		since.Set("until", at.Add(time.Millisecond).UTC().Format(time.RFC3339Nano))
		if _, err := readEvents(v.r.Context(), v.client, api.BoxPath(id, "egress", "history")+"?"+since.Encode(), look); err != nil && !isRefusal(err) {
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
