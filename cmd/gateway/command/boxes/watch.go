package boxes

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
)

// fileEvent is a line of a watch.
type fileEvent struct {
	Type  string `json:"type"`
	Path  string `json:"path"`
	Error string `json:"error"` // of the last line, whose type is end
}

// newWatch is `gateway box watch`.
func newWatch(o *cli.Options) *cobra.Command {
	var recursive bool
	var user string
	cmd := &cobra.Command{
		Use: "watch BOX[:PATH]", Short: "Print the changes in a directory of a box as they happen, by default its home directory", Args: cli.ExactArgs(1),
		Long: "Print the changes in a directory of a box as they happen: create, write, remove, rename (the old name; the new one has a create) and chmod.\n" +
			"With --json, each change also describes the file. The watch neither keeps the box awake nor ends when it is paused.",
		Example: "  gateway box watch demo\n  gateway box watch -r demo:src",
		RunE: func(cmd *cobra.Command, args []string) error {
			box, dir, _ := Cut(args[0])
			client, err := o.QuietClient()
			if err != nil {
				return err
			}
			query := url.Values{}
			if dir != "" {
				query.Set("path", dir)
			}
			if recursive {
				query.Set("recursive", "true")
			}
			if o.JSON {
				query.Set("entries", "true")
			}
			err = client.Lines(cmd.Context(), FilesPath(box, "watch", user, query), func(line []byte) error {
				return printFileEvent(cmd, o, line)
			})
			if err == nil && cmd.Context().Err() == nil {
				err = errors.New("the gateway ended the watch; watch again, and list the directory for changes in between")
			}
			return InBox(box, err)
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also the directories below")
	UserFlag(cmd, &user)
	return cmd
}

// printFileEvent prints a line of a watch. The error is the end of the watch.
func printFileEvent(cmd *cobra.Command, o *cli.Options, line []byte) error {
	var e fileEvent
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("the gateway's answer is not JSON: %w", err)
	}
	switch {
	case o.JSON:
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", line); err != nil {
			return err
		}
	case e.Type == "overflow" && e.Path == "":
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: the directory changes faster than its changes are read, and some were lost; list it again")
	case e.Type == "overflow":
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: changes below %s were lost, or are not seen: it is unreadable, too deep, or one directory too many\n", escape(e.Path, maxMessage))
	case e.Type != "end":
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%-8s%s\n", escape(e.Type, maxWord), escape(e.Path, maxMessage)); err != nil {
			return err
		}
	}
	if e.Type == "end" {
		return fmt.Errorf("the watch has ended: %s", escape(e.Error, maxMessage))
	}
	return nil
}
