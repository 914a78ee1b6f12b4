package ui

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/ui/preview"
)

func (u *UI) policyRoutes() []route {
	return []route{
		{"GET /ui/boxes/{id}/policy", servePolicy},
		{"POST /ui/boxes/{id}/policy", changePolicy},
		{"POST /ui/boxes/{id}/policy/end", endLease},
	}
}

// policyPage is the input of the policy editor.
type policyPage struct {
	Box       box
	State     preview.State
	Text      string // as it is edited
	Version   uint64 // that was edited
	Keep      bool   // temporary entries go on
	Done      string // the success of the last form
	Notice    string // why the policy was not changed
	Change    *preview.Change
	Source    []preview.SourceLine // the text with its notes
	Confirm   string
	Wrong     string // with Confirm
	MayChange bool
}

// Rows returns the height of the editor in lines.
func (p *policyPage) Rows() int { return max(8, min(32, strings.Count(p.Text, "\n")+3)) }

// Name returns the text that a person types to confirm a wide change.
func (p *policyPage) Name() string { return p.Box.Label() }

// done are the messages after a form by the query that its redirect has.
var done = map[string]string{
	"allowed": "The destination is allowed now.",
	"applied": "The policy is in force now, on open connections too.",
	"ended":   "The temporary entry has ended.",
}

func (v *visit) readPolicy() (p policyPage, head *boxHead, err error) {
	if p.Box, head, err = v.box(); err != nil {
		return p, head, err
	}
	p.State, err = preview.Read(v.r.Context(), v.client, string(p.Box.ID))
	p.Text, p.Version, p.Keep, p.MayChange = p.State.Text(), p.State.Version, true, mayChange(v.session.Caller.Role)
	return p, head, err
}

func policyView(p *policyPage, head *boxHead, status int) view {
	return view{name: "policy", title: "Policy", section: "Boxes", box: head, data: p, status: status}
}

// servePolicy shows the policy of a box in an editor.
func servePolicy(v *visit) (view, error) {
	p, head, err := v.readPolicy()
	p.Done = done[v.r.URL.Query().Get("done")]
	return policyView(&p, head, http.StatusOK), err
}

// changePolicy shows the effect of an edited policy, or makes the change if the person has seen its effect.
func changePolicy(v *visit) (view, error) {
	p, head, err := v.readPolicy()
	if err != nil {
		return view{}, err
	}
	form := v.r.PostForm
	p.Text, p.Keep, p.Confirm = form.Get("policy"), form.Has("keep"), strings.TrimSpace(form.Get("confirm"))
	if p.Version, err = strconv.ParseUint(form.Get("version"), 10, 64); err != nil {
		return view{}, &api.ResponseError{Status: http.StatusBadRequest, Message: "The form is incomplete: open the page again."}
	}
	if p.Version != p.State.Version {
		p.Notice = "Nothing was changed: version " + strconv.FormatUint(p.State.Version, 10) + " came into force while you edited version " +
			strconv.FormatUint(p.Version, 10) + ". Your text is below; the effect is that of applying it now. The history shows the other change."
		p.Version = p.State.Version
	}
	if err := v.check(&p); err != nil {
		return view{}, err
	}
	switch {
	case len(p.Change.Problems) > 0:
		return policyView(&p, head, http.StatusUnprocessableEntity), nil
	case p.Notice != "":
		return policyView(&p, head, http.StatusConflict), nil
	case form.Get("do") != "apply":
		return policyView(&p, head, http.StatusOK), nil
	case !p.Change.Confirmed(form.Get("preview")):
		p.Notice = "Nothing was changed: the text, or its effect, is another one than you had checked. This is the effect now."
		return policyView(&p, head, http.StatusConflict), nil
	case p.Change.Retype() && p.Confirm != p.Name():
		p.Wrong = "Type " + p.Name() + " exactly as it is shown."
		return policyView(&p, head, http.StatusUnprocessableEntity), nil
	}
	err = p.Change.Apply(v.r.Context(), v.client, string(p.Box.ID))
	if preview.Changed(err) {
		return view{location: boxPath(p.Box.ID, "policy")}, nil
	}
	return view{location: boxPath(p.Box.ID, "policy") + "?done=applied"}, err
}

// check fills in the effect of the text.
func (v *visit) check(p *policyPage) error {
	ch, err := preview.Check(v.r.Context(), v.client, string(p.Box.ID), p.Text, p.Version, p.Keep)
	p.Change = &ch
	if notes := preview.NotesOf(&ch); len(notes) > 0 {
		p.Source = preview.Excerpt(preview.Source(p.Text, notes))
	}
	return err
}

// endLease ends a temporary entry.
func endLease(v *visit) (view, error) {
	form := v.r.PostForm
	action, entry := form.Get("action"), form.Get("entry")
	path := api.BoxPath(v.r.PathValue("id"), "config/network-policy/leases") + "?" + url.Values{"action": {action}, "entry": {entry}}.Encode()
	if action == api.ActionAudit { // it has no entry
		path = api.BoxPath(v.r.PathValue("id"), "config/network-policy/enforcement")
		err := v.client.Do(v.r.Context(), "PUT", path, map[string]string{"enforcement": "enforce"}, nil)
		return view{location: boxPath(v.r.PathValue("id"), "policy") + "?done=ended"}, err
	}
	if action == "" || entry == "" { // which would end all
		return view{}, &api.ResponseError{Status: http.StatusBadRequest, Message: "The form is incomplete: open the page again."}
	}
	err := v.client.Do(v.r.Context(), "DELETE", path, nil, nil)
	return view{location: boxPath(v.r.PathValue("id"), "policy") + "?done=ended"}, err
}
