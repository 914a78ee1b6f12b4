// Package problem describes why traffic is refused: to the box, in texts made only of the box's own input, rules of its own
// policy and constants of the source code; to the log, in full.
package problem

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Problem is the problem details body of a refusal over HTTP (RFC 9457).
type Problem struct {
	Type   string      `json:"type"`
	Title  string      `json:"title"`
	Status int         `json:"status"`
	Detail string      `json:"detail,omitempty"`
	Host   string      `json:"host,omitempty"`
	Reason name.Reason `json:"reason"`
	Rule   string      `json:"rule,omitempty"`
	// NextSteps are steps that a program in the box can take, in order.
	NextSteps []string `json:"next_steps,omitempty"`

	// Own is the body in another form, of the media type application/json; nil: problem details. Fields are further header fields of the
	// response, of name and value.
	Own    []byte      `json:"-"`
	Fields [][2]string `json:"-"`
}

// MediaType returns the media type of the body.
func (p *Problem) MediaType() string {
	if p.Own != nil {
		return "application/json"
	}
	return "application/problem+json"
}

// Fenced is the problem for a request to a host of a header rule of the fleet while this host is fenced.
func Fenced(host, rule string) *Problem {
	return &Problem{
		Status: http.StatusBadGateway, Reason: name.ReasonFleetFenced, Host: host, Rule: rule,
		Detail: "The header rule of this host is the fleet's, and the gateway is cut off from the fleet. The request may be made again.",
	}
}

// Of returns the problem for err: 403 for a policy denial, 502 for an upstream that could not be used, and 503 if the box
// has reached its limit of upstream connections. It contains only the box's own input, rules of its own policy, and texts
// of a closed set.
func Of(err error) Problem {
	var denied *policy.DeniedError
	if errors.As(err, &denied) {
		if denied.Decision.Reason == name.ReasonFleetFenced {
			return *Fenced(denied.Request.Name.String(), denied.Decision.ShownRule())
		}
		return Problem{
			Status: http.StatusForbidden, Detail: denied.Shown(), Host: denied.Request.Name.String(),
			Reason: denied.Decision.Reason, Rule: denied.Decision.ShownRule(),
		}
	}
	var up *Upstream
	if errors.As(err, &up) {
		status := http.StatusBadGateway
		if up.Reason == name.ReasonLimit {
			status = http.StatusServiceUnavailable
		}
		return Problem{Status: status, Detail: up.shown(), Host: up.Name.String(), Reason: up.Reason}
	}
	return Problem{Status: http.StatusBadGateway, Reason: name.ReasonInternal}
}

// Body returns the problem as JSON, with type and title derived from its other fields.
func (p Problem) Body() []byte {
	if p.Own != nil {
		return p.Own
	}
	p.Type = "about:blank"
	p.Title = http.StatusText(p.Status)
	b, err := json.Marshal(p)
	if err != nil { // no field can fail to encode; an empty object still refuses
		return []byte("{}")
	}
	return append(b, '\n')
}

// Write writes the problem as an HTTP/1.1 response and announces that the connection closes.
func Write(w io.Writer, p Problem) error {
	body := p.Body()
	_, err := fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n"+
		"Cache-Control: no-store\r\nConnection: close\r\n\r\n%s", p.Status, http.StatusText(p.Status), len(body), body)
	return err
}

// minRSA is the minimum size in bits of RSA keys in a certificate chain. crypto/x509 accepts any size; the clients in boxes
// do not, because of OpenSSL's security level 2.
const minRSA = 2048

// ErrWeakKey rejects a server if each of its chains has a smaller RSA key.
var ErrWeakKey = error(Fixed("the server's certificate, or one that it depends on, has an RSA key of less than 2,048 bits"))

// WeakKey returns [ErrWeakKey] for such a server. It is meant for tls.Config.VerifyConnection.
func WeakKey(cs tls.ConnectionState) error {
	weak := func(c *x509.Certificate) bool {
		key, ok := c.PublicKey.(*rsa.PublicKey)
		return ok && key.N.BitLen() < minRSA
	}
	for _, chain := range cs.VerifiedChains {
		if !slices.ContainsFunc(chain, weak) {
			return nil
		}
	}
	return ErrWeakKey
}
