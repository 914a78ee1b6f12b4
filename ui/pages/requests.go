package pages

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
)

// request is a request of a box for access, as the API shows it. Reason is text of the box.
type request struct {
	ID, Box, State, Host, Entry, Reason, Obstacle, Barred, Answer string

	Port       uint16
	BoxName    string `json:"box_name"`
	ExpiresIn  int64  `json:"expires_in"`
	NeedsHuman string `json:"needs_human"`
	By         string `json:"answered_by"`
	Until      stamp
	Version    uint64 `json:"policy_version"`
	CreatedAt  stamp  `json:"created_at"`
	ExpiresAt  stamp  `json:"expires_at"`
	AnsweredAt stamp  `json:"answered_at"`
	Candidate  *struct {
		Digest, Opens, Denied, Mode string
		Headers                     []string
		Rules                       int
		NotAlways                   string `json:"not_always"`
	}
}

// Label returns the name of the box, or its ID.
func (r request) Label() string { return cmp.Or(r.BoxName, r.Box) }

// Open reports whether the request waits for an answer.
func (r request) Open() bool { return r.State == string(api.ApprovalOpen) }

// Lines returns the lines of the reason.
func (r request) Lines() []string { return strings.Split(r.Reason, "\n") }

// OneLine returns the reason in one line.
func (r request) OneLine() string { return strings.Join(strings.Fields(r.Reason), " ") }

// Path returns the path of the request's page.
func (r request) Path() string { return pathTo("requests", r.Box, r.ID) }

// Asked returns the duration of access that the box asks for, or "".
func (r request) Asked() string {
	if r.ExpiresIn == 0 {
		return ""
	}
	return duration(r.ExpiresIn)
}

// duration formats seconds in words.
func duration(seconds int64) string {
	for _, unit := range []struct {
		name string
		size int64
	}{{"day", 24 * 3600}, {"hour", 3600}, {"minute", 60}, {"second", 1}} {
		if n := seconds / unit.size; n > 0 && seconds%unit.size == 0 {
			if n == 1 {
				return "1 " + unit.name
			}
			return strconv.FormatInt(n, 10) + " " + unit.name + "s"
		}
	}
	return (time.Duration(seconds) * time.Second).String()
}

func requestRoutes() []Route {
	return []Route{
		{"GET " + Prefix + "requests", requestsPage},
		{"GET " + Prefix + "requests/{box}/{id}", requestPage},
		{"POST " + Prefix + "requests/{box}/{id}", answerRequest},
	}
}

// requestList is the data of the page of requests.
type requestList struct {
	Requests []request
	State    string // open, answered, or a state of the API
	States   []string
	Box      string
	Pager    Pager
}

// requestStates are the values of the filter. The page shows open requests first.
var requestStates = []string{"open", "answered", "once", "always", "denied"}

func requestsPage(v *Visit) (View, error) {
	data := requestList{State: cmp.Or(v.asked("state"), "open"), States: requestStates, Box: v.asked("box")}
	if !slices.Contains(requestStates, data.State) {
		data.State = requestStates[0]
	}
	path, query := "/v2/approvals", url.Values{}
	if data.Box != "" {
		path = api.BoxPath(data.Box, "approvals")
	}
	if data.State != "answered" {
		query.Set("state", data.State)
	}
	if err := v.get(path+"?"+query.Encode(), &data.Requests); err != nil {
		return View{}, err
	}
	if data.State != "open" { // the latest answer first
		data.Requests = slices.DeleteFunc(data.Requests, request.Open)
		slices.SortStableFunc(data.Requests, func(a, b request) int { return b.AnsweredAt.Compare(a.AnsweredAt.Time) })
	}
	data.Requests, data.Pager = paged(v, data.Requests)
	return View{Name: "requests", Title: "Requests for access", Section: "Requests", Data: data}, nil
}

// requestForm is the data of the page of one request.
type requestForm struct {
	request
	Form      Form
	MayAnswer bool     // by the role
	Changed   bool     // the effect is not the one that was shown before
	Lasts     []choice // durations for an answer for a time
}

// choice is an option of a list.
type choice struct {
	Value, Text string
	Selected    bool
}

// durations are the durations that the form offers, in seconds, besides the one that the box asks for.
var durations = []int64{15 * 60, 3600, 8 * 3600, 24 * 3600, 7 * 24 * 3600}

// lasts returns the choices of a duration: the one that was chosen before, else the one that the box asks for but at most an
// hour, is selected.
func lasts(r request, f Form) (list []choice) {
	all := slices.Clone(durations)
	if r.ExpiresIn > 0 && !slices.Contains(all, r.ExpiresIn) {
		all = append(all, r.ExpiresIn)
		slices.Sort(all)
	}
	selected := f.Value("expires_in", "3600")
	if f.Values == nil && r.ExpiresIn > 0 && r.ExpiresIn < 3600 {
		selected = strconv.FormatInt(r.ExpiresIn, 10)
	}
	for _, seconds := range all {
		value, text := strconv.FormatInt(seconds, 10), duration(seconds)
		if seconds == r.ExpiresIn {
			text += " (as the box asks)"
		}
		list = append(list, choice{value, text, value == selected})
	}
	return list
}

// apiPath returns the path of the request of a visit in the API.
func apiPath(v *Visit) string {
	return api.BoxPath(v.R.PathValue("box"), "approvals", url.PathEscape(v.R.PathValue("id")))
}

func requestPage(v *Visit) (View, error) { return showRequest(v, Form{}, 0, "") }

// showRequest shows a request with its current effect. shown is the digest of the candidate that the form was for.
func showRequest(v *Visit, f Form, status int, shown string) (View, error) {
	data := requestForm{Form: f, MayAnswer: v.is(api.RoleAdmin, api.RoleCreator, api.RoleBox, api.RoleApprover)}
	if err := v.get(apiPath(v), &data.request); err != nil {
		return View{}, err
	}
	data.Changed = shown != "" && data.Candidate != nil && data.Candidate.Digest != shown
	data.Lasts = lasts(data.request, f)
	return View{Name: "request", Title: "Request for access", Section: "Requests", Status: status, Data: data}, nil
}

// answerFields are the fields of the form.
var answerFields = []string{"answer", "expires_in", "reason", "candidate"}

// answerRequest sends an answer. An approval names the candidate that the page has shown: if its effect is another one by now,
// the API refuses the answer, and the page shows the request again with the new effect.
func answerRequest(v *Visit) (View, error) {
	body := map[string]any{"answer": v.field("answer"), "reason": v.field("reason")}
	switch v.field("answer") {
	case string(api.ApprovalOnce):
		body["candidate"] = v.field("candidate")
		if seconds, err := strconv.ParseInt(v.field("expires_in"), 10, 64); err == nil {
			body["expires_in"] = seconds
		}
	case string(api.ApprovalAlways):
		body["candidate"] = v.field("candidate")
	}
	err := v.send("POST", apiPath(v), body, nil)
	if err == nil {
		return View{Location: v.R.URL.Path}, nil
	}
	if isMissing(err) {
		return View{}, err
	}
	f, status, err := v.refused(err, answerFields...)
	if err != nil {
		return View{}, err
	}
	return showRequest(v, f, status, v.field("candidate"))
}
