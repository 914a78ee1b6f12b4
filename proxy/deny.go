package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"boxgate/policy"
)

// accessDenied is a TLS record holding the fatal alert access_denied (RFC 8446, 6.2): the answer to a ClientHello whose
// name is refused, sent before any certificate, so the client learns that it was refused and by no impostor.
var accessDenied = []byte{21, 3, 3, 0, 2, 2, 49}

// problem is the body of a refusal over HTTP (RFC 9457).
type problem struct {
	Type   string        `json:"type"`
	Title  string        `json:"title"`
	Status int           `json:"status"`
	Detail string        `json:"detail,omitempty"`
	Host   string        `json:"host,omitempty"`
	Reason policy.Reason `json:"reason"`
	Rule   string        `json:"rule,omitempty"`
}

// problemOf says in HTTP's words why err refused: 403 for a denial of the policy, 502 for an upstream that could not be
// used, 503 where the box has as many connections to upstreams as it may. Nothing gets into it but what the
// box sent, rules of its own policy, and texts of a closed set.
func problemOf(err error) problem {
	var denied *policy.DeniedError
	if errors.As(err, &denied) {
		return problem{
			Status: http.StatusForbidden, Detail: denied.Shown(), Host: denied.Request.Name.String(),
			Reason: denied.Decision.Reason, Rule: denied.Decision.ShownRule(),
		}
	}
	var up *upstreamError
	if errors.As(err, &up) {
		status := http.StatusBadGateway
		if up.Reason == policy.ReasonLimit {
			status = http.StatusServiceUnavailable
		}
		return problem{Status: status, Detail: up.shown(), Host: up.Name.String(), Reason: up.Reason}
	}
	return problem{Status: http.StatusBadGateway, Reason: policy.ReasonInternal}
}

// body returns the problem as JSON with what follows from its other fields filled in.
func (p problem) body() []byte {
	p.Type = "about:blank"
	p.Title = http.StatusText(p.Status)
	b, err := json.Marshal(p)
	if err != nil { // no field can fail to encode; an empty object still refuses
		return []byte("{}")
	}
	return append(b, '\n')
}

// writeProblem answers HTTP/1.1 with the problem and says that the connection ends.
func writeProblem(w io.Writer, p problem) error {
	body := p.body()
	_, err := fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n"+
		"Cache-Control: no-store\r\nConnection: close\r\n\r\n%s", p.Status, http.StatusText(p.Status), len(body), body)
	return err
}
