package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/roster"
	"boxgate/fleet/shared"
	"boxgate/fleet/sharedkey"
	"boxgate/policy/name"
)

// objectsOf returns the objects of header rules in etcd.
func objectsOf(t *testing.T, server *etcdtest.Server) map[string][]byte {
	t.Helper()
	answer, err := server.Client().Get(t.Context(), "/boxgate/test/watched/headers/rules")
	if err != nil || len(answer.Kvs) != 1 {
		t.Fatal(answer, err)
	}
	return map[string][]byte{headersID: answer.Kvs[0].Value}
}

// memberOf returns a node that runs and applies every kind.
func memberOf(t *testing.T, server *etcdtest.Server, r roster.Roster) *Node {
	t.Helper()
	id, err := r.Init(t.Context(), roster.Machine{ID: "a1b2c3", Name: "first", Keep: keep})
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t, server, id)
	apply := map[shared.Kind]shared.Apply{}
	for _, kind := range shared.Kinds {
		apply[kind] = func(map[string][]byte) error { return nil }
	}
	n.Shared().Attach(apply)
	run(t, n)
	return n
}

func accept(uint64) error { return nil }

// TestSealedHeaders: rules are opened as they were written; the object has no part of them in clear. Any change of the object, another fleet
// and another place of it are refused.
func TestSealedHeaders(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	n := memberOf(t, server, roster.Roster{Client: server.Client(), Name: "test"})
	s := n.Shared()
	if h, err := s.OpenHeaders(nil); err != nil || h.Version != 0 || h.Document != nil {
		t.Errorf("without rules: %+v, %v", h, err)
	}
	document := []byte(`{"api.example.com":{"X-Key":"canary"}}`)
	version, err := s.ChangeHeaders(t.Context(), 0, accept, document)
	if err != nil || version != 1 {
		t.Fatal(version, err)
	}
	objects := objectsOf(t, server)
	if bytes.Contains(objects[headersID], []byte("canary")) || bytes.Contains(objects[headersID], []byte("api.example.com")) {
		t.Errorf("%s", objects[headersID])
	}
	if h, err := s.OpenHeaders(objects); err != nil || h.Version != 1 || !bytes.Equal(h.Document, document) {
		t.Errorf("%+v, %v", h, err)
	}
	if version, err = s.ChangeHeaders(t.Context(), 0, accept, document); err != nil || version != 2 {
		t.Fatal(version, err)
	}
	next := objectsOf(t, server)
	if bytes.Equal(next[headersID], objects[headersID]) {
		t.Error("the same document is sealed alike")
	}

	edited := func(edit func(*sealedHeaders)) map[string][]byte {
		var h sealedHeaders
		if err := json.Unmarshal(next[headersID], &h); err != nil {
			t.Fatal(err)
		}
		h.Sealed = bytes.Clone(h.Sealed)
		edit(&h)
		text, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		return map[string][]byte{headersID: text}
	}
	for name, forged := range map[string]map[string][]byte{
		"another version": edited(func(h *sealedHeaders) { h.Version++ }), "another host": edited(func(h *sealedHeaders) { h.Host = "ffffff" }),
		"a changed byte": edited(func(h *sealedHeaders) { h.Sealed[len(h.Sealed)-1] ^= 1 }), "cut short": edited(func(h *sealedHeaders) { h.Sealed = h.Sealed[:10] }),
		"no version": edited(func(h *sealedHeaders) { h.Version = 0 }), "another key": edited(func(h *sealedHeaders) { h.Key = strings.Repeat("0", 32) }),
		"no JSON": {headersID: []byte("{")}, "null": {headersID: []byte("null")},
	} {
		if h, err := s.OpenHeaders(forged); err == nil {
			t.Errorf("%s is opened: %+v", name, h)
		} else if strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the error quotes the value: %v", name, err)
		}
	}
	other := *s
	other.founding = "0123456789abcdef"
	if h, err := other.OpenHeaders(next); err == nil {
		t.Errorf("a fleet of the same name opens them: %+v", h)
	}
}

// TestChangesOfHeaders: a change is refused with the error of its check, and when it is too large; versions grow, also beyond a number that a
// stranger wrote.
func TestChangesOfHeaders(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	n := memberOf(t, server, roster.Roster{Client: server.Client(), Name: "test"})
	s := n.Shared()
	refused := errors.New("another version")
	if _, err := s.ChangeHeaders(t.Context(), 0, func(uint64) error { return refused }, []byte("{}")); !errors.Is(err, refused) {
		t.Error(err)
	}
	if _, err := s.ChangeHeaders(t.Context(), 0, accept, make([]byte, shared.MaxHeaderRules+1)); !errors.Is(err, shared.ErrTooLarge) {
		t.Error(err)
	}
	if version, err := s.ChangeHeaders(t.Context(), 6, accept, make([]byte, shared.MaxHeaderRules)); err != nil || version != 7 {
		t.Errorf("the largest document: version %d, %v", version, err)
	}
	seen := uint64(0)
	if version, err := s.ChangeHeaders(t.Context(), 0, func(v uint64) error { seen = v; return nil }, []byte("{}")); err != nil || version != 8 || seen != 7 {
		t.Errorf("version %d after %d, %v", version, seen, err)
	}
	for _, forged := range []string{`{"version":18446744073709551615,"key":"x","host":"a1b2c3","sealed":"AAAA"}`, `{"version":"9"}`, ``} {
		if _, err := server.Client().Put(t.Context(), "/boxgate/test/watched/headers/rules", forged); err != nil {
			t.Fatal(err)
		}
		if version, err := s.ChangeHeaders(t.Context(), 8, accept, []byte("{}")); err != nil || version != 9 {
			t.Errorf("after %q: version %d, %v", forged, version, err)
		}
	}
}

// FuzzOpenHeaders: no object is opened that was not sealed by a member.
func FuzzOpenHeaders(f *testing.F) {
	server := etcdtest.Start(f)
	r := roster.Roster{Client: server.Client(), Name: "test"}
	id, err := r.Init(context.Background(), roster.Machine{ID: "a1b2c3", Name: "first", Keep: keep})
	if err != nil {
		f.Fatal(err)
	}
	s := Shared{founding: id.Founding}
	s.ring, err = sharedkey.New(ringOf(r, id))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"version":1,"key":"","host":"a1b2c3","sealed":"AAAA"}`))
	f.Add([]byte(`{"version":1,"key":"00","host":"a1b2c3","sealed":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		objects := map[string][]byte{headersID: text}
		before := maps.Clone(objects)
		if h, err := s.OpenHeaders(objects); err == nil {
			t.Errorf("%q is opened: %+v", text, h)
		}
		if !bytes.Equal(before[headersID], text) {
			t.Error("the objects were changed")
		}
	})
}

func keep(fleet.Identity) error { return nil }

// ringOf configures a ring of a host without a lease.
func ringOf(r roster.Roster, id fleet.Identity) sharedkey.Config {
	return sharedkey.Config{
		Client: r.Client, Keys: fleet.KeysOf(r.Name), Identity: id, Lease: func() clientv3.LeaseID { return 0 }, Hosts: func() int { return 1 }, Obtained: func() {}, Log: zap.NewNop(),
		Guard:        func() clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision("x"), "=", 0) },
		AuthorityKey: func(ctx context.Context) (name.Secret, error) { return r.AuthorityKey(ctx, id) },
	}
}
