package boxes

import (
	"net/http"
	"time"

	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// tokenBody asks for the token of a remote box.
type tokenBody struct {
	ExpiresIn *int64 `json:"expires_in,omitempty" min:"60" max:"31536000" doc:"seconds until the token becomes invalid and its connections are cut; absent: 30 days"`
}

// The lifetime of a token in seconds, if the request has none, and its bounds.
const (
	tokenSeconds      = 30 * 24 * 3600
	leastTokenSeconds = 60
	mostTokenSeconds  = 365 * 24 * 3600
)

// tokenView is a new token of a remote box.
type tokenView struct {
	Box       policy.BoxID `json:"box"`
	Username  string       `json:"username" doc:"user name of the proxy: the ID of the box"`
	Password  string       `json:"password" doc:"password of the proxy: the token; only in this response"`
	ExpiresAt int64        `json:"expires_at"`
	Listen    string       `json:"listen" doc:"address of the proxy as configured (remote.listen); it speaks TLS"`
}

// createToken handles POST /v2/box/{id}/token.
func (e *Endpoints) createToken(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body tokenBody
	if r.ContentLength != 0 {
		if err := e.Bodies.Decode(w, r, &body); err != nil {
			return rest.Reply{}, err
		}
	}
	seconds := int64(tokenSeconds)
	if body.ExpiresIn != nil {
		if seconds = *body.ExpiresIn; seconds < leastTokenSeconds || seconds > mostTokenSeconds {
			return rest.Reply{}, problem.Invalid("/expires_in", "must be between %d and %d seconds", leastTokenSeconds, mostTokenSeconds)
		}
	}
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	made, err := e.Host.RotateToken(r.Context(), box.ID, time.Duration(seconds)*time.Second)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "system", "token replaced")
	view := tokenView{Box: box.ID, Username: string(box.ID), Password: made.Token, ExpiresAt: made.Expires.Unix(), Listen: made.Listen}
	return rest.Reply{Status: http.StatusCreated, Body: view, Change: &rest.Change{Box: box.ID, What: map[string]any{"expires_at": view.ExpiresAt}}}, nil
}

// deleteToken handles DELETE /v2/box/{id}/token.
func (e *Endpoints) deleteToken(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	if err := e.Host.RevokeToken(r.Context(), box.ID); err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "system", "token revoked")
	return rest.Reply{Body: rest.OK{OK: true}}, nil
}
