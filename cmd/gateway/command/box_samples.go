package command

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newBoxSamples is `gateway box samples`.
func newBoxSamples(o *cli.Options) *cobra.Command {
	var last time.Duration
	cmd := &cobra.Command{
		Use: "samples BOX", Short: "Show the use of CPU, memory and disk by a box in the last hour", Args: cli.ExactArgs(1),
		Example: "  gateway box samples demo --last 5m",
		RunE: func(cmd *cobra.Command, args []string) error {
			path := api.BoxPath(args[0], "usage/samples")
			if last > 0 {
				path += "?since=" + strconv.FormatInt(time.Now().Add(-last).Unix(), 10)
			}
			return o.Call(cmd, "GET", path, nil, cli.Decoded(printSamples))
		},
	}
	cli.Duration(cmd.Flags(), &last, "last", 0, "only samples of this last time, such as 5m")
	return cmd
}

func printSamples(w io.Writer, is struct {
	Samples []struct {
		At     float64
		CPU    float64 `json:"cpu_percent"`
		Memory int64   `json:"memory_bytes"`
		Cache  int64   `json:"memory_cache_bytes"`
		Disk   int64   `json:"disk_bytes"`
	}
}) error {
	rows := [][]string{{"TIME", "CPU", "MEMORY", "CACHE", "DISK"}}
	mib := func(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
	for _, s := range is.Samples {
		rows = append(rows, []string{clockTime(int64(s.At)), fmt.Sprintf("%.1f %%", s.CPU), mib(s.Memory), mib(s.Cache), mib(s.Disk)})
	}
	return cli.Table(w, rows...)
}
