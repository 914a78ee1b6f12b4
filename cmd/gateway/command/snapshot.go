package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
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
			return o.Call(cmd, "GET", snapshotsPath(box), nil, cli.Decoded(printSnapshots))
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

// snapshotRemove holds the flags of `gateway snapshot rm`.
type snapshotRemove struct {
	o        *cli.Options
	all, yes bool
	box      string
}

func newSnapshotRemove(o *cli.Options) *cobra.Command {
	r := snapshotRemove{o: o}
	cmd := &cobra.Command{
		Use: "rm SNAPSHOT... | --all", Short: "Remove snapshots; boxes created from them stay", Args: cli.MinArgs(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case r.all && len(args) > 0:
				return cli.Usagef("give snapshots or --all, not both")
			case !r.all && (r.box != "" || r.yes):
				return cli.Usagef("--box and --yes are for --all")
			case r.all:
				return r.removeAll(cmd)
			case len(args) == 0:
				return cli.MinArgs(1)(cmd, args)
			}
			return r.remove(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&r.all, "all", false, "remove every snapshot, after asking")
	cmd.Flags().StringVar(&r.box, "box", "", "with --all: only the snapshots of this box; give the ID of a deleted one")
	cmd.Flags().BoolVar(&r.yes, "yes", false, "with --all: do not ask")
	return cmd
}

func (r *snapshotRemove) remove(cmd *cobra.Command, ids []string) error {
	return r.o.Call(cmd, "DELETE", snapshotsPath(""), map[string][]string{"ids": ids}, cli.Silent)
}

// mostRemoved is how many snapshots one call removes.
const mostRemoved = 1000

// removeAll removes the snapshots that it has listed, and no later ones.
func (r *snapshotRemove) removeAll(cmd *cobra.Command) error {
	client, err := r.o.Client()
	if err != nil {
		return err
	}
	var list struct{ Snapshots []snapshotAnswer }
	if err := client.Get(cmd.Context(), snapshotsPath(r.box), &list); err != nil || len(list.Snapshots) == 0 {
		return err
	}
	var names, ids []string
	for _, s := range list.Snapshots {
		ids, names = append(ids, s.ID), append(names, strings.TrimSpace(s.ID+" "+audit.Escape(s.Name, maxSnapshotName)))
	}
	if err := confirmAll(cmd, r.yes, cli.Count(len(ids), "snapshot", "snapshots"), "", names); err != nil {
		return err
	}
	for some := range slices.Chunk(ids, mostRemoved) {
		if err := r.remove(cmd, some); err != nil {
			return err
		}
	}
	return nil
}

// maxSnapshotName bounds the name of a snapshot in a question.
const maxSnapshotName = 100

// snapshotsPath returns the API path of the snapshots of a box; "": of all.
func snapshotsPath(box string) string {
	if box == "" {
		return "/v2/box/snapshots"
	}
	return api.BoxPath(box, "snapshots")
}
