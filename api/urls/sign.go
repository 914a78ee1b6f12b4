package urls

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
)

// signBody asks for a signed link.
type signBody struct {
	ExpiresIn  *int64   `json:"expires_in,omitempty" doc:"validity in seconds, up to a year and no longer than that of the URL; absent: an hour"`
	PathPrefix string   `json:"path_prefix,omitempty" doc:"the permitted path, including everything below it; absent: /, all paths"`
	Methods    []string `json:"methods,omitempty" doc:"the permitted methods; absent: GET and HEAD" enum:"GET HEAD POST PUT PATCH DELETE OPTIONS"`
}

// signView is a signed link.
type signView struct {
	URL       string `json:"url"`
	ExpiresAt int64  `json:"expires_at"`
}

// mostOfLink is the maximum validity of a link in seconds: a year.
const mostOfLink = 365 * 24 * 3600

// request converts the body, after validation.
func (b *signBody) request() (api.LinkRequest, error) {
	req := api.LinkRequest{ExpiresIn: time.Hour, PathPrefix: b.PathPrefix, Methods: b.Methods}
	if req.PathPrefix == "" {
		req.PathPrefix = "/"
	}
	if !strings.HasPrefix(req.PathPrefix, "/") || len(req.PathPrefix) > 1024 {
		return req, problem.Invalid("/path_prefix", "must begin with a slash and have 1024 bytes at most")
	}
	if b.ExpiresIn != nil {
		if *b.ExpiresIn < 1 || *b.ExpiresIn > mostOfLink {
			return req, problem.Invalid("/expires_in", "must be between 1 and %d seconds", mostOfLink)
		}
		req.ExpiresIn = time.Duration(*b.ExpiresIn) * time.Second
	}
	if b.Methods == nil {
		req.Methods = []string{"GET", "HEAD"}
	}
	if len(req.Methods) == 0 {
		return req, problem.Invalid("/methods", "must name at least one of %s", strings.Join(api.LinkMethods, ", "))
	}
	for i, m := range req.Methods {
		if !slices.Contains(api.LinkMethods, m) {
			return req, problem.Invalid(fmt.Sprintf("/methods/%d", i), "must be one of %s", strings.Join(api.LinkMethods, ", "))
		}
	}
	return req, nil
}

func (e *Endpoints) signURL(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	port, err := portOf(r)
	if err != nil {
		return rest.Reply{}, err
	}
	var body signBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	req, err := body.request()
	if err != nil {
		return rest.Reply{}, err
	}
	made, err := e.Host.SignURL(r.Context(), box.ID, port, req)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "link to the public URL of port %d signed, until %s", port, made.ExpiresAt.UTC().Format(time.RFC3339))
	return rest.Reply{Status: http.StatusCreated, Body: signView{URL: made.URL.Reveal(), ExpiresAt: made.ExpiresAt.Unix()}}, nil
}
