package exchange

import (
	"net/http"

	"boxgate/policy/name"
	"boxgate/proxy/problem"
)

// RetryAfter is the Retry-After of a request over the rate limit, in seconds (RFC 9110, 10.2.3).
const RetryAfter = "1"

// TooMany refuses a request of a box that exceeds its rate limit. Requests are counted before they are judged: a flood
// causes no policy decisions, and refused requests count as well.
func TooMany() *problem.Problem {
	return &problem.Problem{Status: http.StatusTooManyRequests, Reason: name.ReasonLimit,
		Detail: "The box sends more requests a second than it may."}
}

// NoMemory is the problem for a request beyond its box's memory limit.
func NoMemory() *problem.Problem {
	return &problem.Problem{Status: http.StatusServiceUnavailable, Reason: name.ReasonLimit,
		Detail: "The box has reached its memory limit in the gateway."}
}

// Named records the destination of a request that was never judged.
func (x *Exchange) Named(m *Message) {
	e := &x.Event
	e.Method, e.Path = m.Method, WithoutQuery(m.Path)
	if e.Name == "" {
		e.Name = m.Authority
	}
}
