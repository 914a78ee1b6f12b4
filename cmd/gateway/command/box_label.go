package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newBoxLabel is `gateway box label`.
func newBoxLabel(o *cli.Options) *cobra.Command {
	var removed []string
	cmd := &cobra.Command{
		Use: "label BOX [LABEL...] [--rm LABEL]", Short: "Add and remove labels of a box, or print them", Args: cli.MinArgs(1),
		Example: "  gateway box label demo team=x stage:test\n  gateway box label demo --rm team=x\n  gateway box list --label team=x",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			for _, label := range removed {
				if err := client.Do(cmd.Context(), "DELETE", api.BoxPath(args[0], "config/labels", url.PathEscape(label)), nil, nil); err != nil {
					return fmt.Errorf("%s: %w", label, err)
				}
			}
			for _, label := range args[1:] {
				if err := client.Do(cmd.Context(), "POST", api.BoxPath(args[0], "config/labels"), map[string]string{"label": label}, nil); err != nil {
					return fmt.Errorf("%s: %w", label, err)
				}
			}
			return o.Call(cmd, "GET", api.BoxPath(args[0]), nil, func(w io.Writer, answer json.RawMessage) error {
				var box boxAnswer
				if err := json.Unmarshal(answer, &box); err != nil || len(box.Labels) == 0 {
					return err
				}
				_, err := fmt.Fprintln(w, strings.Join(box.Labels, "\n"))
				return err
			})
		},
	}
	cli.MapFields(cmd, map[string]string{"/label": "LABEL"})
	cmd.Flags().StringArrayVar(&removed, "rm", nil, "label to remove (may be repeated); removed before others are added")
	return cmd
}

// boxesWith fetches the boxes that have a label. No such box is an error.
func boxesWith(ctx context.Context, client *api.Client, label string) ([]boxAnswer, error) {
	var boxes []boxAnswer
	if err := client.Get(ctx, api.BoxesPath(label), &boxes); err != nil {
		return nil, err
	}
	if len(boxes) == 0 {
		return nil, fmt.Errorf("no box has the label %q; `gateway box list` shows the labels", label)
	}
	return boxes, nil
}

// labelSelection selects the decisions of boxes with a label. A box counts if it had the label when its first decision
// was seen. Not safe for concurrent use.
type labelSelection struct {
	label string
	seen  map[string]bool // by ID: whether the box has the label
}

// contains reports whether a box has the label. It fetches the boxes again for an unknown ID.
func (s *labelSelection) contains(ctx context.Context, client *api.Client, box string) (bool, error) {
	if has, known := s.seen[box]; known || box == "" {
		return has, nil
	}
	var boxes []boxAnswer
	if err := client.Get(ctx, api.BoxesPath(s.label), &boxes); err != nil {
		return false, err
	}
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	s.seen[box] = false
	for _, b := range boxes {
		s.seen[b.ID] = true
	}
	return s.seen[box], nil
}
