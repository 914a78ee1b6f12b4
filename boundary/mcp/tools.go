package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// tool describes a tool to clients.
type tool struct {
	Name        string         `json:"name"`
	Title       string         `json:"title"`
	Description string         `json:"description"`
	InputSchema map[string]any `json:"inputSchema"`
	Annotations map[string]any `json:"annotations"`
}

// The names of the tools.
const (
	toolPolicy  = "network_policy"
	toolDenials = "network_denials"
	toolRequest = "request_access"
)

// tools lists the tools.
func tools() []tool {
	none := map[string]any{"type": "object", "properties": map[string]any{}, "additionalProperties": false}
	reads := map[string]any{"readOnlyHint": true, "openWorldHint": false}
	field := func(kind, text string) map[string]any { return map[string]any{"type": kind, "description": text} }
	return []tool{
		{toolPolicy, "Network policy", "Returns the destinations that this sandbox may reach, and the hosts whose requests get credentials outside it.", none, reads},
		{toolDenials, "Denied requests", "Returns the latest denied requests of this sandbox, the reason of each, and the next steps.", none, reads},
		{toolRequest, "Ask for access", "Asks for access to a destination that the policy denies, and waits for the answer. Ask only for what the task needs, and give a reason for a person who does not know the task.", map[string]any{
			"type": "object", "required": []string{"host", "reason"}, "additionalProperties": false,
			"properties": map[string]any{
				"host":         field("string", "a host name, or an IP address"),
				"port":         field("integer", "TCP port; 443 by default; none for an address"),
				"method":       field("string", "with path: ask only for requests with this HTTP method, which a request rule denies on a host that is allowed"),
				"path":         field("string", "with method: the path without a query; with a star at its end, every path that begins so"),
				"reason":       field("string", "why the task needs it, up to 1,000 bytes"),
				"expires_in":   field("integer", "seconds of access to ask for"),
				"wait_seconds": field("integer", "longest wait for the answer: 50 by default, 3600 at most, 0 for none; call again with the same arguments to go on waiting"),
			},
		}, map[string]any{"readOnlyHint": false, "idempotentHint": true, "openWorldHint": false}},
	}
}

// call is one call of a tool.
type call struct {
	server *Server
	token  json.RawMessage // for reports of progress; nil: the client wants none
	steps  int             // reports so far
}

// run runs a tool.
func (c *call) run(ctx context.Context, name string, arguments json.RawMessage) (string, error) {
	switch name {
	case toolPolicy:
		text, err := c.server.requestUntil(ctx, time.Now().Add(replacing), false, "GET", "/v1/policy", nil)
		return string(text), err
	case toolDenials:
		text, err := c.server.requestUntil(ctx, time.Now().Add(replacing), false, "GET", "/v1/denials", nil)
		return string(text), err
	}
	return c.ask(ctx, arguments)
}

// asked is the part of an answer of the endpoint that the server reads.
type asked struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Human string `json:"needs_human"`
}

// ask makes a request for access, and waits for the answer. The endpoint checks the arguments. Waiting goes on in the process that
// replaces the gateway's.
func (c *call) ask(ctx context.Context, arguments json.RawMessage) (string, error) {
	body, wait, err := split(arguments)
	if err != nil {
		return "", err
	}
	text, err := c.server.requestUntil(ctx, time.Now().Add(replacing), false, "POST", "/v1/requests", body)
	if err != nil {
		return "", err
	}
	for until := time.Now().Add(wait); ; {
		var a asked
		if err := json.Unmarshal(text, &a); err != nil {
			return "", fmt.Errorf("the answer of the gateway cannot be read: %w", err)
		}
		left := time.Until(until)
		if a.State != "open" || a.Human != "" || left < time.Second {
			return string(text), nil
		}
		c.report()
		path := fmt.Sprintf("/v1/requests/%s/wait?timeout=%d", url.PathEscape(a.ID), int(min(left, pollTime)/time.Second))
		if text, err = c.server.requestUntil(ctx, until, true, "GET", path, nil); err != nil {
			return "", err
		}
	}
}

// split returns the body of a request for access, and how long to wait for its answer.
func split(arguments json.RawMessage) (body []byte, wait time.Duration, err error) {
	var fields map[string]any
	if err := json.Unmarshal(arguments, &fields); err != nil {
		return nil, 0, errors.New("the arguments are not an object")
	}
	wait = defaultWait
	if given, ok := fields["wait_seconds"]; ok {
		seconds, ok := given.(float64)
		if !ok || seconds < 0 {
			return nil, 0, errors.New("wait_seconds is not a number of seconds")
		}
		wait = time.Duration(min(seconds, longestWait.Seconds()) * float64(time.Second))
		delete(fields, "wait_seconds")
	}
	body, err = json.Marshal(fields)
	return body, wait, err
}

// report tells the client that the call goes on, so that it goes on waiting.
func (c *call) report() {
	if c.token == nil {
		return
	}
	c.steps++
	c.server.writeLine(map[string]any{"jsonrpc": "2.0", "method": "notifications/progress", "params": map[string]any{
		"progressToken": c.token, "progress": c.steps, "message": "waiting for an answer to the request",
	}})
}
