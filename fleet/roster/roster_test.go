package roster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/pki"
	"boxgate/policy/name"
)

// founded returns a fleet with the host a1b2c3.
func founded(t *testing.T) (Roster, fleet.Identity) {
	t.Helper()
	r := Roster{etcdtest.Start(t).Client(), "test"}
	id, err := r.Init(t.Context(), machine("a1b2c3", "first"))
	if err != nil {
		t.Fatal(err)
	}
	return r, id
}

// machine is a host whose identities are not kept.
func machine(id, name string) Machine {
	return Machine{id, name, func(fleet.Identity) error { return nil }}
}

func token(t *testing.T, r Roster, id fleet.Identity) pki.Token {
	t.Helper()
	text, err := r.Token(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pki.ParseToken(text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestJoining: a fleet is founded once, a token is for one host, and every member can sign its certificate and make tokens.
func TestJoining(t *testing.T) {
	t.Parallel()
	r, first := founded(t)
	if _, err := r.Init(t.Context(), machine("ffffff", "x")); !errors.Is(err, ErrFounded) {
		t.Error(err)
	}
	one := token(t, r, first)
	second, err := r.Join(t.Context(), machine("d4e5f6", "second"), one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Join(t.Context(), machine("ffffff", "x"), one); !errors.Is(err, ErrToken) {
		t.Errorf("a used token: %v", err)
	}
	if _, err := r.Join(t.Context(), machine("ffffff", "x"), pki.NewToken()); !errors.Is(err, ErrToken) {
		t.Errorf("a token of another fleet: %v", err)
	}
	by := token(t, r, second)
	if _, err := r.Join(t.Context(), machine("a1b2c3", "copy"), by); !errors.Is(err, ErrMember) {
		t.Errorf("the ID of a member: %v", err)
	}
	if _, err := r.Join(t.Context(), machine("111111", "third"), by); err != nil {
		t.Errorf("a token that a refused host tried before: %v", err)
	}
	if second.Founding != first.Founding || string(second.CA) != string(first.CA) {
		t.Error("the members have different fleets")
	}
	key, err := r.AuthorityKey(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pki.LoadAuthority(first.CA, key); err != nil {
		t.Error(err)
	}
	if is, err := r.IsMember(t.Context(), second); !is || err != nil {
		t.Error(is, err)
	}
	if is, err := r.IsMember(t.Context(), fleet.Identity{Host: "ffffff", Founding: first.Founding}); is || err != nil {
		t.Error(is, err)
	}
	state, err := r.State(t.Context())
	if err != nil || len(state.Hosts) != 3 || state.Hosts[1].Name != "first" || state.Hosts[1].Present {
		t.Errorf("%+v, %v", state, err)
	}
}

// TestOneTokenManyHosts: of many hosts that use a token at the same time, one joins.
func TestOneTokenManyHosts(t *testing.T) {
	t.Parallel()
	r, first := founded(t)
	one := token(t, r, first)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = r.Join(t.Context(), machine(fmt.Sprintf("%06x", i), "x"), one)
		})
	}
	wg.Wait()
	joined := 0
	for _, err := range errs {
		switch {
		case err == nil:
			joined++
		case !errors.Is(err, ErrToken):
			t.Error(err)
		}
	}
	if state, err := r.State(t.Context()); joined != 1 || err != nil || len(state.Hosts) != 2 {
		t.Errorf("%d joined; %+v, %v", joined, state.Hosts, err)
	}
}

// TestNoSecretInEtcd: whoever reads all of etcd finds neither the authority's key nor a token or an identity.
func TestNoSecretInEtcd(t *testing.T) {
	t.Parallel()
	r, first := founded(t)
	text, err := r.Token(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	key, err := r.AuthorityKey(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	all, err := r.Client.Get(t.Context(), "", clientv3.WithPrefix())
	if err != nil || len(all.Kvs) != 4 {
		t.Fatalf("%d keys, %v", len(all.Kvs), err)
	}
	for _, kv := range all.Kvs {
		if !strings.HasPrefix(string(kv.Key), "/boxgate/test/") {
			t.Errorf("a key outside of the fleet's prefix: %s", kv.Key)
		}
		for what, secret := range map[string]string{"the authority's key": key.Reveal(), "the token": text.Reveal(), "the host's key": string(first.Key), "the wrap key": first.Wrap} {
			if strings.Contains(string(kv.Key)+string(kv.Value), secret) {
				t.Errorf("%s has %s", kv.Key, what)
			}
		}
	}
}

// TestReplacedAuthority: a host refuses a fleet whose certificate in etcd is not that of the token's key, and an etcd that moved the
// sealed key of another host to its place.
func TestReplacedAuthority(t *testing.T) {
	t.Parallel()
	r, first := founded(t)
	one := token(t, r, first)
	k := fleet.KeysOf("test")
	founding, err := r.Founding(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	forged, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	founding.CA = forged.PEM()
	text, err := fleet.Encode(founding)
	if err == nil {
		_, err = r.Client.Put(t.Context(), k.Founding(), text)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Join(t.Context(), machine("ffffff", "x"), one); err == nil {
		t.Error("a host joined a fleet with a replaced authority")
	}
	wrap, _, err := fleet.Get(t.Context(), r.Client, k.Wrap("a1b2c3"))
	if err == nil {
		_, err = r.Client.Put(t.Context(), k.Wrap("ffffff"), string(wrap))
	}
	if err != nil {
		t.Fatal(err)
	}
	moved := first
	moved.Host = "ffffff"
	if _, err := r.AuthorityKey(t.Context(), moved); err == nil {
		t.Error("a sealed key was opened at another place")
	}
}

// TestLeaving: a host that left cannot make tokens or read the authority's key, and may join again.
func TestLeaving(t *testing.T) {
	t.Parallel()
	r, first := founded(t)
	second, err := r.Join(t.Context(), machine("d4e5f6", "second"), token(t, r, first))
	if err != nil {
		t.Fatal(err)
	}
	lease, err := r.Client.Grant(t.Context(), 60)
	if err == nil {
		_, err = r.Client.Put(t.Context(), fleet.KeysOf("test").Presence("d4e5f6"), `{"instance": "1"}`, clientv3.WithLease(lease.ID))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Leave(t.Context(), "d4e5f6"); err != nil {
		t.Fatal(err)
	}
	if ttl, err := r.Client.TimeToLive(t.Context(), lease.ID); err != nil || ttl.TTL != -1 {
		t.Errorf("the lease of the host goes on: %+v, %v", ttl, err)
	}
	if err := r.Leave(t.Context(), "d4e5f6"); !errors.Is(err, ErrNotMember) {
		t.Error(err)
	}
	if _, err := r.Token(t.Context(), second); !errors.Is(err, ErrNotMember) {
		t.Errorf("a token of a host that left: %v", err)
	}
	if state, err := r.State(t.Context()); err != nil || len(state.Hosts) != 1 {
		t.Errorf("%+v, %v", state, err)
	}
	if _, err := r.Join(t.Context(), machine("d4e5f6", "second"), token(t, r, first)); err != nil {
		t.Error(err)
	}
}

// TestLeavingOfACopy: a copied identity does not end the membership of the host that runs, nor a membership that has the ID since.
func TestLeavingOfACopy(t *testing.T) {
	t.Parallel()
	r, first := founded(t)
	second, err := r.Join(t.Context(), machine("d4e5f6", "second"), token(t, r, first))
	if err != nil {
		t.Fatal(err)
	}
	present := fleet.KeysOf("test").Presence("d4e5f6")
	if _, err := r.Client.Put(t.Context(), present, `{"instance": "1"}`); err != nil {
		t.Fatal(err)
	}
	if err := r.LeaveStopped(t.Context(), second); !errors.Is(err, ErrRunning) {
		t.Errorf("while the host runs: %v", err)
	}
	if is, err := r.IsMember(t.Context(), second); !is || err != nil {
		t.Error(is, err)
	}
	if _, err := r.Client.Delete(t.Context(), present); err != nil {
		t.Fatal(err)
	}
	if err := r.LeaveStopped(t.Context(), second); err != nil {
		t.Error(err)
	}
	again, err := r.Join(t.Context(), machine("d4e5f6", "second"), token(t, r, first))
	if err != nil {
		t.Fatal(err)
	}
	if is, err := r.IsMember(t.Context(), second); is || err != nil {
		t.Errorf("the earlier identity: %v, %v", is, err)
	}
	if err := r.LeaveStopped(t.Context(), second); !errors.Is(err, ErrNotMember) {
		t.Errorf("the earlier identity: %v", err)
	}
	if is, err := r.IsMember(t.Context(), again); !is || err != nil {
		t.Error(is, err)
	}
}

// TestCordon: the field changes, and fields of later versions stay.
func TestCordon(t *testing.T) {
	t.Parallel()
	r, _ := founded(t)
	key := fleet.KeysOf("test").Host("a1b2c3")
	text, _, err := fleet.Get(t.Context(), r.Client, key)
	if err == nil {
		_, err = r.Client.Put(t.Context(), key, strings.Replace(string(text), "{", `{"later":{"x":1},`, 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, true, false} {
		if err := r.Cordon(t.Context(), "a1b2c3", want); err != nil {
			t.Fatal(err)
		}
		text, _, err := fleet.Get(t.Context(), r.Client, key)
		if err != nil {
			t.Fatal(err)
		}
		if host, err := fleet.Decode[fleet.Host](text); err != nil || host.Cordoned != want || host.Name != "first" || !strings.Contains(string(text), `"later":{"x":1}`) {
			t.Errorf("%s, %v", text, err)
		}
	}
	if err := r.Cordon(t.Context(), "ffffff", true); !errors.Is(err, ErrNotMember) {
		t.Error(err)
	}
}

// TestLaterProtocol: a fleet of a later version is refused before anything is written.
func TestLaterProtocol(t *testing.T) {
	t.Parallel()
	r, first := founded(t)
	one := token(t, r, first)
	text, err := fleet.Encode(fleet.Founding{ID: first.Founding, Protocol: fleet.Protocol + 1, CA: first.CA})
	if err == nil {
		_, err = r.Client.Put(t.Context(), fleet.KeysOf("test").Founding(), text)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Join(t.Context(), machine("ffffff", "x"), one); !errors.Is(err, ErrNewer) {
		t.Error(err)
	}
	if _, err := (Roster{r.Client, "other"}).Founding(t.Context()); !errors.Is(err, ErrNotFounded) {
		t.Error(err)
	}
}

// TestUnreachable: without etcd the calls end with their context, and name the cause.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	server.Kill()
	r := Roster{server.Client(), "test"}
	ctx, cancel := context.WithTimeout(t.Context(), 200_000_000)
	defer cancel()
	if _, err := r.State(ctx); !errors.Is(err, fleet.ErrUnreachable) {
		t.Error(err)
	}
	if _, err := r.AuthorityKey(ctx, fleet.Identity{Host: "a1b2c3", Wrap: name.NewSecret("x").Reveal()}); !errors.Is(err, fleet.ErrUnreachable) {
		t.Error(err)
	}
}

// TestUnreadableRecords: records that another program wrote are listed as such, and do not hide the others.
func TestUnreadableRecords(t *testing.T) {
	t.Parallel()
	r, _ := founded(t)
	k := fleet.KeysOf("test")
	for key, text := range map[string]string{
		k.Host("111111"): "{", k.Host("222222"): `{"id":"222222","protocol":"x"}`, k.Host("333333"): strings.Repeat("x", 1<<20), k.Presence("a1b2c3"): "[]", k.Presence("unknown"): "{",
	} {
		if _, err := r.Client.Put(t.Context(), key, text); err != nil {
			t.Fatal(err)
		}
	}
	state, err := r.State(t.Context())
	if err != nil || len(state.Hosts) != 4 {
		t.Fatalf("%+v, %v", state, err)
	}
	for _, h := range state.Hosts {
		if h.Problem == "" || h.Drained {
			t.Errorf("%+v", h)
		}
	}
	if err := r.Leave(t.Context(), "111111"); err != nil {
		t.Errorf("a host whose record cannot be read: %v", err)
	}
}

// TestNamesOfAHostThatLeft: the names of its boxes are free, whichever way it left, and also if the command died in between. A host that has
// joined again keeps its own.
func TestNamesOfAHostThatLeft(t *testing.T) {
	t.Parallel()
	r, first := founded(t)
	of := func(host string) directory.Directory {
		return directory.Directory{Client: r.Client, Keys: r.keys(), Host: host, Guard: func() clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(r.keys().Host(host)), ">", 0) }}
	}
	taken := func() (hosts []string) {
		for _, name := range []string{"web", "db"} {
			o, ok, err := of("a1b2c3").Find(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				hosts = append(hosts, o.Host)
			}
		}
		return hosts
	}
	if err := of("a1b2c3").Put(t.Context(), "a1b2c31", directory.Entry{Name: "db"}); err != nil {
		t.Fatal(err)
	}
	for _, leave := range []func(fleet.Identity) error{
		func(fleet.Identity) error { return r.Leave(t.Context(), "d4e5f6") },
		func(id fleet.Identity) error { return r.LeaveStopped(t.Context(), id) },
		func(fleet.Identity) error { // the command dies after the host has left; it is called again
			_, err := r.Client.Delete(t.Context(), r.keys().Host("d4e5f6"))
			if again := r.Leave(t.Context(), "d4e5f6"); !errors.Is(again, ErrNotMember) {
				t.Error(again)
			}
			return err
		},
	} {
		second, err := r.Join(t.Context(), machine("d4e5f6", "second"), token(t, r, first))
		if err != nil {
			t.Fatal(err)
		}
		if err := of("d4e5f6").Put(t.Context(), "d4e5f61", directory.Entry{Name: "web", Labels: []string{"x"}}); err != nil {
			t.Fatal(err)
		}
		if err := r.forget(t.Context(), "d4e5f6"); err != nil || len(taken()) != 2 {
			t.Errorf("the boxes of a member: %v, %v", taken(), err)
		}
		if err := leave(second); err != nil {
			t.Fatal(err)
		}
		if hosts := taken(); !slices.Equal(hosts, []string{"a1b2c3"}) {
			t.Errorf("names of %v are taken", hosts)
		}
		if left, err := of("d4e5f6").Boxes(t.Context(), "d4e5f6"); err != nil || len(left) > 0 {
			t.Errorf("%v, %v", left, err)
		}
	}
}

// TestAttackRestsOfAnEarlierFleet: a fleet is not founded on the keys of an earlier one, whose API keys would be valid in it.
func TestAttackRestsOfAnEarlierFleet(t *testing.T) {
	t.Parallel()
	r, _ := founded(t)
	k := r.keys()
	if _, err := r.Client.Put(t.Context(), k.Watched()+"keys/00", `{"name": "old"}`); err != nil {
		t.Fatal(err)
	}
	other := Roster{r.Client, "test-2"} // beside it in the order of keys
	if _, err := other.Init(t.Context(), machine("a1b2c3", "first")); err != nil {
		t.Error(err)
	}
	if _, err := r.Client.Delete(t.Context(), k.Founding()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Init(t.Context(), machine("ffffff", "x")); !errors.Is(err, ErrRests) || !strings.Contains(err.Error(), k.Root()) {
		t.Error(err)
	}
	if _, err := r.Client.Delete(t.Context(), k.Root(), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Init(t.Context(), machine("ffffff", "x")); err != nil {
		t.Error(err)
	}
}
