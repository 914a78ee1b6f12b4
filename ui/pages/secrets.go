package pages

import (
	"cmp"
	"net/url"
	"slices"

	"boxgate/api"
	"boxgate/audit/report"
)

// secret is the state of a secret of the configuration, as the API shows it. It never contains the value.
type secret struct {
	Name, Source string
	Valid, Stale bool
	ReadAt       *stamp `json:"read_at"`
	ExpiresAt    *stamp `json:"expires_at"`
	Error        string
}

// State describes the state in a word.
func (s secret) State() string {
	switch {
	case s.Error != "":
		return "failed"
	case s.Stale:
		return "stale"
	case s.Valid:
		return "valid"
	}
	return "not read"
}

// UsesPath returns the path of the page of the uses of the secret.
func (s secret) UsesPath() string { return pathTo("secrets", s.Name, "uses") }

// RefreshPath returns the path of the form that discards its value.
func (s secret) RefreshPath() string { return pathTo("secrets", s.Name, "refresh") }

func secretRoutes() []Route {
	return []Route{
		{"GET " + Prefix + "secrets", secretsPage},
		{"POST " + Prefix + "secrets/{name}/refresh", refreshSecret},
		{"GET " + Prefix + "secrets/{name}/uses", secretUsesPage},
	}
}

// secretList is the data of the page of secrets.
type secretList struct {
	Secrets    []secret
	Pager      Pager
	Form       Form
	MayRefresh bool
	MaySeeUses bool
	ByName     bool // the person may not list secrets
}

// secretsPage lists the secrets. Auditors, who may not list them, ask for the uses of one by its name.
func secretsPage(v *Visit) (View, error) {
	if name := v.asked("name"); name != "" {
		return View{Location: pathTo("secrets", name, "uses")}, nil
	}
	if v.is(api.RoleAuditor) {
		return View{Name: "secrets", Title: "Secrets", Section: "Secrets", Data: secretList{MaySeeUses: true, ByName: true}}, nil
	}
	return showSecrets(v, Form{}, 0)
}

func showSecrets(v *Visit, f Form, status int) (View, error) {
	data := secretList{Form: f, MayRefresh: v.is(api.RoleAdmin), MaySeeUses: v.is(api.RoleAdmin, api.RoleAuditor)}
	var got struct{ Secrets []secret }
	if err := v.get("/v2/secrets", &got); err != nil {
		return View{}, err
	}
	data.Secrets, data.Pager = paged(v, got.Secrets)
	return View{Name: "secrets", Title: "Secrets", Section: "Secrets", Status: status, Data: data}, nil
}

func refreshSecret(v *Visit) (View, error) {
	err := v.send("POST", "/v2/secrets/"+url.PathEscape(v.R.PathValue("name"))+"/refresh", nil, nil)
	if err == nil {
		return View{Location: Prefix + "secrets"}, nil
	}
	f, status, err := v.refused(err)
	if err != nil {
		return View{}, err
	}
	return showSecrets(v, f, status)
}

// secretUses is the data of the page of the uses of a secret.
type secretUses struct {
	report.Uses
	Rows   []report.Use
	Pager  Pager
	Window string
	Form   Form
}

// windows are the values of the filters by time.
var windows = []choice{{Value: "1h", Text: "last hour"}, {Value: "24h", Text: "last day"}, {Value: "7d", Text: "last 7 days"}, {Value: "30d", Text: "last 30 days"}, {Value: "365d", Text: "last year"}}

// Windows returns the choices of the filter by time.
func (s secretUses) Windows() []choice { return selected(windows, s.Window) }

// selected returns choices with one of them selected.
func selected(list []choice, value string) []choice {
	list = slices.Clone(list)
	for i := range list {
		list[i].Selected = list[i].Value == value
	}
	return list
}

func secretUsesPage(v *Visit) (View, error) {
	name := v.R.PathValue("name")
	data := secretUses{Window: cmp.Or(v.asked("since"), "24h")}
	if err := v.get("/v2/secrets/"+url.PathEscape(name)+"/uses?"+url.Values{"since": {data.Window}}.Encode(), &data.Uses); err != nil {
		return View{}, err
	}
	data.Rows, data.Pager = paged(v, data.Uses.Uses)
	return View{Name: "secret-uses", Title: "Uses of a secret", Section: "Secrets", Data: data}, nil
}
