package proxy

import (
	"net/http"

	"boxgate/policy"
	"boxgate/proxy/problem"
)

// retryAfter is when a client that sent too many requests may try again, in seconds (RFC 9110, 10.2.3).
const retryAfter = "1"

// tooMany refuses a request of a box that has sent more of them than it may. It is counted before it is judged: a flood
// costs no decision, and one that is refused anyhow is a flood too.
func tooMany() *problem.Problem {
	return &problem.Problem{Status: http.StatusTooManyRequests, Reason: policy.ReasonLimit,
		Detail: "The box sends more requests a second than it may."}
}

// noMemory is the problem of a request for which the gateway holds no more for its box.
func noMemory() *problem.Problem {
	return &problem.Problem{Status: http.StatusServiceUnavailable, Reason: policy.ReasonLimit,
		Detail: "The box makes the gateway hold as much memory as it may."}
}

// named notes what a request asked for that was never judged.
func (x *exchange) named(m *message) {
	e := &x.event
	e.Method, e.Path = m.method, withoutQuery(m.path)
	if e.Name == "" {
		e.Name = m.authority
	}
}
