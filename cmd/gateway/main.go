// Command gateway is boxgate, the network gateway of a sandbox host. `gateway serve` runs it; the other commands talk to
// the admin API of a running gateway. Error messages go to stderr and include the fix. The exit status is 0 on success, 1
// on a refusal or failure, and 2 on a usage error.
package main

import (
	"os"

	"boxgate/cmd/gateway/command"
)

func main() { os.Exit(command.Run(command.Arguments(os.Args))) }
