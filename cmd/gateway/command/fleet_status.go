package command

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/fleet/node"
	"boxgate/host"
	"boxgate/store"
)

// fleetStatusWord is the request for the status of this host in its fleet on the control socket.
const fleetStatusWord = "fleet status"

// ownTime bounds the request to the gateway.
const ownTime = 3 * time.Second

// ownStatus asks the gateway that runs on this machine, if any. One of an earlier version does not know the request.
func ownStatus(ctx context.Context, cfg config.Config) *node.Status {
	if !store.InUse(cfg.StateDir) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ownTime)
	defer cancel()
	var own node.Status
	if err := host.AskControl(ctx, fleetStatusWord, &own); err != nil {
		return nil
	}
	return &own
}

// printOwn prints the status of this host. latest is the revision of etcd, 0 if it is not known.
func printOwn(w io.Writer, own *node.Status, latest int64) error {
	if own == nil {
		return nil
	}
	lease := fmt.Sprintf("not fenced: %.0f s of its lease are left", math.Floor(own.LeaseSeconds))
	if own.Fenced {
		lease = "fenced, and makes no boxes"
		if own.Problem != "" {
			lease += ": " + audit.Escape(own.Problem, 300)
		}
	}
	followed := "It has not followed the fleet yet."
	if lag := own.Lag(); lag >= 0 {
		of := ""
		if latest > 0 {
			of = fmt.Sprintf(" of %d", max(latest, own.Revision))
		}
		followed = fmt.Sprintf("It has followed the fleet to revision %d%s, as of %.0f s ago.", own.Revision, of, lag)
	}
	_, err := fmt.Fprintf(w, "This host (%s) is %s. %s\n", audit.Escape(own.Host, 16), lease, followed)
	return err
}
