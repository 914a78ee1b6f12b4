// Package pages serves the pages of the dashboard that are not about the traffic of one box: requests for access, named
// policies, header rules, public URLs, API keys, the audit trail, secrets, reports and the state of the gateway.
//
// Each page calls the admin API as the person who has signed in. It leaves out forms that the role of this person does not
// permit, but that is for readability only: the API decides. Problems that the API finds in a form are shown at their
// fields. Package ui renders the pages; their templates are in ui/templates.
package pages

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
)

// Prefix is the path of the dashboard.
const Prefix = "/ui/"

// Visit is a request for a page, or with a form, by a person who has signed in.
type Visit struct {
	W      http.ResponseWriter
	R      *http.Request
	Caller api.Caller
	Client *api.Client // calls the API as Caller
}

// View is the answer to a visit: a page, a redirect to Location, or with Written a response that has been written.
type View struct {
	Name     string // of the template
	Title    string
	Section  string // the current entry of the navigation
	Box      string // ID of the box that the page is about, if any
	Status   int    // 0: 200
	Data     any
	Location string
	Written  bool
}

// Route is a page or the receiver of a form. Errors of the API, which are of the type *[api.ResponseError], are shown as
// they are.
type Route struct {
	Pattern string // of [http.ServeMux]
	Serve   func(*Visit) (View, error)
}

// Routes lists the pages.
func Routes() []Route {
	return slices.Concat(requestRoutes(), policyRoutes(), ruleRoutes(), urlRoutes(), keyRoutes(), trailRoutes(), secretRoutes(), reportRoutes(), gatewayRoutes())
}

// get reads a resource of the API.
func (v *Visit) get(path string, out any) error { return v.Client.Get(v.R.Context(), path, out) }

// send sends a form to the API.
func (v *Visit) send(method, path string, in, out any) error {
	return v.Client.Do(v.R.Context(), method, path, in, out)
}

// optional is get for a part of a page that the role may not see.
func (v *Visit) optional(path string, out any) error {
	err := v.get(path, out)
	if refused, ok := errors.AsType[*api.ResponseError](err); ok && refused.Status == http.StatusForbidden {
		return nil
	}
	return err
}

// isMissing reports whether an error of the API is that something does not exist.
func isMissing(err error) bool {
	refused, ok := errors.AsType[*api.ResponseError](err)
	return ok && refused.Status == http.StatusNotFound
}

// isUnreachable reports whether an error of the API is that the host of a box, in a fleet, does not answer.
func isUnreachable(err error) bool {
	refused, ok := errors.AsType[*api.ResponseError](err)
	return ok && refused.Status == http.StatusServiceUnavailable && strings.HasPrefix(refused.Message, "host_unreachable:")
}

// is reports whether the person has one of the roles.
func (v *Visit) is(roles ...api.Role) bool { return slices.Contains(roles, v.Caller.Role) }

// field returns a field of a form without surrounding spaces.
func (v *Visit) field(name string) string { return strings.TrimSpace(v.R.PostForm.Get(name)) }

// asked returns a parameter of the query without surrounding spaces.
func (v *Visit) asked(name string) string { return strings.TrimSpace(v.R.URL.Query().Get(name)) }

// Form is a form that was filled in, with the problems that the API found in it. The zero value is an empty form.
type Form struct {
	Values   map[string]string
	Problems map[string]string // by field
	Message  string            // the problem of the whole form; "" without one
}

// Value returns the text of a field, or another text if the form is empty.
func (f Form) Value(field, other string) string {
	if f.Values == nil {
		return other
	}
	return f.Values[field]
}

// Problem returns the problem of a field, or "".
func (f Form) Problem(field string) string { return f.Problems[field] }

// refused returns a form with the problems that an error of the API names, and the status for the page. Fields have the
// names of members of the body. Errors that a form cannot show are returned unchanged.
func (v *Visit) refused(err error, fields ...string) (Form, int, error) {
	r, ok := errors.AsType[*api.ResponseError](err)
	if !ok || r.Status == http.StatusUnauthorized {
		return Form{}, 0, err
	}
	f := Form{Values: map[string]string{}, Problems: map[string]string{}}
	for _, name := range fields {
		f.Values[name] = v.R.PostForm.Get(name)
	}
	var rest []string
	for _, p := range r.Problems {
		first, _, _ := strings.Cut(strings.TrimPrefix(p.Pointer, "/"), "/")
		if slices.Contains(fields, first) {
			f.Problems[first] = strings.TrimPrefix(f.Problems[first]+"; "+p.Message, "; ")
		} else {
			rest = append(rest, strings.TrimPrefix(p.Pointer+": "+p.Message, ": "))
		}
	}
	switch {
	case len(r.Problems) == 0:
		f.Message = r.Message
	case len(rest) > 0:
		f.Message = strings.Join(rest, "; ")
	default:
		f.Message = "The form has a problem; see below."
	}
	return f, r.Status, nil
}

// pageSize is the number of rows on a page.
const pageSize = 50

// Pager leads to the pages of a list before and after the current one.
type Pager struct {
	Text           string
	Previous, Next string // paths; "" without one
}

// paged returns the part of a list that a page shows.
func paged[T any](v *Visit, list []T) ([]T, Pager) {
	from, to, p := pagedBy(v, len(list), pageSize)
	return list[from:to], p
}

// pagedBy returns the first row of a page and the one after its last, for a list with count rows. A page before the first one
// or beyond the end shows the first or the last one.
func pagedBy(v *Visit, count, size int) (from, to int, p Pager) {
	last := max((count-1)/size, 0)
	page, err := strconv.Atoi(v.asked("page"))
	if err != nil {
		page = 1
	}
	page = min(max(page-1, 0), last)
	from, to = page*size, min((page+1)*size, count)
	p.Text = strconv.Itoa(from+1) + "–" + strconv.Itoa(to) + " of " + strconv.Itoa(count)
	if page > 0 {
		p.Previous = v.here("page", strconv.Itoa(page))
	}
	if page < last {
		p.Next = v.here("page", strconv.Itoa(page+2))
	}
	return from, to, p
}

// here returns the path of the current page with another value of a parameter.
func (v *Visit) here(name, value string) string {
	q := v.R.URL.Query()
	q.Set(name, value)
	return v.R.URL.Path + "?" + q.Encode()
}

// stamp is a time of the API: RFC 3339 or Unix seconds. An empty text and 0 are no time.
type stamp struct{ time.Time }

// UnmarshalJSON implements [json.Unmarshaler].
func (s *stamp) UnmarshalJSON(text []byte) error {
	if string(text) == `""` {
		return nil
	}
	if bytes.HasPrefix(text, []byte{'"'}) {
		return json.Unmarshal(text, &s.Time)
	}
	var seconds int64
	err := json.Unmarshal(text, &seconds)
	if err == nil && seconds > 0 {
		s.Time = time.Unix(seconds, 0).UTC()
	}
	return err
}

// pathTo joins a path of the dashboard from segments, which may contain any text.
func pathTo(segments ...string) string {
	for i := range segments {
		segments[i] = url.PathEscape(segments[i])
	}
	return Prefix + strings.Join(segments, "/")
}

// boxName is a box in a list of boxes.
type boxName struct {
	ID, Name string
	Status   string
}

// Label returns the name of the box, or its ID.
func (b boxName) Label() string {
	if b.Name == "" {
		return b.ID
	}
	return b.Name
}

// problem is a problem of a document, as the API shows it.
type problem struct{ Pointer, Message string }
