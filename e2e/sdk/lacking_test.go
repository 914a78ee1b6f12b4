package sdk

import "slices"

// lacks are the tests and the methods that do not work yet.
var lacks = []string{
	"agents: a custom harness runs",
	"agents: a custom harness streams",
	"agents: the harness is changed",
	"Box#agent.run",
	"Box#agent.stream",
}

func lacking(what string) bool { return slices.Contains(lacks, what) }
