package access

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/rule"
)

// finder finds a box by its ID or name.
type finder interface {
	Box(ctx context.Context, idOrName string) (api.Box, error)
}

// snapshots lists the snapshots of a box, which may have been deleted.
type snapshots interface {
	Snapshots(ctx context.Context, box policy.BoxID) ([]api.Snapshot, error)
}

// Permit decides whether the caller of a request may call the endpoint, and for which box. It alone makes that decision.
// The mux has already matched the request, so {id} is the value that the endpoint reads.
//
// For keys that do not see every box, it replaces {id} by the ID of the box it checked, so that a name that moves to
// another box in the meantime gives no access to that box.
func Permit(r *http.Request, route string, boxes finder, of snapshots) error {
	caller, g := api.CallerOf(r.Context()), grants[route]
	if err := permitRole(caller, route); err != nil {
		return err
	}
	id := r.PathValue("id")
	if id == "" || caller.Role == api.RoleAdmin || caller.Role == api.RoleReader || caller.Role == api.RoleAuditor || caller.Role == api.RoleApprover {
		return nil
	}
	box, err := boxes.Box(r.Context(), id)
	if err != nil || !caller.Sees(box) {
		if g&outlives != 0 && seesSnapshotOf(r.Context(), policy.BoxID(id), caller, of) {
			return nil
		}
		return api.Errorf(api.ErrNotFound, "no box has the ID or name %q", problem.Clip(id))
	}
	r.SetPathValue("id", string(box.ID))
	return nil
}

// permitRole returns an error unless keys with the role of a caller may call the endpoint.
func permitRole(caller api.Caller, route string) error {
	if g, known := grants[route]; known && g.permits(caller.Role) {
		return nil
	}
	return problem.Refuse(http.StatusForbidden, "the API key %q has the role %s, which may not do this; see docs/keys.md for what may, and on the gateway's host `gateway api-key create` for another key", caller.Name, roleName(caller.Role))
}

// seesSnapshotOf reports whether a key sees a snapshot of a box that it cannot see, because the box was deleted.
func seesSnapshotOf(ctx context.Context, id policy.BoxID, caller api.Caller, of snapshots) bool {
	list, err := of.Snapshots(ctx, id)
	return err == nil && slices.ContainsFunc(list, caller.SeesSnapshot)
}

// May returns an error unless the caller of a request may call the endpoint with an ID, for a box that the caller sees. It is for an
// endpoint that also does the work of another one.
func May(ctx context.Context, id string) error {
	caller := api.CallerOf(ctx)
	if g, known := grants[id]; known && g.permits(caller.Role) {
		return nil
	}
	return problem.Refuse(http.StatusForbidden, "the API key %q has the role %s, which may not do this as part of the call: it also needs the permission for %s; see docs/keys.md", caller.Name, roleName(caller.Role), id)
}

func roleName(r api.Role) string {
	if r == "" {
		return "none"
	}
	return string(r)
}

// Secrets finds the secrets that header rules may refer to.
type Secrets struct {
	// Has reports whether the configuration has a secret.
	Has func(name string) bool
	// OfKey finds a secret that an API key has stored, by its name or ID, for a rule of a host pattern. nil: keys have no secrets.
	OfKey func(key, n string, host name.Pattern) (source, flaw string, found bool)
}

// Finder returns a function that finds the secrets for the rules of a request: the stored secrets of its API key and, for admin keys, first
// the secrets of the configuration. With other keys, a caller could have a secret sent to its own server and read it.
func (s Secrets) Finder(ctx context.Context) rule.Finder {
	caller := api.CallerOf(ctx)
	configured := rule.Configured(func(n string) bool { return caller.Role == api.RoleAdmin && s.Has(n) })
	return func(n string, host name.Pattern) (source, flaw string) {
		if source, flaw = configured(n, host); flaw == "" || s.OfKey == nil || caller.Key == "" {
			return source, flaw
		}
		own, why, found := s.OfKey(caller.Key, n, host)
		if !found {
			return source, flaw + ", nor one that this API key has stored (POST /v2/key-secrets)"
		}
		return own, why
	}
}

// Rules refuses header rules that require an admin key: rules that send requests, with identifying headers of the box, to
// another server, and rules that use secrets of the operator or of other API keys, even if
// an admin added those earlier.
func Rules(ctx context.Context, rules []policy.HeaderRule) error {
	caller := api.CallerOf(ctx)
	if caller.Role == api.RoleAdmin {
		return nil
	}
	for _, r := range rules {
		for _, e := range r.Effects {
			if _, only := e.(rule.AdminOnly); only {
				return problem.Refuse(http.StatusForbidden, "%s of %q needs an API key with the role %s", e.Key(), r.Pattern, api.RoleAdmin)
			}
		}
		for _, n := range r.Secrets() {
			if key, _, ofKey := name.SplitKeySecret(n); !ofKey || key != caller.Key || caller.Key == "" {
				return problem.Refuse(http.StatusForbidden, "the secret %q in the rule of %q needs an API key with the role %s", problem.Clip(n), r.Pattern, api.RoleAdmin)
			}
		}
	}
	return nil
}

// grant contains the roles, besides admin, that may call an endpoint, and properties of the endpoint. The zero value
// grants no access.
type grant uint16

const (
	// own: box-creator and one-box keys, for the boxes that they see.
	own grant = 1 << iota
	// creates: box-creator keys.
	creates
	// reads: read-only keys. The endpoint must return no secret, file or command, and execute no code.
	reads
	// changes: every call is recorded in the audit trail. Endpoints without it only read.
	changes
	// outlives: the endpoint also serves the snapshots of a deleted box, by its ID, to keys that see them.
	outlives
	// runs: the endpoint runs a command in a box, which counts against the quota of the key.
	runs
	// audits: auditor keys. The endpoint must return records only, without secrets, and execute no code.
	audits
	// approves: approver keys, which may call no other endpoint.
	approves

	admin grant = 0 // admin keys only
)

// grants lists every endpoint that requires a key, by the ID of its route. Endpoints missing here are refused for every
// key; a test of api/server checks that the table is complete.
var grants = map[string]grant{
	"getDescription": own | reads | audits,

	"createBox":             creates | changes,
	"createBoxFromSnapshot": creates | changes, // from a snapshot that the key sees
	"attachBox":             admin | changes,   // gives access to the host
	"reattachBox":           admin | changes,
	"detachBox":             admin | changes,
	"createBoxToken":        own | changes,
	"deleteBoxToken":        own | changes,
	"listBoxes":             own | reads, // lists the boxes that the key sees
	"deleteBoxes":           own | changes,
	"getBox":                own | reads,
	"deleteBox":             own | changes,
	"getBoxStatus":          own | reads,
	"setLifetime":           own | changes, // one-box keys only to an earlier end
	"listUsageSamples":      own | reads,
	"setMetadata":           own | changes,
	"suspendBox":            own | changes, // not with one-box keys
	"setEnd":                own | changes, // one-box keys only to a deletion
	"testBox":               own | changes,

	"pauseBox":          own | changes,
	"resumeBox":         own | changes,
	"getStartup":        own,
	"setStartup":        own | changes,
	"deleteStartup":     own | changes,
	"getInitCommand":    own,
	"setInitCommand":    own | changes,
	"deleteInitCommand": own | changes,

	"runCommand":    own | changes | runs,
	"streamCommand": own | changes | runs,
	"startCommand":  own | changes | runs,
	"runCode":       own | changes | runs,
	"streamCode":    own | changes | runs,
	"listRuns":      own,
	"getRun":        own,
	"cancelRun":     own | changes,
	"listLogs":      own,
	"openSession":   own | changes | runs,
	"listProcesses": own,
	"startProcess":  own | changes | runs,
	"readProcess":   own,
	"writeProcess":  own | changes,
	"signalProcess": own | changes,
	"resizeProcess": own | changes,
	"runAgent":      own | changes | runs,
	"streamAgent":   own | changes | runs,

	"readFile":      own,
	"writeFile":     own | changes,
	"listFiles":     own,
	"statFile":      own,
	"makeDirectory": own | changes,
	"removeFile":    own | changes,
	"renameFile":    own | changes,
	"unpackFiles":   own | changes,
	"uploadFiles":   own | changes,
	"downloadFile":  own,
	"watchFiles":    own,

	"setFileAttributes": own | changes,

	"gitClone":               own | changes | runs,
	"gitStatus":              own | runs,
	"gitDiff":                own | runs,
	"gitCommit":              own | changes | runs,
	"gitPush":                own | changes | runs,
	"gitCheckout":            own | changes | runs,
	"gitExec":                own | changes | runs,
	"gitCreatePullRequest":   own | changes | runs,
	"setGitIdentity":         own | changes,
	"setGitIdentityAsBefore": own | changes,

	"getPolicy":           own | reads,
	"setPolicy":           own | changes,
	"getLeases":           own | reads,
	"addLeases":           own | changes,
	"endLeases":           own | changes,
	"getEnforcement":      own | reads,
	"setEnforcement":      own | changes, // an audit also needs policy.audit
	"getNetwork":          own | reads,
	"setNetwork":          own | changes, // also needs setPolicy and setHeaders
	"getHeaders":          own | reads,
	"setHeaders":          own | changes,
	"changeHeaders":       own | changes,
	"getGlobalHeaders":    admin | reads,
	"setGlobalHeaders":    admin | changes,
	"changeGlobalHeaders": admin | changes,

	"listNamedPolicies": creates | reads, // other keys may only refer to them
	"getNamedPolicy":    creates | reads,
	"setNamedPolicy":    admin | changes, // affects every box that follows it, whoever created the box
	"deleteNamedPolicy": admin | changes,

	"listBoxDecisions":     own | reads | audits,
	"listObservations":     own | reads | audits,
	"listDecisions":        admin | reads | audits,
	"listActivity":         own | reads | audits, // of the boxes that the key sees
	"listPastObservations": admin | reads | audits,
	"searchBoxDecisions":   own | reads | audits,
	"searchDecisions":      admin | reads | audits,
	"explainDecision":      own | reads,
	"replayPolicy":         own | reads,
	"learnPolicy":          own | reads,
	"listPolicyVersions":   own | reads | audits,
	"getPolicyVersion":     own | reads | audits,

	"diagnoseHost": admin | changes, // connects from the host

	"captureRequests": own | changes, // shows headers and bodies, which readers and auditors may not see

	"listApprovals":    own | reads | approves, // lists the requests of the boxes that the key sees
	"listBoxApprovals": own | reads | approves,
	"getApproval":      own | reads | approves,
	"answerApproval":   own | approves | changes, // refused to the box's own keys with approvals.four_eyes
	"getAsking":        own | reads,
	"setAsking":        own | changes,

	"createUrl": own | changes,
	"listUrls":  own | reads,
	"deleteUrl": own | changes,
	"signUrl":   own | changes,

	"sharePorts":   own | changes, // without a token not with one-box keys
	"getPorts":     own | reads,
	"unsharePorts": own | changes,

	"addSchedule":    own | changes,
	"listSchedules":  own,
	"getSchedule":    own,
	"changeSchedule": own | changes,
	"deleteSchedule": own | changes,
	"pauseSchedule":  own | changes,
	"resumeSchedule": own | changes,

	"takeSnapshot":     own | changes,
	"listBoxSnapshots": own | reads | outlives,
	"deleteSnapshot":   own | changes | outlives,
	"listSnapshots":    creates | reads, // lists the snapshots that the key sees
	"deleteSnapshots":  creates | changes,

	"getEnvironment":   admin | reads,
	"setEnvironment":   admin | changes, // affects every new box
	"setVariable":      admin | changes,
	"deleteVariable":   admin | changes,
	"addLabel":         own | changes,
	"removeLabel":      own | changes,
	"setSource":        admin | changes,
	"getLimits":        own | reads,
	"changeLimits":     own | changes, // keys without the role admin may only lower them
	"setModel":         own | changes,
	"setCustomRunner":  own | changes,
	"addSkill":         own | changes,
	"removeSkill":      own | changes,
	"removeRepository": own | changes,

	"getFleet":     admin | reads,
	"cordonHost":   admin | changes,
	"uncordonHost": admin | changes,

	"getStatus":        admin | reads,
	"getBoxCa":         own | reads,
	"getCa":            own | reads,
	"getModelUsage":    admin | reads,
	"createKeySecret":  creates | changes,
	"listKeySecrets":   creates | reads, // lists the secrets of the key; for admin and read-only keys, of all keys
	"getKeySecret":     creates | reads,
	"replaceKeySecret": creates | changes, // only the key that has stored the secret
	"deleteKeySecret":  creates | changes,

	"listSecrets":    admin | reads, // names, sources and ages
	"refreshSecret":  admin | changes,
	"rotateStoreKey": admin | changes,
	"backupStore":    admin | changes, // exports data, so the call is recorded
	"verifyStore":    admin,
	"rotateApiKey":   admin | changes,

	"listTrail":      admin | audits,
	"verifyTrail":    admin | audits,
	"getReport":      admin | audits,
	"listSecretUses": admin | audits,

	"createApiKey":  admin | changes,
	"listApiKeys":   admin,
	"changeApiKey":  admin | changes,
	"deleteApiKey":  admin | changes,
	"replaceApiKey": admin | changes,
	"addSshKey":     admin | changes,
	"listSshKeys":   admin,
	"deleteSshKey":  admin | changes,
}

// permits reports whether a role may call the endpoint.
func (g grant) permits(role api.Role) bool {
	switch role {
	case api.RoleAdmin:
		return true
	case api.RoleCreator:
		return g&(own|creates) != 0
	case api.RoleBox:
		return g&own != 0
	case api.RoleReader:
		return g&reads != 0 && g&changes == 0
	case api.RoleAuditor:
		return g&audits != 0 && g&changes == 0
	case api.RoleApprover:
		return g&approves != 0
	}
	return false
}

// Changes reports whether calls of an endpoint may change state. Endpoints missing from the table count as changing.
func Changes(route string) bool {
	g, known := grants[route]
	return !known || g&changes != 0
}

// Runs reports whether calls of an endpoint run a command in a box.
func Runs(route string) bool { return grants[route]&runs != 0 }

// Routes lists the endpoints of the table.
func Routes() []string { return slices.Sorted(maps.Keys(grants)) }
