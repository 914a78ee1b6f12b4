package e2b

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/problem"
	"boxgate/api/rest"
)

// failure is the error of a call of boxgate's own API.
type failure struct {
	status  int
	message string
	retry   string // Retry-After; may be empty
}

// Error returns the message.
func (f *failure) Error() string { return f.message }

// hasStatus reports whether an error is one of boxgate's own API with a status.
func hasStatus(err error, status int) bool {
	own, ok := errors.AsType[*failure](err)
	return ok && own.status == status
}

// answer is a response of boxgate's own API.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements [http.ResponseWriter].
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// ofThisHost returns a request whose calls of boxgate's own API concern this host alone, not the others of its fleet.
func ofThisHost(r *http.Request) *http.Request {
	if r.Header.Get(access.PeerHeader) != "" {
		return r
	}
	r = r.Clone(r.Context())
	r.Header.Set(access.PeerHeader, "none")
	return r
}

// own makes a call of boxgate's own API for a request: in is the body, and out receives the response; both may
// be nil. A refusal is a *failure.
func (e *Endpoints) own(r *http.Request, method, path string, in, out any) error {
	var body io.Reader = http.NoBody
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	call, err := http.NewRequestWithContext(r.Context(), method, path, body)
	if err != nil {
		return err
	}
	call.Host, call.RemoteAddr, call.TLS, call.RequestURI = r.Host, r.RemoteAddr, r.TLS, path
	if in != nil {
		call.Header.Set("Content-Type", "application/json")
	}
	if host := r.Header.Get(access.PeerHeader); host != "" { // not sent on a second time
		call.Header.Set(access.PeerHeader, host)
	}
	got := &answer{header: http.Header{}}
	e.Own.ServeHTTP(got, call)
	if err := r.Context().Err(); err != nil && got.status == 0 {
		return err
	}
	if got.status < 200 || got.status > 299 {
		var told problem.Body
		if json.Unmarshal(got.body.Bytes(), &told) != nil || told.Error == "" {
			told.Error = http.StatusText(got.status)
		}
		return &failure{got.status, told.Error, got.header.Get("Retry-After")}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(got.body.Bytes(), out); err != nil {
		return fmt.Errorf("the response of %s %s: %w", method, path, err)
	}
	return nil
}

// boxPath returns the path of a box in boxgate's own API, or of something below it.
func boxPath(id string, below ...string) string {
	return strings.Join(append([]string{"/v2/box", url.PathEscape(id)}, below...), "/")
}

// idOf returns the ID of the box in the path of a request.
func idOf(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if !rest.IsBoxName(id) {
		return "", noBox(id)
	}
	return id, nil
}

func noBox(id string) error {
	return api.Errorf(api.ErrNotFound, "sandbox %q not found", problem.Clip(id))
}

// boxOf finds the box in the path of a request, by its ID or name.
func (e *Endpoints) boxOf(r *http.Request) (b box, err error) {
	id, err := idOf(r)
	if err != nil {
		return b, err
	}
	if err = e.own(r, http.MethodGet, boxPath(id), nil, &b); hasStatus(err, http.StatusNotFound) {
		return b, noBox(id)
	}
	return b, err
}

// decode reads the body of a request. A body that may be absent can be empty.
func (e *Endpoints) decode(w http.ResponseWriter, r *http.Request, into any, mayBeAbsent bool) error {
	if mayBeAbsent && r.ContentLength == 0 {
		return nil
	}
	return e.Bodies.Decode(w, r, into)
}

// query returns the query of a request, which may have the given parameters once each.
func query(r *http.Request, known ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, problem.Refuse(http.StatusBadRequest, "the query cannot be parsed")
	}
	for name, list := range values {
		ok := false
		for _, k := range known {
			ok = ok || name == k
		}
		if !ok || len(list) > 1 {
			return nil, problem.Refuse(http.StatusBadRequest, "the query parameter %q is unknown or given twice", problem.Clip(name))
		}
	}
	return values, nil
}
