package access

import (
	"maps"
	"slices"

	"boxgate/api"
)

// grant says who besides admin keys may call an endpoint, and whether that changes something. The zero value grants nothing.
type grant uint8

const (
	// own: keys that create boxes, and keys of one box. An endpoint of a box is theirs for a box that they see.
	own grant = 1 << iota
	// creates: keys that create boxes.
	creates
	// reads: read-only keys. It must show no secret, file, or command, and run nothing.
	reads
	// changes: the audit trail has every call. All others only show something.
	changes
	// outlives: it also serves the snapshots of a deleted box, by its ID, to keys that see them.
	outlives
	// runs: a command in a box, which counts against the quota of the key.
	runs

	admin grant = 0 // alone: admin keys only
)

// grants has every endpoint that needs a key, by the ID of its route. An endpoint that is not here is refused to every key: a
// test of api/server holds the table complete.
var grants = map[string]grant{
	"getDescription": own | reads,

	"createBox":             creates | changes,
	"createBoxFromSnapshot": creates | changes, // of a snapshot that the key sees
	"attachBox":             admin | changes,   // reaches into the host
	"reattachBox":           admin | changes,
	"detachBox":             admin | changes,
	"listBoxes":             own | reads, // those that the key sees
	"deleteBoxes":           own | changes,
	"getBox":                own | reads,
	"deleteBox":             own | changes,
	"getBoxStatus":          own | reads,
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
	"runCode":       own | changes | runs,
	"streamCode":    own | changes | runs,
	"listRuns":      own,
	"getRun":        own,
	"cancelRun":     own | changes,
	"listLogs":      own,
	"openSession":   own | changes | runs,
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
	"getHeaders":          own | reads,
	"setHeaders":          own | changes,
	"changeHeaders":       own | changes,
	"getGlobalHeaders":    admin | reads,
	"setGlobalHeaders":    admin | changes,
	"changeGlobalHeaders": admin | changes,

	"listNamedPolicies": creates | reads, // keys that create boxes, and those of one box, may refer to all of them
	"getNamedPolicy":    creates | reads,
	"setNamedPolicy":    admin | changes, // of every box that follows it, whoever created that
	"deleteNamedPolicy": admin | changes,

	"listBoxDecisions":   own | reads,
	"listDecisions":      admin | reads,
	"searchBoxDecisions": own | reads,
	"searchDecisions":    admin | reads,
	"explainDecision":    own | reads,

	"createUrl": own | changes,
	"listUrls":  own | reads,
	"deleteUrl": own | changes,
	"signUrl":   own | changes,

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
	"listSnapshots":    creates | reads, // the ones that the key sees
	"deleteSnapshots":  creates | changes,

	"getEnvironment":   admin | reads,
	"setEnvironment":   admin | changes, // of every new box
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

	"getStatus":      admin | reads,
	"getBoxCa":       own | reads,
	"getCa":          own | reads,
	"listSecrets":    admin | reads, // names, sources and ages
	"refreshSecret":  admin | changes,
	"rotateStoreKey": admin | changes,
	"backupStore":    admin | changes, // what leaves the gateway is noted
	"verifyStore":    admin,
	"rotateApiKey":   admin | changes,

	"listTrail":   admin,
	"verifyTrail": admin,

	"createApiKey":  admin | changes,
	"listApiKeys":   admin,
	"changeApiKey":  admin | changes,
	"deleteApiKey":  admin | changes,
	"replaceApiKey": admin | changes,
}

// to reports whether a role may call an endpoint.
func (g grant) to(role api.Role) bool {
	switch role {
	case api.RoleAdmin:
		return true
	case api.RoleCreator:
		return g&(own|creates) != 0
	case api.RoleBox:
		return g&own != 0
	case api.RoleReader:
		return g&reads != 0 && g&changes == 0
	}
	return false
}

// Changes reports whether calls of an endpoint change something, or may: one that is not in the table does.
func Changes(route string) bool {
	g, known := grants[route]
	return !known || g&changes != 0
}

// Runs reports whether calls of an endpoint run a command in a box.
func Runs(route string) bool { return grants[route]&runs != 0 }

// Routes lists the endpoints of the table.
func Routes() []string { return slices.Sorted(maps.Keys(grants)) }
