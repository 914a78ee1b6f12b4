package server

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/e2b"
	"boxgate/api/elsewhere"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// Elsewhere reaches the other hosts of the fleet; implemented by [boxgate/host/peerapi].
type Elsewhere interface {
	// Forward sends a request to a host, as it is, and its response to w. fail writes an error instead, if there is no response; it is
	// [problem.Unreachable] if the host does not answer.
	Forward(w http.ResponseWriter, r *http.Request, host string, fail func(error))
	// Place returns hosts for a new box, by the free hosts of the fleet, the best one first; "": this one.
	Place(ctx context.Context) (hosts []string, err error)
	elsewhere.Hosts
}

// others returns the other hosts, for endpoints that ask several; nil without a fleet.
func (a *API) others() elsewhere.Hosts {
	if a.Elsewhere == nil {
		return nil
	}
	return a.Elsewhere
}

// belowBox begins the patterns of endpoints for one box, after the method.
const belowBox = "/v2/box/{id}"

// servedElsewhere serves a request for a box of another host there, before its body is read. The caller has been admitted; the other host
// checks the key and its role again. It returns false for a request that this host serves.
func (a *API) servedElsewhere(w *rest.Writer, r *http.Request, pattern string) bool {
	if !a.mayLeave(r) {
		return false
	}
	fail := func(err error) { a.answers.Fail(w, r, err) }
	switch a.ids[pattern] {
	case "createBox":
		return a.spread(w, r, r, r.URL.Query().Get("placement"), fail) // the endpoint refuses other values
	case "createBoxFromSnapshot":
		return a.createdElsewhere(w, r, fail)
	}
	host, err := a.hostFor(r, pattern)
	if err != nil {
		a.recordRefusal(r, pattern, err)
	}
	return a.forwarded(w, r, host, err, fail)
}

// hostFor returns the other host that serves a request, the owner of its box; "": this host serves it.
func (a *API) hostFor(r *http.Request, pattern string) (host string, err error) {
	_, path, _ := strings.Cut(pattern, " ")
	if path != belowBox && !strings.HasPrefix(path, belowBox+"/") {
		return "", nil
	}
	id := segment(r, 3)
	if access.MayElsewhere(r.Context(), a.ids[pattern], id) != nil {
		return "", nil // this host refuses it as well, without a look-up
	}
	if host, err = a.ownerOf(r.Context(), id); err == nil && host != "" {
		err = leaves(r, host)
	}
	return host, err
}

// forwarded sends a request to the other host that was found for it, or answers with err. It returns false without one: this host serves it.
func (a *API) forwarded(w http.ResponseWriter, r *http.Request, host string, err error, fail func(error)) bool {
	switch {
	case err != nil:
		fail(err)
	case host == "":
		return false
	default:
		a.Elsewhere.Forward(w, r, host, fail)
	}
	return true
}

// mayLeave reports whether a request may be sent to another host: not if it came from one.
func (a *API) mayLeave(r *http.Request) bool {
	return a.Elsewhere != nil && r.Header[access.PeerHeader] == nil
}

// noKeyElsewhere refuses a call for a box of another host by a caller whom that host cannot know.
func noKeyElsewhere(host string) error {
	where := "boxes of other hosts"
	if host != "" {
		where = "the box is on host " + host + " of the fleet, and boxes of other hosts"
	}
	return problem.Refuse(http.StatusForbidden, "%s need an API key of the fleet: the operator's key, other keys of this host alone, sessions at the dashboard that began with these or with an account, and users of the admin socket without a key reach the boxes of this host only", where)
}

// leaves returns an error unless a request may be sent to the host that has a box; "": the host is not chosen yet. A key of this host alone is
// not: it would be refused there, and be known there.
func leaves(r *http.Request, host string) error {
	if _, ok := access.ShownKey(r.Context()); !ok || !api.CallerOf(r.Context()).Fleet {
		return noKeyElsewhere(host)
	}
	return nil
}

// ownerOf returns the other host that has a box; "": this host serves the request. Boxes of this host, and snapshots of deleted ones, need no
// look at the fleet.
func (a *API) ownerOf(ctx context.Context, id string) (host string, err error) {
	if !rest.IsBoxName(id) {
		return "", nil
	}
	if _, err := a.Boxes.Box(ctx, id); err == nil {
		return "", nil
	}
	sought := id
	if caller := api.CallerOf(ctx); caller.Role == api.RoleBox { // it sees no other box, so it need not know which names there are
		sought = string(caller.Box)
	}
	host, err = a.Elsewhere.Owner(ctx, sought)
	if err == nil {
		return host, nil
	}
	if kept, failed := a.Snapshots.Snapshots(ctx, policy.BoxID(id)); failed == nil && len(kept) > 0 {
		return "", nil
	}
	return "", err
}

// segment returns a part of the path of a request, decoded; parts are counted from 1.
func segment(r *http.Request, n int) string {
	parts := strings.Split(r.URL.EscapedPath(), "/")
	if n >= len(parts) {
		return ""
	}
	text, err := url.PathUnescape(parts[n])
	if err != nil {
		return ""
	}
	return text
}

// controlElsewhere is [API.servedElsewhere] for the control API of E2B's dialect. r is the request as the caller admitted it, and original as
// it arrived.
func (d *dialect) controlElsewhere(w *rest.Writer, r, original *http.Request) bool {
	a := d.api
	if !a.mayLeave(r) {
		return false
	}
	fail := func(err error) { d.control.Fail(w, r, err) }
	method, path, _ := strings.Cut(d.control.Pattern(r), " ")
	before, _, ofBox := strings.Cut(path, "sandboxes/{id}")
	if !ofBox {
		return method == http.MethodPost && strings.HasSuffix(path, "/sandboxes") && d.createdElsewhere(w, r, original, fail)
	}
	id := segment(r, strings.Count(before, "/")+1)
	host, err := a.ownerOf(r.Context(), id)
	if err == nil && host != "" {
		err = leaves(r, host)
	}
	if err != nil {
		a.recordRefusal(r, d.control.Pattern(r), err)
	}
	return a.forwarded(w, original.WithContext(r.Context()), host, err, fail)
}

// createdElsewhere sends the creation of a sandbox to the host that has the snapshot of its template. Sandboxes of images are placed as the
// configuration has it.
func (d *dialect) createdElsewhere(w *rest.Writer, r, original *http.Request, fail func(error)) bool {
	a := d.api
	if leaves(r, "") != nil {
		return false
	}
	var body struct {
		TemplateID string `json:"templateID"`
	}
	if err := a.peek(w, r, original, &body); err != nil {
		fail(err)
		return true
	}
	host := a.snapshotHost(r.Context(), body.TemplateID)
	if host == "" {
		snapshot, isImage, err := d.control.Template(r, body.TemplateID)
		switch {
		case err != nil:
			return false // answered by the endpoint
		case isImage:
			return a.spread(w, r, original.WithContext(r.Context()), "", fail)
		}
		host = a.snapshotHost(r.Context(), snapshot)
	}
	return a.forwarded(w, original.WithContext(r.Context()), host, nil, fail)
}

// own serves a call of this API that a call of the dialect consists of. The call of the dialect has been admitted, so only the
// permissions of its key are checked, and the audit trail has an entry for it as for any other call. The host that has the box serves the
// calls for it.
func (d *dialect) own(w http.ResponseWriter, r *http.Request) {
	a := d.api
	_, pattern := a.mux.Handler(r)
	if pattern == "" || a.public[pattern] {
		a.answers.Fail(w, r, noRoute(a.mux, w, r))
		return
	}
	if a.mayLeave(r) && leaves(r, "") == nil {
		host, err := a.hostFor(r, pattern)
		if err != nil {
			a.answers.Fail(w, r, err)
			return
		}
		if host != "" {
			a.askOwner(w, r, host)
			return
		}
	}
	a.mux.ServeHTTP(&rest.Writer{ResponseWriter: w}, r)
}

// askOwner serves a call of [dialect.own] by the host that has the box.
func (a *API) askOwner(w http.ResponseWriter, r *http.Request, host string) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		a.answers.Fail(w, r, err)
		return
	}
	for _, answer := range a.Elsewhere.Ask(r.Context(), elsewhere.Call{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Bodies: map[string][]byte{host: text}, Time: ownTime}) {
		if answer.Err != nil {
			a.answers.Fail(w, r, answer.Decode(nil))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(answer.Status)
		_, _ = w.Write(answer.Body)
	}
}

// ownTime bounds a call that a call of a dialect consists of, at another host.
const ownTime = 30 * time.Second

// sandboxElsewhere is [API.servedElsewhere] for the API that a sandbox of E2B's dialect serves. Only the owner can check the access token of
// its box, so no name is looked up for it: the ID names the host.
func (d *dialect) sandboxElsewhere(w *rest.Writer, r *http.Request) bool {
	a, id := d.api, r.Header.Get(e2b.SandboxHeader)
	if !a.mayLeave(r) || !access.LooksLikeID(id) {
		return false
	}
	fail := func(err error) { d.sandboxes.Fail(w, r, err) }
	host, err := a.ownerOf(r.Context(), id)
	return a.forwarded(w, r, host, err, fail)
}
