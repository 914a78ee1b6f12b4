package command

import (
	"context"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/remedy"
	"boxgate/boundary"
	"boxgate/policy"
	"boxgate/policy/name"
)

// asking looks up the approval requests of boxes, for hints below denials. The zero value is ready to use.
type asking struct {
	open []approvalAnswer
	may  map[policy.BoxID]bool // whether the box may ask
	read time.Time             // when the oldest part was read
}

// askingAge is how long the answers of the gateway are used.
const askingAge = 10 * time.Second

// of returns a sentence about approvals below a denial, or "" if an approval cannot open the destination, or the box cannot ask.
func (a *asking) of(ctx context.Context, client *api.Client, e audit.Event) string {
	if e.Verdict != policy.Deny || e.Box == "" || policy.IsOfCeiling(e.Rule) || !boundary.CanAsk(e.Reason) && e.Reason != name.ReasonRequestRule {
		return ""
	}
	if a.may == nil || time.Since(a.read) > askingAge {
		a.open, a.may, a.read = nil, map[policy.BoxID]bool{}, time.Now()
		_ = client.Get(ctx, "/v2/approvals?state=open", &a.open) // an older gateway has none, and some keys do not see them
	}
	may, known := a.may[e.Box]
	if !known {
		var view struct{ Enabled bool }
		may = client.Get(ctx, api.BoxPath(string(e.Box), "config/approvals"), &view) == nil && view.Enabled
		a.may[e.Box] = may
	}
	if !may {
		return ""
	}
	for i := range a.open {
		if r := &a.open[i]; r.Box == string(e.Box) && r.covers(e) {
			return remedy.Asked(e, r.ID)
		}
	}
	if e.Reason == name.ReasonRequestRule {
		return "" // most such rules are not open to approval
	}
	return remedy.Asked(e, "")
}

// covers reports whether the request asks for the destination of a denial.
func (a *approvalAnswer) covers(e audit.Event) bool {
	if a.Method != "" {
		prefix, isPrefix := strings.CutSuffix(a.Path, "*")
		return a.Host == e.Name && a.Port == e.Port && a.Method == e.Method && (a.Path == e.Path || isPrefix && strings.HasPrefix(e.Path, prefix))
	}
	if a.Port == 0 {
		return e.Name == "" && e.Addr.IsValid() && a.Host == e.Addr.Unmap().String()
	}
	return a.Host == e.Name && (a.Port == e.Port || e.Stage == policy.StageDNS)
}
