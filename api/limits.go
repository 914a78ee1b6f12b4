package api

import (
	"boxgate/policy/name"
)

// The kernel's limits for starting a command: no argument or variable may exceed MAX_ARG_STRLEN, and all of them together
// a quarter of the stack limit, 2 MiB. The division below leaves space for placeholders (at most 2 × 512 of 184 bytes)
// and for the variables that the launcher sets.
const (
	MaxArgument    = 128<<10 - 1 // bytes of one argument or variable, without its NUL
	ArgumentCost   = 1 + 8       // per argument or variable: its NUL and the pointer to it
	MaxArguments   = 512 << 10   // bytes of all arguments, including ArgumentCost
	MaxEnvironment = 1 << 20     // bytes of all variables of a box, including ArgumentCost
)

// EnvironmentSize returns how much the variables of a box count towards [MaxEnvironment].
func EnvironmentSize(vars map[string]name.Secret) int {
	sum := 0
	for name, value := range vars {
		sum += len(name) + len("=") + len(value.Reveal()) + ArgumentCost
	}
	return sum
}
