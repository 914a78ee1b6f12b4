package e2b

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
)

// get shows a sandbox.
func (e *Endpoints) get(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	b, err := e.boxOf(r)
	if err != nil {
		return 0, nil, err
	}
	if b.state() == "" {
		return 0, nil, api.Errorf(api.ErrNotFound, "sandbox %q is not running: %s", b.ID, b.Error)
	}
	var net struct {
		Headers map[string][]string `json:"attach_headers"`
	}
	if err := e.own(r, http.MethodGet, boxPath(b.ID, "config", "network"), nil, &net); err != nil {
		return 0, nil, err
	}
	ports, err := e.shared(r, b.ID)
	if err != nil {
		return 0, nil, err
	}
	v := detailView{listedView: e.listed(b), Domain: e.Domain, Lifecycle: b.lifecycle()}
	v.Network, v.AllowInternet = networkOf(b.NetworkPolicy, net.Headers)
	ports.into(v.Network)
	return http.StatusOK, v, nil
}

// kill deletes a sandbox.
func (e *Endpoints) kill(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := idOf(r)
	if err != nil {
		return 0, nil, err
	}
	if err = e.own(r, http.MethodDelete, boxPath(id), nil, nil); hasStatus(err, http.StatusNotFound) {
		err = noBox(id)
	}
	return http.StatusNoContent, nil, err
}

// lifetime is the body of a change of the end of a box in boxgate's own API.
type lifetime struct {
	TTL *int64 `json:"ttl"` // nil: no end
}

// setEnd moves the end of a box to a time from now, in seconds.
func (e *Endpoints) setEnd(r *http.Request, id string, seconds *int64) error {
	err := e.own(r, http.MethodPut, boxPath(id, "config", "ttl"), lifetime{seconds}, nil)
	if hasStatus(err, http.StatusNotFound) {
		err = noBox(id)
	}
	return inE2B(err)
}

// running returns an error for a box that is paused: its time stands still.
func running(b box) error {
	if b.state() == statePaused {
		return api.Errorf(api.ErrConflict, "sandbox %q is paused; connect to it first", b.ID)
	}
	return nil
}

// setTimeout moves the end of a sandbox to a time from now.
func (e *Endpoints) setTimeout(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct {
		Timeout *int64 `json:"timeout"`
	}
	if err := e.decode(w, r, &body, false); err != nil {
		return 0, nil, err
	}
	if body.Timeout == nil {
		return 0, nil, problem.Invalid("/timeout", "is missing")
	}
	b, err := e.boxOf(r)
	if err == nil {
		err = running(b)
	}
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, e.setEnd(r, b.ID, new(ttlOf(*body.Timeout)))
}

// refresh moves the end of a sandbox to a time from now, unless it is later already.
func (e *Endpoints) refresh(w http.ResponseWriter, r *http.Request) (int, any, error) {
	body := struct {
		Duration *int64 `json:"duration,omitempty"`
	}{}
	if err := e.decode(w, r, &body, true); err != nil {
		return 0, nil, err
	}
	if body.Duration == nil {
		body.Duration = new(int64(defaultTimeout))
	}
	b, err := e.boxOf(r)
	if err == nil {
		err = running(b)
	}
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, e.prolong(r, b, *body.Duration)
}

// prolong moves the end of a box to a time from now, unless it is later already, or the box has no end.
func (e *Endpoints) prolong(r *http.Request, b box, seconds int64) error {
	seconds = ttlOf(seconds)
	if b.ExpiresAt == 0 || time.Until(b.end()) >= time.Duration(seconds)*time.Second {
		return nil
	}
	return e.setEnd(r, b.ID, &seconds)
}

// pause pauses a sandbox until it is resumed; its time stands still. Boxes of other APIs without an end, and keys for one box, have the
// pause that any use ends.
func (e *Endpoints) pause(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct {
		Memory *bool `json:"memory,omitempty"`
	}
	if err := e.decode(w, r, &body, true); err != nil {
		return 0, nil, err
	}
	if body.Memory != nil && !*body.Memory {
		return 0, nil, problem.Invalid("/memory", "a paused sandbox keeps its memory on this gateway; leave keepMemory out")
	}
	b, err := e.boxOf(r)
	switch {
	case err != nil:
		return 0, nil, err
	case b.state() == statePaused:
		return 0, nil, api.Errorf(api.ErrConflict, "sandbox %q is paused already", b.ID)
	case b.ExpiresAt != 0:
		if err = e.own(r, http.MethodPost, boxPath(b.ID, "suspend"), nil, nil); !hasStatus(err, http.StatusForbidden) {
			return http.StatusNoContent, nil, err
		}
	}
	return http.StatusNoContent, nil, e.own(r, http.MethodPost, boxPath(b.ID, "pause"), nil, nil)
}

// opening is the body of a request that resumes a sandbox, or connects to it.
type opening struct {
	Timeout   *int64 `json:"timeout,omitempty"`
	Memory    *bool  `json:"memory,omitempty"`
	AutoPause *bool  `json:"autoPause,omitempty"`
}

// readOpening reads an opening.
func (e *Endpoints) readOpening(w http.ResponseWriter, r *http.Request) (o opening, err error) {
	if err := e.decode(w, r, &o, true); err != nil {
		return o, err
	}
	var p problem.List
	if o.Memory != nil && !*o.Memory {
		p.Add("/memory", "this gateway does not reboot a sandbox; leave onResume out, or create a new sandbox from a snapshot of it")
	}
	if o.AutoPause != nil {
		p.Add("/autoPause", "is chosen when a sandbox is created; leave it out")
	}
	return o, p.Err()
}

// resume resumes a paused sandbox.
func (e *Endpoints) resume(w http.ResponseWriter, r *http.Request) (int, any, error) {
	o, err := e.readOpening(w, r)
	if err != nil {
		return 0, nil, err
	}
	b, err := e.boxOf(r)
	switch {
	case err != nil:
		return 0, nil, err
	case b.state() != statePaused:
		return 0, nil, api.Errorf(api.ErrConflict, "sandbox %q is not paused", b.ID)
	}
	return e.wake(r, b, o)
}

// connect resumes a sandbox if it is paused, and otherwise moves its end if the new one is later.
func (e *Endpoints) connect(w http.ResponseWriter, r *http.Request) (int, any, error) {
	o, err := e.readOpening(w, r)
	if err != nil {
		return 0, nil, err
	}
	b, err := e.boxOf(r)
	switch {
	case err != nil:
		return 0, nil, err
	case b.state() == "":
		return 0, nil, api.Errorf(api.ErrNotFound, "sandbox %q is not running: %s", b.ID, b.Error)
	case b.state() == statePaused:
		return e.wake(r, b, o)
	}
	if o.Timeout != nil {
		if err := e.prolong(r, b, *o.Timeout); err != nil {
			return 0, nil, err
		}
	}
	token, err := e.traffic(r, b.ID)
	return http.StatusOK, e.opened(r, b, token), err
}

// wake resumes a paused box, which then has an end again. A box without one gets it first, so that it never runs without; one that was
// paused as at its end takes no other until it is resumed, which gives it one.
func (e *Endpoints) wake(r *http.Request, b box, o opening) (int, any, error) {
	timeout := int64(defaultTimeout)
	if o.Timeout != nil {
		timeout = ttlOf(*o.Timeout)
	}
	resume := func() error { return e.own(r, http.MethodPost, boxPath(b.ID, "resume"), nil, nil) }
	end := func() error { return e.setEnd(r, b.ID, &timeout) }
	steps := []func() error{end, resume}
	if b.PausedAtEnd {
		steps = []func() error{resume, end}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return 0, nil, err
		}
	}
	token, err := e.traffic(r, b.ID)
	return http.StatusCreated, e.opened(r, b, token), err
}

// The length of a page of a list.
const (
	defaultPage = 100
	maxPage     = 1000
)

// page selects a part of a list, whose items have unique places.
type page struct {
	limit int
	after string // place of the last item of the previous page; "": the first page
}

// pageOf reads the page of a request.
func pageOf(q url.Values) (p page, err error) {
	if p.limit = defaultPage; q.Get("limit") != "" {
		if p.limit, err = strconv.Atoi(q.Get("limit")); err != nil || p.limit < 1 || p.limit > maxPage {
			return p, problem.Refuse(http.StatusBadRequest, "limit must be between 1 and %d", maxPage)
		}
	}
	after, err := base64.RawURLEncoding.DecodeString(q.Get("nextToken"))
	if err != nil {
		return p, problem.Refuse(http.StatusBadRequest, "nextToken is not one of this API")
	}
	p.after = string(after)
	return p, nil
}

// nextHeader names the next page of a list.
const nextHeader = "X-Next-Token"

// cut orders a list by the places of its items, downwards if desc is set, and returns its page and announces the next one. The previous
// page ends at a place, whose item may be gone: the items beyond it follow.
func cut[T any](w http.ResponseWriter, list []T, p page, desc bool, place func(T) string) []T {
	order := strings.Compare
	if desc {
		order = func(a, b string) int { return strings.Compare(b, a) }
	}
	slices.SortFunc(list, func(a, b T) int { return order(place(a), place(b)) })
	if p.after != "" {
		list = slices.DeleteFunc(list, func(t T) bool { return order(place(t), p.after) <= 0 })
	}
	if len(list) > p.limit {
		list = list[:p.limit]
		w.Header().Set(nextHeader, base64.RawURLEncoding.EncodeToString([]byte(place(list[p.limit-1]))))
	}
	return list
}

// placeOf returns the place of an item in a list by time, in seconds of Unix time, and then by ID.
func placeOf(at int64, id string) string { return fmt.Sprintf("%020d %s", max(0, at), id) }

// list lists the sandboxes that the key sees.
func (e *Endpoints) list(w http.ResponseWriter, r *http.Request) (int, any, error) {
	q, err := query(r, "metadata", "state", "startedAfter", "template", "order", "limit", "nextToken")
	if err != nil {
		return 0, nil, err
	}
	p, err := pageOf(q)
	if err != nil {
		return 0, nil, err
	}
	chosen, err := filterOf(q, !strings.HasPrefix(r.URL.Path, "/v2/"))
	if err != nil {
		return 0, nil, err
	}
	var all []box
	if err := e.own(r, http.MethodGet, "/v2/box", nil, &all); err != nil {
		return 0, nil, err
	}
	active := 0
	for _, b := range all {
		if b.state() == stateRunning {
			active++
		}
	}
	w.Header().Set("X-Total-Running", strconv.Itoa(active))
	all = slices.DeleteFunc(all, func(b box) bool { return !chosen.has(b) })
	if !strings.HasPrefix(r.URL.Path, "/v2/") {
		p = page{limit: len(all)}
	}
	all = cut(w, all, p, q.Get("order") != "asc", func(b box) string { return placeOf(b.CreatedAt, b.ID) })
	views := []listedView{}
	for _, b := range all {
		views = append(views, e.listed(b))
	}
	return http.StatusOK, views, nil
}

// filter selects sandboxes.
type filter struct {
	states   []string
	metadata map[string]string
	after    time.Time
	template string
}

// filterOf reads a filter. The first version of the list has running sandboxes only.
func filterOf(q url.Values, first bool) (f filter, err error) {
	f = filter{states: []string{stateRunning, statePaused}, metadata: map[string]string{}, template: q.Get("template")}
	if first {
		f.states = []string{stateRunning}
	}
	if q.Get("state") != "" {
		f.states = strings.Split(q.Get("state"), ",")
	}
	for _, s := range f.states {
		if s != stateRunning && s != statePaused {
			return f, problem.Refuse(http.StatusBadRequest, "state must be running or paused")
		}
	}
	if o := q.Get("order"); o != "" && o != "asc" && o != "desc" {
		return f, problem.Refuse(http.StatusBadRequest, "order must be asc or desc")
	}
	if q.Get("startedAfter") != "" {
		if f.after, err = time.Parse(time.RFC3339, q.Get("startedAfter")); err != nil {
			return f, problem.Refuse(http.StatusBadRequest, "startedAfter must be a time such as 2026-01-02T15:04:05Z")
		}
	}
	pairs, err := url.ParseQuery(q.Get("metadata"))
	if err != nil {
		return f, problem.Refuse(http.StatusBadRequest, "metadata must be pairs such as user=abc&app=prod")
	}
	for key, values := range pairs { // keys and values are encoded on their own, and then in the pairs
		k, errK := url.QueryUnescape(key)
		v, errV := url.QueryUnescape(values[len(values)-1])
		if errK != nil || errV != nil {
			return f, problem.Refuse(http.StatusBadRequest, "metadata has a key or a value that cannot be decoded")
		}
		f.metadata[k] = v
	}
	return f, nil
}

// has reports whether a box is selected.
func (f filter) has(b box) bool {
	for k, v := range f.metadata {
		if got, ok := b.Metadata[k]; !ok || got != v {
			return false
		}
	}
	started := time.Unix(b.CreatedAt, 0)
	return slices.Contains(f.states, b.state()) && !started.Before(f.after.Truncate(time.Second)) && (f.template == "" || f.template == b.template())
}
