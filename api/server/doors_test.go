package server

import (
	"testing"

	"boxgate/api/access"
)

// doors lists every endpoint that changes state, by the quota that bounds the objects it makes; "" if it needs no quota.
// TestCommandsOfAKeyAreBounded and the end-to-end test TestAKeyHasNoMoreObjectsThanItMay call those with a quota that
// non-admin keys may use.
var doors = map[string][]string{
	"boxes":     {"createBox", "createBoxFromSnapshot", "attachBox"},
	"snapshots": {"takeSnapshot"}, // also snapshot_bytes
	"urls":      {"createUrl"},    // also domains
	"schedules": {"addSchedule"},
	"commands":  {"runCommand", "streamCommand", "runCode", "streamCode", "openSession", "runAgent", "streamAgent", "gitClone", "gitCommit", "gitPush", "gitCheckout", "gitExec", "gitCreatePullRequest"},
	"": { // makes no lasting objects, or only a bounded number per box
		"reattachBox", "detachBox", "deleteBoxes", "deleteBox", "testBox", "pauseBox", "resumeBox", "setStartup", "deleteStartup", "setInitCommand", "deleteInitCommand", "cancelRun",
		"writeFile", "makeDirectory", "removeFile", "renameFile", "unpackFiles", "uploadFiles", "setGitIdentity", "setGitIdentityAsBefore",
		"setPolicy", "addLeases", "endLeases", "setHeaders", "changeHeaders", "setGlobalHeaders", "changeGlobalHeaders", "setNamedPolicy", "deleteNamedPolicy", "deleteUrl", "signUrl",
		"changeSchedule", "deleteSchedule", "pauseSchedule", "resumeSchedule", "deleteSnapshot", "deleteSnapshots", "setEnvironment", "setVariable", "deleteVariable", "addLabel", "removeLabel",
		"setSource", "changeLimits", "setModel", "setCustomRunner", "addSkill", "removeSkill", "removeRepository", "refreshSecret", "rotateStoreKey", "backupStore", "rotateApiKey",
		"createApiKey", "changeApiKey", "deleteApiKey", "replaceApiKey",
	},
}

// TestEveryDoorIsKnown requires an entry for each endpoint that changes state, so that a new one gets a quota.
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
