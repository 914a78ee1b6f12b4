// Command gateway is boxgate: the network gateway of a sandbox host. `gateway serve` runs it; the other commands talk
// to the admin API of a running one. Errors go to stderr with what was wrong and what to do. It exits 0 on success, 1
// when something was refused or failed, 2 on a usage error.
package main

import (
	"os"

	"boxgate/cmd/gateway/command"
)

func main() { os.Exit(command.Run(os.Args[1:])) }
