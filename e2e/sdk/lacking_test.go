package sdk

import "slices"

// lacks are the tests and the methods that do not work yet.
var lacks = []string{}

func lacking(what string) bool { return slices.Contains(lacks, what) }
