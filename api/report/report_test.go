package report

import (
	"context"
	"errors"
	"testing"
	"time"

	"boxgate/api"
)

// TestReportsWaitForTheirPlace: each key that is not the operator's has one report made or sent at a time, and all such keys together
// have two. The operator does not wait for them. A place is free again when the request ends.
func TestReportsWaitForTheirPlace(t *testing.T) {
	t.Parallel()
	e := New(nil, nil, nil, nil, nil)
	request := func(key string, role api.Role) (context.Context, context.CancelFunc) {
		return context.WithTimeout(api.WithCaller(t.Context(), api.Caller{Key: key, Role: role}), time.Minute)
	}
	waits := func(key string, role api.Role) bool { // a request that ends before it has a place
		ctx, end := request(key, role)
		end()
		return errors.Is(e.admit(ctx), context.Canceled)
	}
	a, endA := request("a", api.RoleAuditor)
	if err := e.admit(a); err != nil {
		t.Fatal(err)
	}
	for range 20 { // select chooses at random
		if !waits("a", api.RoleAuditor) {
			t.Fatal("a key has two reports made at a time")
		}
	}
	b, endB := request("b", api.RoleAuditor)
	defer endB()
	if err := e.admit(b); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if !waits("c", api.RoleAuditor) {
			t.Fatal("a third key has a report made")
		}
	}
	admin, endAdmin := request("", api.RoleAdmin)
	defer endAdmin()
	if err := e.admit(admin); err != nil {
		t.Fatalf("the operator waits: %v", err)
	}
	endA()
	again, endAgain := request("a", api.RoleAuditor)
	defer endAgain()
	if err := e.admit(again); err != nil {
		t.Fatalf("after its request has ended: %v", err)
	}
}
