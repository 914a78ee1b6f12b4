package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/observe"
	"boxgate/policy"
)

// boxTraffic is the traffic of a box as the API returns it.
type boxTraffic struct {
	Observations   []observe.Observation
	Overflow, Lost uint64
	Since          time.Time `json:"complete_since"`
}

const boxTrafficHelp = `Print what a box has reached and tried to reach, summed up over days.

Decisions that differ only in their time are one line: destination, method, shape of the path ({n} and {id} stand for
numbers and identifiers), verdict and reason. The lines outlive restarts of the gateway, and the box: give the ID of a deleted one.`

// newBoxTraffic is `gateway box traffic`.
func newBoxTraffic(o *cli.Options) *cobra.Command {
	var since string
	var denied bool
	cmd := &cobra.Command{
		Use: "traffic BOX", Short: "Print what a box has reached and tried to reach, summed up over days", Long: boxTrafficHelp, Args: cli.ExactArgs(1),
		Example: "  gateway box traffic web-1\n  gateway box traffic web-1 --denied --since 24h",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			query := url.Values{}
			if since != "" {
				query.Set("since", since)
			}
			if denied {
				query.Set("denied", "true")
			}
			var answer json.RawMessage
			err = client.Do(cmd.Context(), "GET", api.BoxPath(args[0], "egress/observations")+"?"+query.Encode(), nil, &answer)
			var refused *api.ResponseError
			if errors.As(err, &refused) && refused.Status == http.StatusNotFound { // the box may have been deleted
				answer, err = pastTraffic(cmd.Context(), client, args[0], query, err)
			}
			if err != nil {
				return err
			}
			if o.JSON {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), string(answer))
				return err
			}
			var t boxTraffic
			if err := json.Unmarshal(answer, &t); err != nil {
				return fmt.Errorf("cannot parse the gateway's answer: %w", err)
			}
			return t.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "only what was seen since then: a duration back from now (24h, 7d) or a time")
	cmd.Flags().BoolVar(&denied, "denied", false, "only denials")
	return cmd
}

// pastTraffic fetches the traffic of a box that does not exist. If there is none, or the key may not read it, the error is missing.
func pastTraffic(ctx context.Context, client *api.Client, box string, query url.Values, missing error) (answer json.RawMessage, err error) {
	query.Set("box", box)
	var t boxTraffic
	if client.Do(ctx, "GET", "/v2/egress/observations?"+query.Encode(), nil, &answer) != nil || json.Unmarshal(answer, &t) != nil {
		return nil, missing
	}
	if len(t.Observations) == 0 {
		return nil, missing
	}
	return answer, nil
}

// print prints a line for each observation, then the numbers of decisions without one.
func (t *boxTraffic) print(w io.Writer) error {
	if len(t.Observations) == 0 {
		fmt.Fprintln(w, "There is no traffic.")
	} else {
		rows := [][]string{{"VERDICT", "COUNT", "DESTINATION", "REQUEST", "SENT", "RECEIVED", "LAST", "REASON"}}
		for i := range t.Observations {
			rows = append(rows, trafficRow(&t.Observations[i]))
		}
		if err := cli.Table(w, rows...); err != nil {
			return err
		}
	}
	if !t.Since.IsZero() {
		fmt.Fprintf(w, "Complete since %s: older lines were removed for their age or for space.\n", t.Since.Local().Format(time.DateTime))
	}
	if t.Overflow > 0 {
		fmt.Fprintf(w, "%s in no line: the box has as many different ones as it may have.\n", cli.Count(int(t.Overflow), "decision is", "decisions are"))
	}
	if t.Lost > 0 {
		fmt.Fprintf(w, "%s in no line: too many arrived at a time.\n", cli.Count(int(t.Lost), "decision is", "decisions are"))
	}
	return nil
}

func trafficRow(o *observe.Observation) []string {
	verdict := "allow"
	if o.Verdict != policy.Allow {
		verdict = "DENY"
	}
	request := cmp.Or(o.Method, "-")
	if o.Method != "" && o.Shape != "" {
		request += " " + audit.Escape(o.Shape, 80)
	}
	return []string{
		verdict, strconv.FormatUint(o.Count, 10), trafficDestination(o), request, config.Size(o.BytesOut).String(), config.Size(o.BytesIn).String(),
		o.Last.Local().Format(time.DateTime), string(o.Reason),
	}
}

// trafficDestination returns host and port for people.
func trafficDestination(o *observe.Observation) string {
	text := o.Name
	if text == "" && o.Addr.IsValid() {
		text = o.Addr.String()
	}
	text = audit.Escape(cmp.Or(text, "-"), 100)
	if o.Stage == policy.StageDNS {
		return text + " (look-up)"
	}
	if o.Port != 0 {
		text = net.JoinHostPort(text, strconv.Itoa(int(o.Port)))
	}
	if o.Protocol != "" && o.Protocol != policy.TCP {
		text += "/" + string(o.Protocol)
	}
	return text
}
