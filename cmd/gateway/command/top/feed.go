package top

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/remedy"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Interval is the interval at which the boxes are fetched.
const Interval = 2 * time.Second

// maxFresh is the maximum number of boxes that are fetched individually, with fresh byte counters. With more boxes,
// the numbers of the gateway's last reading are used.
const maxFresh = 32

// Boxes fetches the boxes of a gateway, or those with a label if it is not empty.
func Boxes(ctx context.Context, client *api.Client, label string) ([]Box, error) {
	var list []Box
	if err := client.Get(ctx, api.BoxesPath(label), &list); err != nil {
		return nil, err
	}
	if len(list) > maxFresh {
		return list, nil
	}
	for i := range list {
		var fresh Box
		if err := client.Get(ctx, api.BoxPath(string(list[i].ID)), &fresh); err == nil { // fails if the box was removed in the meantime
			list[i] = fresh
		}
	}
	return list, nil
}

// Follow calls each with the denials of the last ten minutes and with every new decision, until ctx ends. If the gateway
// stops, Follow reports that through say and waits for it; an error means that waiting is pointless.
func Follow(ctx context.Context, client *api.Client, each func(audit.Event), say func(string)) error {
	query := url.Values{"follow": {"true"}, "since": {time.Now().Add(-10 * time.Minute).UTC().Format(time.RFC3339)}}
	var seq uint64
	var run string
	for {
		begin := func(is string) {
			if run != is {
				run, seq = is, 0
			}
			say("")
		}
		err := client.Events(ctx, "/v2/egress?"+query.Encode(), begin, func(line []byte) error {
			var e audit.Event
			if json.Unmarshal(line, &e) == nil && !e.Time.IsZero() && e.Seq > seq {
				seq = e.Seq
				each(e)
			}
			return nil
		})
		if refused, ok := errors.AsType[*api.ResponseError](err); ctx.Err() != nil || ok && refused.Status < http.StatusInternalServerError {
			return err
		}
		say("the gateway does not answer; waiting for it")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// entryOf returns the policy entry that allows or denies the destination of a denial. An entry to allow is as narrow as
// possible; shown includes what else it would allow. If there is no such entry, entry is empty and shown is the reason.
func entryOf(e audit.Event, action string) (entry, shown string) {
	if e.Box == "" {
		return "", "this denial is about no box"
	}
	if action == "deny" {
		to := remedy.Destination(e)
		return to, cmp.Or(to, "this denial has no destination that a policy could deny")
	}
	o, ok := remedy.OpeningOf(e)
	if !ok {
		return "", remedy.For(e)
	}
	return o.Entry, o.Caveat(o.Entry)
}

// change adds a temporary entry to a policy and returns a message with the result.
func change(ctx context.Context, client *api.Client, box policy.BoxID, to, action string, lasts time.Duration) string {
	body := map[string]any{"action": action, "entries": []string{to}, "expires_in": int64(lasts / time.Second)}
	err := client.Do(ctx, "POST", api.BoxPath(string(box), "config/network-policy/leases"), body, nil)
	if err != nil {
		return "not changed: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return to + ": " + map[string]string{"allow": "allowed", "deny": "denied"}[action] + " for " + lasts.String()
}

// explain returns the reason of a denial, the decision of the current policy, and the remedy.
func explain(ctx context.Context, client *api.Client, e audit.Event) string {
	text := string(e.Reason) + ": " + remedy.For(e)
	body := map[string]any{"port": e.Port, "protocol": e.Protocol}
	switch _, err := name.Parse(e.Name); {
	case err == nil:
		body["host"], body["resolve"] = e.Name, true
	case e.Addr.IsValid():
		body["ip"] = e.Addr.String()
	default:
		return text
	}
	var now struct{ Verdict, Reason, Rule string }
	if e.Port == 0 || client.Do(ctx, "POST", api.BoxPath(string(e.Box), "egress/explain"), body, &now) != nil {
		return text
	}
	return strings.TrimSpace("now "+now.Verdict+" ("+now.Reason+") "+now.Rule) + "; " + text
}
