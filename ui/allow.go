package ui

import (
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"boxgate/api/spec"
	"boxgate/observe/replay"
	"boxgate/policy/authority"
	"boxgate/ui/preview"
)

func (u *UI) allowRoutes() []route {
	return []route{
		{"GET /ui/boxes/{id}/allow", serveAllow},
		{"POST /ui/boxes/{id}/allow", makeAllowance},
	}
}

// previewFuncs are the functions of templates that show previews.
var previewFuncs = template.FuncMap{
	"line":    func(l authority.Line) string { return preview.LineText(&l) },
	"outcome": func(r spec.Replay) []string { return preview.Outcome(&r) },
	"traffic": func(l replay.Line) string { return preview.TrafficText(&l) },
}

// term is how long an entry lasts.
type term struct {
	Value string // in the form
	Text  string
	lasts time.Duration // 0: for good
}

// terms are the choices of the form, the default first.
var terms = []term{
	{"1h", "1 hour", time.Hour}, {"15m", "15 minutes", 15 * time.Minute}, {"8h", "8 hours", 8 * time.Hour}, {"24h", "1 day", 24 * time.Hour},
	{"168h", "7 days", 7 * 24 * time.Hour}, {"good", "For good, in the policy", 0},
}

// allowPage is the input of the page that allows a destination.
type allowPage struct {
	Box        box
	Host, Port string // as given
	Term       term
	Terms      []term
	Problems   map[string]string // by field
	Notice     string            // why the entry was not made
	Preview    *preview.Allowance
	Confirm    string // as the person has typed it again
	MayChange  bool
}

// Says describes the entry, for the button that makes it.
func (p *allowPage) Says() string {
	if p.Term.lasts == 0 {
		return p.Preview.Entry.String() + " for good"
	}
	return p.Preview.Entry.String() + " for " + p.Term.Text
}

// Ends returns when the entry would end.
func (p *allowPage) Ends() time.Time { return time.Now().Add(p.Term.lasts) }

// readAllow reads the fields of the form. Without a host the page only has the form.
func (v *visit) readAllow(form url.Values) (p allowPage, head *boxHead, err error) {
	p = allowPage{
		Host: form.Get("host"), Port: form.Get("port"), Terms: terms, Term: terms[0], Problems: map[string]string{},
		MayChange: mayChange(v.session.Caller.Role), Confirm: strings.TrimSpace(form.Get("confirm")),
	}
	if !form.Has("port") {
		p.Port = "443"
	}
	for _, t := range terms {
		if t.Value == form.Get("for") {
			p.Term = t
		}
	}
	p.Box, head, err = v.box()
	return p, head, err
}

// preview fills in the preview, or the problems of the fields.
func (v *visit) preview(p *allowPage) error {
	d, problems := preview.ParseDestination(p.Host, p.Port)
	p.Problems = preview.Fields(problems.List)
	if len(problems.List) > 0 {
		return nil
	}
	a, err := preview.Allow(v.r.Context(), v.client, string(p.Box.ID), d, p.Term.lasts)
	p.Preview = &a
	return err
}

// serveAllow shows the effect of allowing a destination.
func serveAllow(v *visit) (view, error) {
	p, head, err := v.readAllow(v.r.URL.Query())
	if err == nil && p.Host != "" {
		err = v.preview(&p)
	}
	return allowView(&p, head, http.StatusOK), err
}

func allowView(p *allowPage, head *boxHead, status int) view {
	return view{name: "allow", title: "Allow a destination", section: "Boxes", box: head, data: p, status: status}
}

// makeAllowance makes the entry that a person has seen the preview of. If its effect is another one now, or the destination was not typed
// again where that is demanded, it shows the preview again instead.
func makeAllowance(v *visit) (view, error) {
	p, head, err := v.readAllow(v.r.PostForm)
	if err == nil {
		err = v.preview(&p)
	}
	if err != nil {
		return view{}, err
	}
	a := p.Preview
	switch {
	case len(p.Problems) > 0 || a.Refused != "":
		return allowView(&p, head, http.StatusUnprocessableEntity), nil
	case !a.Same(v.r.PostForm.Get("preview")):
		p.Notice = "Nothing was made: the policy, or a header rule, has changed since the preview. This is the effect now."
		return allowView(&p, head, http.StatusConflict), nil
	case a.Retype() && p.Confirm != a.Entry.String():
		p.Problems["confirm"] = "Type " + a.Entry.String() + " exactly as it is shown."
		return allowView(&p, head, http.StatusUnprocessableEntity), nil
	}
	switch err := a.Make(v.r.Context(), v.client, string(p.Box.ID)); {
	case preview.Changed(err):
		p.Notice = "Nothing was made: the policy has changed since the preview. This is the effect now."
		return allowView(&p, head, http.StatusConflict), v.preview(&p)
	case err != nil:
		return view{}, err
	}
	return view{location: boxPath(p.Box.ID, "policy") + "?done=allowed"}, nil
}
