package spec

import (
	"encoding/json"
	"reflect"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/policy"
)

// Limits is the JSON of limits of one box: name to number, or to null for that of the configuration.
type Limits struct{ json.RawMessage }

// Forms describes the limits.
func (Limits) Forms() []reflect.Type { return []reflect.Type{reflect.TypeFor[LimitsForm]()} }

// LimitsForm describes limits. docs/limits.md says more about each.
type LimitsForm struct {
	Connections    int64 `json:"connections,omitempty" doc:"open through the gateway"`
	NewConnections int64 `json:"new_connections_per_second,omitempty"`
	Interceptions  int64 `json:"interceptions,omitempty" doc:"connections whose TLS is terminated"`
	Streams        int64 `json:"streams,omitempty" doc:"HTTP/2 requests in progress"`
	Requests       int64 `json:"requests_per_second,omitempty"`
	Upstreams      int64 `json:"upstreams,omitempty" doc:"connections to servers for HTTP requests"`
	DNSQueries     int64 `json:"dns_queries_per_second,omitempty"`
	Send           int64 `json:"send_bytes_per_second,omitempty" doc:"0: no limit"`
	Receive        int64 `json:"receive_bytes_per_second,omitempty" doc:"0: no limit"`
	Quota          int64 `json:"quota,omitempty" doc:"bytes in a period of limits.quota_period; 0: no limit"`
	Memory         int64 `json:"memory,omitempty" doc:"bytes that the gateway holds for the box"`
}

// Change reads the limits at a pointer. The body has been checked to be JSON without duplicate keys.
func (l Limits) Change(p *problem.List, at string) api.LimitChange {
	if len(l.RawMessage) == 0 {
		return nil
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(l.RawMessage, &entries); err != nil || entries == nil {
		p.Add(at, "must be an object of limits and numbers")
		return nil
	}
	change := api.LimitChange{}
	for name, text := range entries {
		one := at + "/" + problem.EscapeKey(problem.Clip(name))
		limit, known := policy.LimitNamed(name)
		if !known {
			p.Add(one, "is no limit that a box can have of its own; there are %s", policy.LimitNames())
			continue
		}
		if string(text) == "null" {
			change[limit] = 0
			continue
		}
		var n int64
		if err := json.Unmarshal(text, &n); err != nil {
			p.Add(one, "must be a whole number, or null for that of the configuration")
			continue
		}
		value, err := limit.Value(n)
		if err != nil {
			p.Add(one, "%v", err)
			continue
		}
		change[limit] = value
	}
	return change
}
