// Command profiled is the gateway, which writes CPU profiles of each `serve` to files beside its executable. `make profile` runs the
// benchmarks with it and merges the profiles into cmd/gateway/release.pgo, with which releases are compiled (profile-guided
// optimization, https://go.dev/doc/pgo).
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"boxgate/cmd/gateway/command"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		go func() {
			fmt.Fprintln(os.Stderr, "profiled:", profile())
			os.Exit(1)
		}()
	}
	os.Exit(command.Run(os.Args[1:]))
}

// period is how long a profile takes. The last one of a process is lost, since the gateway exits without waiting for it.
const period = 5 * time.Second

// profile writes one profile after the other, and returns the first error.
func profile() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		file, err := os.Create(filepath.Join(filepath.Dir(self), fmt.Sprintf("%d-%d.part", os.Getpid(), n)))
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		time.Sleep(period)
		pprof.StopCPUProfile()
		if err := file.Close(); err != nil {
			return err
		}
		if err := os.Rename(file.Name(), file.Name()[:len(file.Name())-len("part")]+"pprof"); err != nil {
			return err
		}
	}
}
