// Package boundary has the texts that describe its boundary to a box: the name of the endpoint that the gateway serves to boxes,
// the steps that a program in a box can take after a denial, and an introduction for agents.
package boundary

import (
	"encoding/json"
	"strings"
	"time"

	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/name"
)

// Host is the name of the endpoint that the gateway serves to boxes, over HTTP on port 80. The top-level domain "internal" is
// reserved for private use (ICANN, 29 July 2024), so the name cannot be a server's on the internet.
const Host = "policy.boxgate.internal"

// Port is the only port of the endpoint.
const Port = 80

// URL is the address of the endpoint, without a slash at the end.
const URL = "http://" + Host

// Name is [Host] in canonical form.
var Name = parsed()

func parsed() name.Name {
	n, err := name.Parse(Host)
	if err != nil {
		panic(err) // a constant
	}
	return n
}

// CanAsk reports whether an approval may open a destination that was denied for a reason. Entries that deny, protected ranges
// and faults of the request are not open to approval.
func CanAsk(why name.Reason) bool { return why == name.ReasonNotAllowed || why == name.ReasonDenyAll }

// Denial is a denial as it is reported to a program in a box.
type Denial struct {
	Reason name.Reason
	Rule   string // the rule that decided, if known
	Host   string // a name or an address; "" if unknown
	Port   uint16 // 0 if unknown
	Method string // of a request, with Path; "" for anything else
	Path   string
	Asked  string // ID of the open request of the box for it; "" if there is none
}

// NextSteps returns the steps that a program in a box can take after a denial by a policy, in order. It returns nil for reasons without
// advice.
func NextSteps(c *policy.Compiled, d Denial) []string {
	switch {
	case policy.IsOfCeiling(d.Rule):
		return []string{"Do not repeat the request: the operator's ceiling refuses it, and an approval cannot open it."}
	case d.Asked != "":
		return []string{
			"You have asked for it. Wait for the answer: GET " + URL + "/v1/requests/" + d.Asked + "/wait, again while its state is open",
			"If the state is once or always, repeat the denied request. If it is denied, do not repeat it: work without it, or report that it is missing.",
		}
	case CanAsk(d.Reason) && d.Host != "":
		return steps("destination", ask{Host: d.Host, Port: d.Port})
	case CanAsk(d.Reason):
		return []string{"Find the name of the destination, and ask for access to it at " + URL + "/v1/requests"}
	case d.Reason == name.ReasonRequestRule && canAskFor(c, d):
		return steps("request", ask{Host: d.Host, Port: d.Port, Method: d.Method, Path: d.Path})
	}
	switch d.Reason {
	case name.ReasonRequestRule:
		return []string{"Do not repeat the request: a rule refuses it that depends on more than the method and the path, such as MCP or GraphQL messages, and an approval cannot open it. GET " + URL + "/v1/policy shows the rules."}
	case name.ReasonDeniedDomain, name.ReasonDeniedCIDR, name.ReasonProtectedRange, name.ReasonHeaderRule, name.ReasonUnreadableContent, name.ReasonModelDenied:
		return []string{"Do not repeat the request: the policy refuses it, and an approval cannot open it. GET " + URL + "/v1/policy shows the policy."}
	case name.ReasonAmbiguousPath:
		return []string{"Send the path without dot segments, repeated slashes and the like. An approval cannot open it."}
	case name.ReasonLimit:
		return []string{"Wait, then repeat the request: the box has reached a limit."}
	case name.ReasonModelBudget:
		return []string{"Stop asking the model: the box has used up its budget. An approval cannot raise it."}
	case name.ReasonQuota:
		return []string{"Stop sending: the box has used up its traffic quota."}
	}
	return nil
}

// canAskFor reports whether an approval may open a request that a request rule denies.
func canAskFor(c *policy.Compiled, d Denial) bool {
	n, err := name.Parse(d.Host)
	if err != nil || strings.Contains(d.Path, "*") { // which would mean other paths as well
		return false
	}
	e, err := amend.NewRequestEntry(n, d.Port, d.Method, d.Path)
	if err != nil {
		return false
	}
	_, err = e.Denying(c)
	return err == nil
}

// ask is a request for access as a program in a box makes it.
type ask struct {
	Host   string `json:"host"`
	Port   uint16 `json:"port,omitempty"`
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	Reason string `json:"reason"`
}

// steps returns the steps that lead to an approval.
func steps(what string, a ask) []string {
	a.Reason = "WHY YOU NEED IT"
	text, err := json.Marshal(a)
	if err != nil {
		return nil
	}
	list := []string{
		"Check whether the task can be done without this " + what + ".",
		"If not, ask for access: POST " + string(text) + " as application/json to " + URL + "/v1/requests",
		"Wait for the answer: GET the wait_url of the response, again while its state is open",
		"If the state is once or always, repeat the denied request. If it is denied, do not repeat it: work without the " + what + ", or report that it is missing.",
	}
	if a.Path != "" {
		list[1] += ` ("path" may end with a star, if requests with other paths that begin alike are needed too)`
	}
	return list
}

// Policy is the policy of a box, as the box sees it.
type Policy struct {
	Spec    policy.Spec `json:"policy"`
	Version uint64      `json:"version"`
	// Temporary lists entries that are allowed or denied for a time in addition to the policy.
	Temporary []Temporary `json:"temporary"`
	// Credentials lists patterns of hosts whose requests get credentials from the gateway.
	Credentials []string `json:"credentials_added_for"`
}

// Temporary is an entry with an end.
type Temporary struct {
	Action    string    `json:"action"`
	Entry     string    `json:"entry"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Agents is an introduction for agents that work in a box with the endpoint.
const Agents = `# The network of this sandbox

A gateway outside this sandbox decides about each connection and request. The following is about the network only.

- A denied request fails quickly: HTTP 403 with a JSON body that has "reason" and "next_steps", a TLS error (access denied), or
  a reset connection. Repeating it does not help. Do not look for a way around it.
- Credentials of some services are added to your requests outside the sandbox. You need no key for them; the policy lists them
  as "credentials_added_for".
- Ask before you work around: a person or a program can approve a destination for a time.

Everything is at ` + URL + `, over plain HTTP, without a key:

| request | result |
|---|---|
| GET /v1/policy | what this sandbox may reach |
| GET /v1/denials | what was denied lately, why, and the next steps |
| POST /v1/requests | ask for a destination: {"host": "api.example.com", "port": 443, "reason": "why you need it"} |
| the same with "method" and "path" | ask for requests that a rule denies on a host that is allowed: {"host": "api.example.com", "method": "DELETE", "path": "/v1/items/*", "reason": "why you need it"} |
| GET /v1/requests | your requests and their answers |
| GET /v1/requests/{id}/wait | wait up to a minute for the answer; repeat while "state" is "open" |
| GET /v1/ca | the certificate authority that this sandbox must trust, as PEM |

Example:

    curl -sS ` + URL + `/v1/requests -H 'Content-Type: application/json' \
      -d '{"host": "api.example.com", "port": 443, "reason": "the tests download their fixtures from it"}'

"state" becomes "once" (access until "until"), "always" or "denied". With "needs_human" set, a person has to answer: go on with
other work. At most 16 requests can be open. Write the reason for a person who does not know your task.
`
