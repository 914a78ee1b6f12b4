package exchange

import (
	"net/http"

	"boxgate/policy"
	"boxgate/proxy/problem"
)

// RetryAfter is when a client that sent too many requests may try again, in seconds (RFC 9110, 10.2.3).
const RetryAfter = "1"

// TooMany refuses a request of a box that has sent more of them than it may. It is counted before it is judged: a flood
// costs no decision, and one that is refused anyhow is a flood too.
func TooMany() *problem.Problem {
	return &problem.Problem{Status: http.StatusTooManyRequests, Reason: policy.ReasonLimit,
		Detail: "The box sends more requests a second than it may."}
}

// NoMemory is the problem of a request for which the gateway holds no more for its box.
func NoMemory() *problem.Problem {
	return &problem.Problem{Status: http.StatusServiceUnavailable, Reason: policy.ReasonLimit,
		Detail: "The box makes the gateway hold as much memory as it may."}
}

// Named notes what a request asked for that was never judged.
func (x *Exchange) Named(m *Message) {
	e := &x.Event
	e.Method, e.Path = m.Method, WithoutQuery(m.Path)
	if e.Name == "" {
		e.Name = m.Authority
	}
}
