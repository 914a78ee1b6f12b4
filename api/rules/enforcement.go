package rules

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
)

// This part has a policy audited for a time: traffic that it refuses passes, and is recorded as would_deny.

const enforcementPath = "/v2/box/{id}/config/network-policy/enforcement"

// The ways to apply a policy.
const (
	enforcementEnforce = "enforce"
	enforcementAudit   = "audit"
)

// enforcementView is how a policy is applied.
type enforcementView struct {
	Enforcement string `json:"enforcement" enum:"enforce audit"`
	StartedAt   int64  `json:"started_at,omitempty" doc:"of the audit"`
	ExpiresAt   int64  `json:"expires_at,omitempty" doc:"the policy is enforced again"`
	ExpiresIn   int64  `json:"expires_in,omitempty" doc:"seconds that are left of the audit"`
	Version     uint64 `json:"version" doc:"of the policy, also the ETag"`
}

// enforcementBody asks for a way to apply a policy.
type enforcementBody struct {
	Enforcement string `json:"enforcement" enum:"enforce audit" doc:"audit: refused traffic passes without credentials, except for denied lists, protected ranges and policy.ceiling, and its reason is would_deny"`
	ExpiresIn   *int64 `json:"expires_in,omitempty" doc:"seconds for which the policy is audited; required with audit, 24 hours at most" min:"1" max:"86400" example:"3600"`
}

func (e *Endpoints) enforcementRoutes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: enforcementPath, ID: "getEnforcement", Versioned: true, Summary: "Whether the policy is enforced or audited", Response: reflect.TypeFor[enforcementView](), Handle: e.getEnforcement},
		{Method: "PUT", Path: enforcementPath, ID: "setEnforcement", Versioned: true, Summary: "Audit the policy for a time instead of enforcing it, or enforce it again; answers once that is in force everywhere", Request: reflect.TypeFor[enforcementBody](), Example: `{"enforcement":"audit","expires_in":3600}`, Response: reflect.TypeFor[enforcementView](), Handle: e.putEnforcement},
	}
}

func viewEnforcement(s api.PolicyState) rest.Reply {
	view := enforcementView{Enforcement: enforcementEnforce, Version: s.Version}
	if l, audited := s.Audit(); audited {
		view.Enforcement, view.StartedAt, view.ExpiresAt = enforcementAudit, l.StartedAt.Unix(), l.ExpiresAt.Unix()
		view.ExpiresIn = int64((l.Left + time.Second - 1) / time.Second)
	}
	return rest.Reply{Body: view, Version: s.Version}
}

// lasts returns the time for which the policy is to be audited; 0: it is to be enforced.
func (b *enforcementBody) lasts() (time.Duration, error) {
	most := int64(api.MaxAudit.Seconds())
	switch {
	case b.Enforcement == enforcementEnforce && b.ExpiresIn == nil:
		return 0, nil
	case b.Enforcement == enforcementEnforce:
		return 0, problem.Invalid("/expires_in", "means nothing with enforce; leave it out")
	case b.Enforcement != enforcementAudit:
		return 0, problem.Invalid("/enforcement", "must be enforce or audit")
	case b.ExpiresIn == nil:
		return 0, problem.Invalid("/expires_in", "is missing: an audit has an end, after at most %d seconds", most)
	case *b.ExpiresIn < 1 || *b.ExpiresIn > most:
		return 0, problem.Invalid("/expires_in", "must be between 1 and %d seconds", most)
	}
	return time.Duration(*b.ExpiresIn) * time.Second, nil
}

func (e *Endpoints) getEnforcement(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.policyOf(r, viewEnforcement)
}

func (e *Endpoints) putEnforcement(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body enforcementBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	lasts, err := body.lasts()
	if err != nil {
		return rest.Reply{}, err
	}
	what := "network policy enforced"
	if lasts > 0 {
		what = fmt.Sprintf("network policy audited instead of enforced for %v", lasts)
	}
	return e.changePolicyOf(r, box.ID, what, viewEnforcement, func(ctx context.Context, match *uint64) (api.PolicyState, error) {
		return e.Host.SetEnforcement(ctx, box.ID, lasts, match)
	})
}
