package command

import (
	"context"
	"encoding/json"
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
	var noWait bool
	cmd := &cobra.Command{
		Use:   "snapshot BOX",
		Short: "Take a snapshot of the files of a box, wait until it is ready, and print its ID",
		Long: "Take a snapshot of the files of a box, wait until it is ready, and print its ID. The box is frozen briefly. After Ctrl-C the snapshot\n" +
			"is completed all the same: see `gateway snapshot list`.",
		Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := client.Do(cmd.Context(), "POST", api.BoxPath(args[0], "snapshots"), map[string]string{"name": name}, &answer); err != nil {
				return err
			}
			if !noWait {
				stop := o.Waiting("the snapshot is being written")
				answer, err = readySnapshot(cmd.Context(), client, answer)
				stop()
				if err != nil {
					return err
				}
			}
			var s snapshotAnswer
			if err := json.Unmarshal(answer, &s); err != nil {
				return fmt.Errorf("cannot parse the gateway's answer: %w", err)
			}
			if err := s.failure(); err != nil {
				return err
			}
			return o.Show(cmd, answer, cli.Decoded(printTaken))
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "a name of your choice")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait; the snapshot can be used once its status is ready")
	return cmd
}

// snapshotPoll is how often the state of a snapshot is requested.
const snapshotPoll = 500 * time.Millisecond

// readySnapshot waits until a snapshot is no longer being created, and returns it. The box may be deleted in the meantime.
func readySnapshot(ctx context.Context, client *api.Client, taken json.RawMessage) (json.RawMessage, error) {
	var s snapshotAnswer
	if err := json.Unmarshal(taken, &s); err != nil {
		return nil, fmt.Errorf("cannot parse the gateway's answer: %w", err)
	}
	id, tick := s.ID, time.NewTicker(snapshotPoll)
	defer tick.Stop()
	for s.Status == "creating" {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
		var list struct{ Snapshots []json.RawMessage }
		if err := client.Get(ctx, api.BoxPath(s.BoxID, "snapshots"), &list); err != nil {
			return nil, err
		}
		found := false
		for _, one := range list.Snapshots {
			var now snapshotAnswer
			if json.Unmarshal(one, &now) == nil && now.ID == id {
				taken, s, found = one, now, true
			}
		}
		if !found {
			return nil, fmt.Errorf("snapshot %s was deleted before it was ready", id)
		}
	}
	return taken, nil
}

// failure returns why a snapshot failed; nil: it did not.
func (s *snapshotAnswer) failure() error {
	if s.Status != "error" {
		return nil
	}
	return fmt.Errorf("snapshot %s failed: %s", s.ID, s.Error)
}

// printTaken prints the ID of a snapshot.
func printTaken(w io.Writer, s snapshotAnswer) error {
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
