// Package doctor serves the diagnoses of hosts.
package doctor

import (
	"context"
	"net/http"
	"reflect"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/doctor"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Host diagnoses hosts.
type Host interface {
	// Diagnose opens a host directly, spliced and intercepted, and compares the results. A host that does not work is a result, not an
	// error. If another diagnosis is running, the error is an ErrConflict.
	Diagnose(ctx context.Context, id policy.BoxID, req api.DiagnosisRequest) (doctor.Diagnosis, error)
}

// Endpoints serves diagnoses.
type Endpoints struct {
	Boxes  rest.Finder
	Host   Host
	Bodies strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/doctor", ID: "diagnoseHost", Summary: "Open a host directly, spliced and intercepted, and explain the differences; takes some seconds",
			Request: reflect.TypeFor[body](), Example: `{"host":"api.example.com"}`, Response: reflect.TypeFor[doctor.Diagnosis](), Handle: e.diagnose},
	}
}

// body is a request for a diagnosis.
type body struct {
	Host string `json:"host" doc:"name"`
	Port *int64 `json:"port,omitempty" doc:"absent: 443" min:"1" max:"65535"`
	Path string `json:"path,omitempty" doc:"of the GET; absent: /"`
	Idle *int64 `json:"idle_seconds,omitempty" doc:"how long to watch a connection after its response; absent: 3" min:"0" max:"10"`
}

// Defaults and limits of a request.
const (
	defaultPort = 443
	defaultIdle = 3
	maxIdle     = 10 // seconds
	maxPath     = 2048
)

// request checks and converts the body.
func (b *body) request() (api.DiagnosisRequest, error) {
	var p problem.List
	req := api.DiagnosisRequest{Port: defaultPort, Path: "/", Idle: defaultIdle * time.Second}
	var err error
	if req.Host, err = name.Parse(b.Host); err != nil {
		p.Add("/host", "%v", err)
	}
	if b.Port != nil {
		if *b.Port < 1 || *b.Port > 65535 {
			p.Add("/port", "must be between 1 and 65535")
		}
		req.Port = uint16(*b.Port)
	}
	if b.Path != "" {
		req.Path = b.Path
		if !strings.HasPrefix(b.Path, "/") || len(b.Path) > maxPath || strings.ContainsFunc(b.Path, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '#' }) {
			p.Add("/path", "must begin with / and contain visible ASCII only, at most %d bytes", maxPath)
		}
	}
	if b.Idle != nil {
		if *b.Idle < 0 || *b.Idle > maxIdle {
			p.Add("/idle_seconds", "must be between 0 and %d seconds", maxIdle)
		}
		req.Idle = time.Duration(*b.Idle) * time.Second
	}
	return req, p.Err()
}

func (e *Endpoints) diagnose(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var b body
	if err := e.Bodies.Decode(w, r, &b); err != nil {
		return rest.Reply{}, err
	}
	req, err := b.request()
	if err != nil {
		return rest.Reply{}, err
	}
	d, err := e.Host.Diagnose(r.Context(), box.ID, req)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: d}, nil
}
