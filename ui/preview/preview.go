// Package preview shows a person the effect of a change of a box's policy before it is made, and demands that wide destinations are typed
// again. It asks the admin API, with the authority of the caller. A preview is without effect.
//
// [Allow] previews one destination, and [Check] the text of a whole policy. Both return a digest of the effect: a page makes the
// change only if the digest is still the same, and only of the version that was shown.
package preview

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/spec"
	"boxgate/policy"
	"boxgate/policy/authority"
	"boxgate/policy/document"
	"boxgate/policy/learn"
	"boxgate/policy/name"
)

// Client calls the admin API. [api.Client] is one.
type Client interface {
	Get(ctx context.Context, path string, out any) error
	Do(ctx context.Context, method, path string, in, out any) error
	DoIf(ctx context.Context, version uint64, method, path string, in, out any) error
}

// State is the policy of a box, as the API returns it.
type State struct {
	policy.Spec
	Named   string  `json:"named"` // the named policy that the box follows
	Version uint64  `json:"version"`
	Leases  []Lease `json:"leases"`
}

// Lease is a temporary entry of a policy.
type Lease struct {
	Action    string `json:"action"`
	Entry     string `json:"entry,omitempty"`
	ExpiresAt int64  `json:"expires_at,omitempty"` // Unix seconds
}

// Read returns the policy of a box.
func Read(ctx context.Context, c Client, box string) (s State, err error) {
	err = c.Get(ctx, policyPath(box), &s)
	return s, err
}

func policyPath(box string) string { return api.BoxPath(box, "config/network-policy") }

// kept returns the leases as a body of the API lists them to let them go on.
func (s *State) kept() []spec.LeaseEntry {
	list := []spec.LeaseEntry{}
	for _, l := range s.Leases {
		list = append(list, spec.LeaseEntry{Action: l.Action, Entry: l.Entry})
	}
	return list
}

// Concern is something about a change that a person should read twice.
type Concern struct {
	Text string
	// Retype demands that the person types the destination, or the name of the box, again.
	Retype bool
}

// suspicionOf returns the concern about a name that a policy is to allow, if there is one.
func suspicionOf(now policy.Spec, p name.Pattern) (Concern, bool) {
	s := learn.Suspect(now, p.Name().String(), p.Port())
	var text []string
	switch {
	case s.Why == learn.WhyLookAlike:
		text = append(text, fmt.Sprintf("%s looks like %s and is another name.", p, s.Like))
	case s.Unicode != "" && s.Why != "":
		text = append(text, fmt.Sprintf("%s has letters outside ASCII.", p))
	}
	if s.Unicode != "" && s.Why != "" {
		text = append(text, fmt.Sprintf("Programs may show it as %s.", s.Unicode))
	}
	if len(s.Scripts) > 1 {
		text = append(text, fmt.Sprintf("It mixes letters of %s.", strings.Join(s.Scripts, " and ")))
	}
	return Concern{strings.Join(text, " "), true}, s.Why != ""
}

// digestOf returns the digest of everything that a person was shown and confirms.
func digestOf(parts ...any) string {
	text, err := json.Marshal(parts)
	if err != nil {
		return "" // which is the digest of no preview, see Same
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// same reports whether a digest is that of a preview.
func same(digest, shown string) bool { return digest != "" && digest == shown }

// headersIn returns the header rules that cover the gains of a difference.
func headersIn(d authority.Difference) (list []string) {
	seen := map[string]bool{}
	for i := range d.Gained {
		for _, h := range d.Gained[i].Headers {
			if !seen[h] {
				seen[h] = true
				list = append(list, h)
			}
		}
	}
	return list
}

// Changed reports whether an error of the API says that another version is in force.
func Changed(err error) bool {
	refused, ok := errors.AsType[*api.ResponseError](err)
	return ok && refused.Status == http.StatusPreconditionFailed
}

// Fields returns problems by the field of the form that they point to.
func Fields(problems []document.Problem) map[string]string {
	fields := map[string]string{}
	for _, p := range problems {
		if name := strings.TrimPrefix(p.Pointer, "/"); fields[name] == "" {
			fields[name] = p.Message
		}
	}
	return fields
}

// replayed is how much traffic a change is tried on. Outcome names it.
const replayed = 7 * 24 * time.Hour

// replayPath is the endpoint that makes the checks of a change of the policy, without the change.
func replayPath(box string) string {
	return api.BoxPath(box, "egress/replay") + fmt.Sprintf("?since=%dh", replayed/time.Hour)
}
