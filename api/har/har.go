// Package har serves HTTP archives of the requests of boxes.
package har

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"time"

	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/api/strict"
	"boxgate/internal/buildinfo"
	"boxgate/policy"
	"boxgate/proxy/har"
	"boxgate/quota"
)

// Host records the requests of boxes.
type Host interface {
	// Capture begins to record the requests of a box that arrive from now on. If they are recorded already, the error is an
	// ErrConflict. The caller calls release when it takes no more entries.
	Capture(ctx context.Context, id policy.BoxID, o har.Options) (c *har.Capture, release func(), err error)
}

// Endpoints serves archives.
type Endpoints struct {
	Boxes    rest.Finder
	Host     Host
	Bodies   strict.Bodies
	Stopping <-chan struct{} // closed when the server shuts down, which ends captures
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/har", ID: "captureRequests", Summary: "Record the intercepted requests of a box while the call is open, as an HTTP archive (HAR 1.2)",
			Request: reflect.TypeFor[captureBody](), Example: `{"seconds":60,"body_bytes":65536}`, Produces: []string{"application/json"}, Handle: e.capture},
	}
}

// captureBody is the body of a request to record.
type captureBody struct {
	Seconds     *int64 `json:"seconds,omitempty" doc:"how long to record; absent: 300" min:"1" max:"3600"`
	BodyBytes   int64  `json:"body_bytes,omitempty" doc:"bytes of each body; absent: bodies are left out" min:"0" max:"1048576"`
	Credentials bool   `json:"credentials,omitempty" doc:"show the credentials and cookies that the box sends and gets; never those that the gateway sets"`
}

const defaultTime = 5 * time.Minute

// options checks and converts the body.
func (b *captureBody) options() (o har.Options, during time.Duration, err error) {
	var p problem.List
	during = defaultTime
	if b.Seconds != nil {
		if *b.Seconds < 1 || *b.Seconds > int64(har.MaxTime/time.Second) {
			p.Add("/seconds", "must be between 1 and %d", int64(har.MaxTime/time.Second))
		}
		during = time.Duration(*b.Seconds) * time.Second
	}
	if b.BodyBytes < 0 || b.BodyBytes > har.MaxBodies {
		p.Add("/body_bytes", "must be between 0 and %d", har.MaxBodies)
	}
	return har.Options{Bodies: int(b.BodyBytes), Credentials: b.Credentials}, during, p.Err()
}

// capture writes the beginning of the archive when the capture has begun, each entry when its exchange has ended, and the end with the
// reason. The response is complete unless the client leaves.
func (e *Endpoints) capture(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var b captureBody
	if err := e.Bodies.Decode(w, r, &b); err != nil {
		return rest.Reply{}, err
	}
	options, during, err := b.options()
	if err != nil {
		return rest.Reply{}, err
	}
	if err := quota.ScopeOf(r.Context()).Acquire(quota.Memory, har.Memory); err != nil {
		return rest.Reply{}, err
	}
	c, release, err := e.Host.Capture(r.Context(), box.ID, options)
	if err != nil {
		return rest.Reply{}, err
	}
	defer release()
	if err := rest.Record(w, http.StatusOK, &rest.Change{Box: box.ID, What: map[string]any{"requests_recorded": b}}); err != nil {
		return rest.Reply{}, err
	}
	out := rest.BeginPaced(w, "application/json")
	defer out.Close()
	a := archive{c, har.NewWriter(out, c, stream.EscapeControls), out}
	_ = a.write(r.Context(), during, e) // the client has gone, which ends the capture
	return rest.Reply{Written: true}, nil
}

// archive is the response of a capture.
type archive struct {
	capture *har.Capture
	*har.Writer
	out *rest.Paced
}

// write writes the archive. It fails if the client has gone. The capture ends in time even while a slow client holds up a write.
func (a *archive) write(ctx context.Context, during time.Duration, e *Endpoints) error {
	if err := a.Begin(buildinfo.Get().Version); err != nil {
		return err
	}
	defer time.AfterFunc(during, func() { a.capture.End(har.EndTime) }).Stop()
	defer context.AfterFunc(ctx, func() {
		if _, ours := errors.AsType[*problem.Refusal](context.Cause(ctx)); ours {
			a.capture.End(har.EndKey)
		} else {
			a.capture.End("") // the client has gone
		}
	})()
	for a.capture.Reason() != har.EndKey {
		if len(a.capture.Entries()) == 0 {
			if err := a.out.Flush(); err != nil {
				return err
			}
		}
		select {
		case entry := <-a.capture.Entries():
			if err := a.Add(entry); err != nil {
				return err
			}
		case <-a.capture.Ended():
			return a.finish()
		case <-e.Stopping:
			a.capture.End(har.EndStopping)
		}
	}
	return a.finish()
}

// finish writes the entries that had ended before the capture did, and the end. A key that has ended gets no more entries.
func (a *archive) finish() error {
	if a.capture.Reason() == har.EndKey {
		a.capture.Discard()
	}
	for {
		select {
		case entry := <-a.capture.Entries():
			if err := a.Add(entry); err != nil {
				return err
			}
			continue
		default:
		}
		return a.End()
	}
}
