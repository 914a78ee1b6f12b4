package e2b

import (
	"context"
	"errors"
	"net/http"

	"boxgate/api"
)

// portsBody shares the ports of a box in boxgate's own API.
type portsBody struct {
	Access     string `json:"access"`
	Token      string `json:"token,omitempty"`
	Host       string `json:"host,omitempty"`
	HTTPSPorts []int  `json:"https_ports,omitempty"`
}

// portsView are the shared ports of a box in boxgate's own API.
type portsView struct {
	Access      string `json:"access"`
	Fingerprint string `json:"token_fingerprint"`
	Host        string `json:"host"`
	HTTPSPorts  []int  `json:"https_ports"`
}

// The kinds of access to shared ports in boxgate's own API.
const (
	accessToken  = "token"
	accessPublic = "public"
)

// ports returns how the ports of a new sandbox are shared, and whether its creator chose any of it.
func (n network) ports(public bool) (body portsBody, chosen bool) {
	body = portsBody{Access: accessToken, Host: n.MaskRequestHost, HTTPSPorts: n.HTTPSPorts}
	if n.AllowPublicTraffic != nil {
		public = *n.AllowPublicTraffic
	}
	if public {
		body.Access = accessPublic
	}
	return body, n.AllowPublicTraffic != nil || n.MaskRequestHost != "" || len(n.HTTPSPorts) > 0
}

// share shares the ports of a new box, and returns their token. If that fails the box is deleted, unless its creator did not choose how they
// are shared and the configuration shares none: then they stay closed.
func (e *Endpoints) share(r *http.Request, id string, body portsBody, chosen bool) (token string, err error) {
	if body.Access == accessToken {
		body.Token = e.Maker.PortToken(policyID(id)).Reveal()
	}
	err = e.own(r, http.MethodPut, boxPath(id, "config", "ports"), body, nil)
	switch {
	case err == nil:
		return body.Token, nil
	case !chosen && hasStatus(err, http.StatusForbidden):
		return "", nil
	}
	gone := r.WithContext(context.WithoutCancel(r.Context()))
	return "", errors.Join(inE2B(err), e.own(gone, http.MethodDelete, boxPath(id), nil, nil))
}

// shared returns the shared ports of a box; a zero value if they are not shared.
func (e *Endpoints) shared(r *http.Request, id string) (v portsView, err error) {
	if err = e.own(r, http.MethodGet, boxPath(id, "config", "ports"), nil, &v); hasStatus(err, http.StatusNotFound) {
		return portsView{}, nil
	}
	return v, err
}

// traffic returns the token of the ports of a box, if it is the one that this package gave them.
func (e *Endpoints) traffic(r *http.Request, id string) (string, error) {
	v, err := e.shared(r, id)
	token := e.Maker.PortToken(policyID(id)).Reveal()
	if err != nil || v.Access != accessToken || v.Fingerprint != api.TokenFingerprint(token) {
		return "", err
	}
	return token, nil
}

// into adds the sharing to the network options of a sandbox.
func (v portsView) into(network map[string]any) {
	network["allowPublicTraffic"] = v.Access == accessPublic
	if v.Host != "" {
		network["maskRequestHost"] = v.Host
	}
	if len(v.HTTPSPorts) > 0 {
		network["httpsPorts"] = v.HTTPSPorts
	}
}
