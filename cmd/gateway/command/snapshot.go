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

// snapshotAnswer is a snapshot as the API returns it.
type snapshotAnswer struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	BoxID     string `json:"box_id"`
	SizeBytes int64  `json:"size_bytes"`
	Status    string `json:"status"`
	Error     string `json:"error"`
	CreatedAt int64  `json:"created_at"`
}

// newBoxSnapshot is `gateway box snapshot`.
func newBoxSnapshot(o *cli.Options) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "snapshot BOX",
		Short: "Take a snapshot of the files of a box and print its ID",
		Long: "Take a snapshot of the files of a box and print its ID. The box is frozen briefly. The snapshot is ready once its status is no\n" +
			"longer creating: see \"gateway snapshot list\".",
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "POST", api.BoxPath(args[0], "snapshots"), map[string]string{"name": name}, cli.Decoded(printTaken))
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "a name of your choice")
	return cmd
}

// printTaken prints the ID of a snapshot. It returns an error if the snapshot failed.
func printTaken(w io.Writer, s snapshotAnswer) error {
	if s.Status == "error" {
		return fmt.Errorf("snapshot %s failed: %s", s.ID, s.Error)
	}
	_, err := fmt.Fprintln(w, s.ID)
	return err
}

// newSnapshotCommand is `gateway snapshot`.
func newSnapshotCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("snapshot", "List and remove snapshots of boxes")
	cmd.AddCommand(newSnapshotList(o), newSnapshotRemove(o))
	return cmd
}

func newSnapshotList(o *cli.Options) *cobra.Command {
	var box string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the snapshots", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/v2/box/snapshots"
			if box != "" {
				path = api.BoxPath(box, "snapshots")
			}
			return o.Call(cmd, "GET", path, nil, cli.Decoded(printSnapshots))
		},
	}
	cmd.Flags().StringVar(&box, "box", "", "only the snapshots of this box; give the ID of a deleted one")
	return cmd
}

func printSnapshots(w io.Writer, list struct{ Snapshots []snapshotAnswer }) error {
	rows := [][]string{{"ID", "NAME", "BOX", "STATUS", "BYTES", "CREATED"}}
	for _, s := range list.Snapshots {
		created := time.Unix(s.CreatedAt, 0).UTC().Format(time.RFC3339)
		rows = append(rows, []string{s.ID, s.Name, s.BoxID, s.Status, strconv.FormatInt(s.SizeBytes, 10), created})
	}
	return cli.Table(w, rows...)
}

func newSnapshotRemove(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "rm SNAPSHOT...", Short: "Remove snapshots; boxes created from them stay", Args: cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "DELETE", "/v2/box/snapshots", map[string][]string{"ids": args}, cli.Silent)
		},
	}
}
