package api

import (
	"boxgate/policy/name"
)

// The kernel's limits for starting a command: no argument or variable longer than MAX_ARG_STRLEN, and all of them
// within a quarter of the stack's limit, 2 MiB. That is divided so as to leave room for placeholders (at most 2 × 512
// of 184 bytes) and for what the launcher sets.
const (
	MaxArgument    = 128<<10 - 1 // bytes of one argument or variable, without its NUL
	ArgumentCost   = 1 + 8       // of each besides: its NUL, and the pointer to it
	MaxArguments   = 512 << 10   // bytes of all arguments, with their cost
	MaxEnvironment = 1 << 20     // bytes of all variables of a box, with their cost
)

// EnvironmentSize is what the variables of a box count against [MaxEnvironment].
func EnvironmentSize(vars map[string]name.Secret) int {
	sum := 0
	for name, value := range vars {
		sum += len(name) + len("=") + len(value.Reveal()) + ArgumentCost
	}
	return sum
}
