package roster

import (
	"context"
	"errors"
	"testing"
	"time"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
)

// TestLostAnswer: the connection ends between the transaction that makes the host a member and its answer. The error leaves the outcome open,
// so that the host keeps its identity, with which it is a member.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	link := etcdtest.NewLink(t, server.Endpoint())
	client, err := fleet.Dial(fleet.Access{Endpoints: []string{link.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r, direct := Roster{client, "test"}, Roster{server.Client(), "test"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.Get(ctx, "connected"); err != nil {
		t.Fatal(err)
	}
	go func() {
		for ctx.Err() == nil {
			if _, err := direct.Founding(ctx); err == nil {
				link.Cut()
				return
			}
		}
	}()
	var kept fleet.Identity
	_, err = r.Init(ctx, Machine{"a1b2c3", "first", func(id fleet.Identity) error {
		kept = id
		link.Hold()
		return nil
	}})
	if ctx.Err() != nil || !errors.Is(err, fleet.ErrUnreachable) {
		t.Errorf("%v, %v", err, ctx.Err())
	}
	if is, err := direct.IsMember(t.Context(), kept); !is || err != nil {
		t.Errorf("member %v, %v", is, err)
	}
}
