// Command bench measures boxgate with its default settings against its peers, and one build against another. `make
// bench` and `make bench-compare` run it. docs/benchmarking.md describes the method.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"boxgate/bench/load"
	"boxgate/bench/origin"
	"boxgate/bench/peer"
)

func main() {
	ctx := context.Background()
	if len(os.Args) < 2 || os.Args[1] != "peer" { // peers exit on the signal itself
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
	}
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command runs the command named by the first argument. Commands other than run and compare are for the processes that
// the bench starts.
func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		args = []string{"run"}
	}
	switch name, args := args[0], args[1:]; {
	case name == "run":
		return runCommand(ctx, args)
	case name == "compare":
		return compareCommand(ctx, args)
	case name == "load" && len(args) == 0:
		return generate(ctx)
	case name == "origin" && len(args) == 2:
		return origin.Serve(ctx, args[0], args[1], func() {})
	case name == "peer" && len(args) == 2 && args[0] == "echo":
		return origin.Echo(args[1])
	case name == "peer" && len(args) == 2 && args[0] == "steer":
		return peer.ServeTransparent(ctx, args[1])
	case name == "peer" && len(args) > 4 && args[0] == "minimal":
		return peer.Minimal(args[1], args[2], args[3], args[4:])
	case name == "peer" && len(args) == 5 && args[0] == "goproxy":
		return peer.Goproxy(args[1], args[2], args[3], args[4])
	case name == "peer" && len(args) > 4 && args[0] == "net/http":
		return peer.NetHTTP(args[1], args[2], args[3], args[4:])
	}
	return errors.New("usage: bench run|compare [flags]")
}

// generate runs the load generator: it reads options from standard input and writes a result to standard output.
func generate(ctx context.Context) error {
	var o load.Options
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return err
	}
	result, err := load.Run(ctx, o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
