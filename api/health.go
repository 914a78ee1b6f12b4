package api

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// errPrivateKey stops an answer that must only hold certificates.
var errPrivateKey = errors.New("api: the Host returned a private key instead of a certificate")

func (a *API) healthz(http.ResponseWriter, *http.Request) (reply, error) {
	return reply{body: okView{true}}, nil
}

// readyz does not say what is missing, because it needs no key. The log says it.
func (a *API) readyz(_ http.ResponseWriter, r *http.Request) (reply, error) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	if err := a.Host.Ready(ctx); err != nil {
		return reply{}, &Error{Kind: ErrUnavailable, Message: "not ready; the gateway's log says what is missing", Cause: err}
	}
	return reply{body: okView{true}}, nil
}

func (a *API) describeSelf(w http.ResponseWriter, _ *http.Request) (reply, error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(a.openapi)
	return reply{written: true}, nil
}
