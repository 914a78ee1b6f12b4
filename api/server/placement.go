package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/boxes"
	"boxgate/api/rest"
)

// spread makes a new box on another host: if the caller asks for that, or by the configuration if the caller does not choose. original is the
// request that is sent. It returns false if this host makes the box; its body can be read then.
//
// Hosts that do not take the box, as they are cordoned, cut off or full, are passed over. By the configuration, only clients with a key of the
// fleet are sent elsewhere, as another host does not know the other keys, and this host makes the box if no host can be chosen.
func (a *API) spread(w *rest.Writer, r, original *http.Request, placement string, fail func(error)) bool {
	asked := placement == boxes.PlacementSpread
	if !asked && (placement != "" || !a.Spread || !api.CallerOf(r.Context()).Fleet) {
		return false
	}
	err := cmp.Or(access.MayElsewhere(r.Context(), "createBox", ""), leaves(r, ""))
	var hosts []string
	if err == nil {
		hosts, err = a.Elsewhere.Place(r.Context())
	}
	if err != nil && !asked || err == nil && hosts[0] == "" {
		return false
	}
	var body []byte
	if err == nil {
		body, err = a.held(w, r, original)
	}
	if err != nil {
		a.recordRefusal(r, "POST /v2/box", err)
		fail(err)
		return true
	}
	for i, host := range hosts {
		r.Body, original.Body = io.NopCloser(bytes.NewReader(body)), io.NopCloser(bytes.NewReader(body))
		if host == "" {
			return false
		}
		if i == len(hosts)-1 {
			a.Elsewhere.Forward(w, original, host, fail)
			return true
		}
		if a.taken(w, original, host, fail) {
			return true
		}
	}
	return true
}

// taken sends a creation to a host. It returns false, without an answer to the client, if the host has not begun it, or does not take the box and has
// made nothing.
func (a *API) taken(w *rest.Writer, r *http.Request, host string, fail func(error)) bool {
	sent := &watched{Reader: r.Body}
	r = r.WithContext(r.Context())
	r.Body = io.NopCloser(sent)
	try := &trial{ResponseWriter: w, header: w.Header().Clone()}
	again := false
	a.Elsewhere.Forward(try, r, host, func(err error) {
		if again = !sent.read.Load() && r.Context().Err() == nil; !again {
			fail(err)
		}
	})
	if again || !try.refused {
		return !again
	}
	return try.shown()
}

// watched is a body that notes whether it was read. The transport may still read it when the call has failed.
type watched struct {
	io.Reader
	read atomic.Bool
}

// Read implements [io.Reader].
func (b *watched) Read(p []byte) (int, error) {
	b.read.Store(true)
	return b.Reader.Read(p)
}

// trial is a response that is dropped if a host does not take a box.
type trial struct {
	http.ResponseWriter
	header  http.Header
	begun   bool
	refused bool
	status  int
	told    []byte // of the refusal
}

// mostTold bounds the kept part of a refusal in bytes.
const mostTold = 16 << 10

// shown gives the client the refusal of a host that has made something, or may have, and reports whether it is one.
func (t *trial) shown() bool {
	for _, sentence := range []string{api.NotRecorded, api.Continues, api.Remains} {
		if bytes.Contains(t.told, []byte(sentence)) {
			clear(t.ResponseWriter.Header())
			maps.Copy(t.ResponseWriter.Header(), t.header)
			t.ResponseWriter.Header().Del("Content-Length") // a longer one is cut
			t.ResponseWriter.WriteHeader(t.status)
			_, _ = t.ResponseWriter.Write(t.told)
			return true
		}
	}
	return false
}

// Header implements [http.ResponseWriter].
func (t *trial) Header() http.Header { return t.header }

// WriteHeader implements [http.ResponseWriter].
func (t *trial) WriteHeader(status int) {
	if t.begun {
		return
	}
	if t.begun = status >= http.StatusOK; status == http.StatusServiceUnavailable || status == http.StatusInsufficientStorage {
		t.refused, t.status = true, status
		return
	}
	clear(t.ResponseWriter.Header())
	maps.Copy(t.ResponseWriter.Header(), t.header)
	t.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (t *trial) Write(b []byte) (int, error) {
	t.WriteHeader(http.StatusOK)
	if t.refused {
		t.told = append(t.told, b[:min(len(b), mostTold-len(t.told))]...)
		return len(b), nil
	}
	return t.ResponseWriter.Write(b)
}

// FlushError implements the method of [http.ResponseController]. A refusal is not sent, and neither is a status 200 in its place.
func (t *trial) FlushError() error {
	if t.refused || !t.begun {
		return nil
	}
	return http.NewResponseController(t.ResponseWriter).Flush()
}

// Unwrap lets [http.ResponseController] reach the connection.
func (t *trial) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// held reads the body of a request, within its limits, so that it can be read and sent again. original has the same body.
func (a *API) held(w http.ResponseWriter, r, original *http.Request) ([]byte, error) {
	body, err := a.bodies().Read(w, r)
	r.Body, original.Body = io.NopCloser(bytes.NewReader(body)), io.NopCloser(bytes.NewReader(body))
	return body, err
}

// peek decodes some fields of the body of a request. An unreadable one is left to the endpoint.
func (a *API) peek(w http.ResponseWriter, r, original *http.Request, into any) error {
	body, err := a.held(w, r, original)
	if err == nil {
		_ = json.Unmarshal(body, into)
	}
	return err
}

// createdElsewhere sends the creation of a box from a snapshot to the host that has the snapshot.
func (a *API) createdElsewhere(w *rest.Writer, r *http.Request, fail func(error)) bool {
	if _, ok := access.ShownKey(r.Context()); !ok {
		return false
	}
	var body struct {
		SnapshotID string `json:"snapshot_id"`
	}
	host, err := "", a.peek(w, r, r, &body)
	if err == nil {
		if host = a.snapshotHost(r.Context(), body.SnapshotID); host != "" {
			err = cmp.Or(access.MayElsewhere(r.Context(), "createBoxFromSnapshot", ""), leaves(r, host))
		}
	}
	if err != nil {
		a.recordRefusal(r, "POST /v2/box/from-snapshot", err)
	}
	return a.forwarded(w, r, host, err, fail)
}

// The ID of a snapshot: the digits of its host follow the prefix, and 16 random ones. In earlier versions all 16 digits were random.
const (
	snapshotPrefix = "snap_"
	snapshotDigits = 22
)

// snapshotHost returns the other host that has a snapshot, by its ID; "": this host has it, as a shared one, or no member of the fleet is
// known to.
func (a *API) snapshotHost(ctx context.Context, id string) string {
	digits, ok := strings.CutPrefix(id, snapshotPrefix)
	if !ok || len(digits) != snapshotDigits || !access.LooksLikeID(digits[:16]) {
		return ""
	}
	host, err := a.Elsewhere.Owner(ctx, digits[:16])
	if err != nil || host == "" {
		return ""
	}
	list, err := a.Snapshots.Snapshots(ctx, "")
	if err == nil && slices.ContainsFunc(list, func(s api.Snapshot) bool { return s.ID == id }) {
		return ""
	}
	return host
}
