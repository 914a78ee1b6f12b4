package gateway

import (
	"context"
	"net/http"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
)

// healthz always succeeds: it shows that the process serves.
func (e *Endpoints) healthz(http.ResponseWriter, *http.Request) (rest.Reply, error) {
	return rest.Done(), nil
}

// readyz requires no key, so the reason for not being ready is only logged.
func (e *Endpoints) readyz(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	if err := e.Health.Ready(ctx); err != nil {
		return rest.Reply{}, &api.Error{Kind: api.ErrUnavailable, Message: "not ready; the gateway's log says what is missing", Cause: err}
	}
	return rest.Done(), nil
}
