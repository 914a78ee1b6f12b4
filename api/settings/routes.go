package settings

import (
	"context"
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Host stores the settings. Errors are as in package api.
type Host interface {
	// Environment returns the variables of new boxes.
	Environment(ctx context.Context) (map[string]name.Secret, error)
	// SetEnvironment replaces all variables. A variable that is a placeholder in a global header rule is a
	// *document.InvalidError.
	SetEnvironment(ctx context.Context, vars map[string]name.Secret) error
	// SetVariable sets one variable. Exceeding the limit is a *document.InvalidError.
	SetVariable(ctx context.Context, name string, value name.Secret) error
	// DeleteVariable removes one variable.
	DeleteVariable(ctx context.Context, name string) error
	// Configure changes a box's configuration. If change returns an error, the configuration stays as it was. Changes of
	// the same box are serialized.
	Configure(ctx context.Context, id policy.BoxID, change func(*api.Configuration) error) (api.Box, error)
}

// Rules changes the limits and source addresses of a box.
type Rules interface {
	// SetSource changes the source addresses of a box. When it returns, all its traffic leaves from them and open
	// connections were cut. An address that the operator does not offer is a *document.InvalidError.
	SetSource(ctx context.Context, id policy.BoxID, source policy.Source) (api.Box, error)
	// SetLimits changes the limits of a box and returns once they apply. If change returns an error, the limits stay as
	// they were.
	SetLimits(ctx context.Context, id policy.BoxID, change func(api.BoxLimits) (api.BoxLimits, error)) (api.Box, error)
}

// Boxes finds the boxes.
type Boxes interface {
	rest.Finder
	// HostLimits returns the configured limits of every box.
	HostLimits() policy.Limits
}

// Endpoints serves the settings.
type Endpoints struct {
	Boxes   Boxes
	Host    Host
	Rules   Rules
	History *history.History
	Bodies  strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/settings/env", ID: "getEnvironment", Summary: "The environment variables of new boxes, without values", Response: reflect.TypeFor[envView](), Handle: e.getEnv},
		{Method: "PUT", Path: "/v2/box/settings/env", ID: "setEnvironment", Summary: "Replace the environment variables of new boxes", Request: reflect.TypeFor[envBody](), Example: `{"env_vars":{"LOG_LEVEL":"info"}}`, Response: reflect.TypeFor[envView](), Handle: e.putEnv},
		{Method: "PUT", Path: "/v2/box/settings/env/{key}", ID: "setVariable", Summary: "Set an environment variable of new boxes", Request: reflect.TypeFor[variableBody](), Example: `{"value":"info"}`, Response: reflect.TypeFor[rest.OK](), Handle: e.putVariable},
		{Method: "DELETE", Path: "/v2/box/settings/env/{key}", ID: "deleteVariable", Summary: "Remove an environment variable of new boxes", Response: reflect.TypeFor[rest.OK](), Handle: e.deleteVariable},
		{Method: "POST", Path: "/v2/box/{id}/config/labels", ID: "addLabel", Summary: "Add a label to a box", Request: reflect.TypeFor[labelBody](), Example: `{"label":"team-a"}`, Response: reflect.TypeFor[labelsView](), Handle: e.addLabel},
		{Method: "DELETE", Path: "/v2/box/{id}/config/labels/{label}", ID: "removeLabel", Summary: "Remove a label from a box", Response: reflect.TypeFor[labelsView](), Handle: e.removeLabel},
		{Method: "PUT", Path: "/v2/box/{id}/config/source-addresses", ID: "setSource", Summary: "Replace the host addresses that a box's traffic leaves from; open connections are cut", Request: reflect.TypeFor[sourceBody](), Example: `{"source_addresses":["203.0.113.7","2001:db8::7"]}`, Response: reflect.TypeFor[sourceView](), Handle: e.putSource},
		{Method: "GET", Path: "/v2/box/{id}/config/limits", ID: "getLimits", Summary: "The limits of a box", Response: reflect.TypeFor[limitsView](), Handle: e.getLimits},
		{Method: "PATCH", Path: "/v2/box/{id}/config/limits", ID: "changeLimits", Summary: "Change the limits of a box; keys without the role admin may only lower them", Request: reflect.TypeFor[limitsBody](), Example: `{"limits":{"connections":100,"send_bytes_per_second":1048576}}`, Response: reflect.TypeFor[limitsView](), Handle: e.changeLimits},
		{Method: "PUT", Path: "/v2/box/{id}/config/model", ID: "setModel", Summary: "Replace the model of a box; it is only stored and returned", Request: reflect.TypeFor[modelBody](), Example: `{"model":"anthropic/claude-sonnet-4-5"}`, Response: reflect.TypeFor[modelView](), Handle: e.putModel},
		{Method: "PUT", Path: "/v2/box/{id}/config/custom-runner", ID: "setCustomRunner", Summary: "Replace the custom harness of a box", Request: reflect.TypeFor[runnerBody](), Example: `{"custom_runner":{"command":"node","args":["/workspace/home/harness.mjs"],"protocol":"box-sse-v1"}}`, Response: reflect.TypeFor[runnerView](), Handle: e.putRunner},
		{Method: "POST", Path: "/v2/box/{id}/config/skills", ID: "addSkill", Summary: "Add a skill to a box; it is only stored and returned", Request: reflect.TypeFor[skillBody](), Example: `{"skill_id":"owner/repository/skill"}`, Response: reflect.TypeFor[skillsView](), Handle: e.addSkill},
		{Method: "DELETE", Path: "/v2/box/{id}/config/skills/{owner}/{repository}", ID: "removeRepository", Summary: "Remove a skill that is a whole repository from a box", Response: reflect.TypeFor[skillsView](), Handle: e.removeSkill},
		{Method: "DELETE", Path: "/v2/box/{id}/config/skills/{owner}/{repository}/{skill}", ID: "removeSkill", Summary: "Remove a skill from a box", Response: reflect.TypeFor[skillsView](), Handle: e.removeSkill},
	}
}
