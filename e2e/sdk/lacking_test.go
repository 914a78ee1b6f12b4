package sdk

import "slices"

// lacks are the tests and the methods that do not work yet.
var lacks = []string{
	"agents: a custom harness runs",
	"agents: a custom harness streams",
	"agents: the harness is changed",
	"newer: a schedule is changed",
	"schedules: a command on a schedule is kept as it was given",
	"schedules: a schedule is paused, resumed and deleted",
	"schedules: a wrong expression is refused",
	"schedules: an agent's schedule is kept",
	"schedules: an ephemeral box has schedules as well",
	"schedules: folders follow the working directory",
	"Box#agent.run",
	"Box#agent.stream",
	"Box#schedule.agent",
	"Box#schedule.delete",
	"Box#schedule.exec",
	"Box#schedule.get",
	"Box#schedule.list",
	"Box#schedule.pause",
	"Box#schedule.resume",
	"EphemeralBox#schedule.agent",
	"EphemeralBox#schedule.delete",
	"EphemeralBox#schedule.exec",
	"EphemeralBox#schedule.get",
	"EphemeralBox#schedule.list",
	"EphemeralBox#schedule.pause",
	"EphemeralBox#schedule.resume",
}

func lacking(what string) bool { return slices.Contains(lacks, what) }
