package server

import (
	"testing"

	"boxgate/api/access"
)

// doors has every endpoint that changes something: the quota of what it makes, by its name, or none. TestCommandsOfAKeyAreBounded
// and, of end-to-end tests, TestAKeyHasNoMoreObjectsThanItMay try those with a quota that keys without the role admin may call.
var doors = map[string][]string{
	"boxes":     {"createBox", "createBoxFromSnapshot", "attachBox"},
	"snapshots": {"takeSnapshot"}, // and snapshot_bytes
	"urls":      {"createUrl"},    // and domains
	"schedules": {"addSchedule"},
	"commands":  {"runCommand", "streamCommand", "runCode", "streamCode", "openSession", "runAgent", "streamAgent", "gitClone", "gitCommit", "gitPush", "gitCheckout", "gitExec", "gitCreatePullRequest"},
	"": { // nothing that stays, or something of which a box has one or a bounded number
		"reattachBox", "detachBox", "deleteBoxes", "deleteBox", "testBox", "pauseBox", "resumeBox", "setStartup", "deleteStartup", "setInitCommand", "deleteInitCommand", "cancelRun",
		"writeFile", "makeDirectory", "removeFile", "renameFile", "unpackFiles", "uploadFiles", "setGitIdentity", "setGitIdentityAsBefore",
		"setPolicy", "addLeases", "endLeases", "setHeaders", "changeHeaders", "setGlobalHeaders", "changeGlobalHeaders", "setNamedPolicy", "deleteNamedPolicy", "deleteUrl", "signUrl",
		"changeSchedule", "deleteSchedule", "pauseSchedule", "resumeSchedule", "deleteSnapshot", "deleteSnapshots", "setEnvironment", "setVariable", "deleteVariable", "addLabel", "removeLabel",
		"setSource", "changeLimits", "setModel", "setCustomRunner", "addSkill", "removeSkill", "removeRepository", "refreshSecret", "rotateStoreKey", "backupStore", "rotateApiKey",
		"createApiKey", "changeApiKey", "deleteApiKey", "replaceApiKey",
	},
}

// TestEveryDoorIsKnown requires an entry for each endpoint that changes something: a new one needs the quota that bounds it.
func TestEveryDoorIsKnown(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, routes := range doors {
		for _, r := range routes {
			known[r] = true
		}
	}
	for _, r := range access.Routes() {
		if access.Changes(r) && !known[r] {
			t.Errorf("which quota bounds what %s makes?", r)
		}
		delete(known, r)
	}
	for r := range known {
		t.Errorf("there is no endpoint %s", r)
	}
}
