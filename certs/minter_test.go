package certs

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

func pemOf(c *tls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}

func TestUnknownBoxGetsNoLeaf(t *testing.T) {
	t.Parallel()
	var m Minter
	if leaf, err := m.Leaf(t.Context(), "nobody", mustName(t, "a.example.com")); !errors.Is(err, ErrUnknownBox) || leaf != nil {
		t.Errorf("zero Minter: %v, %v", leaf, err)
	}
	if err := m.Add("b", newCA(t, "b")); err != nil {
		t.Fatal(err)
	}
	if leaf, err := m.Leaf(t.Context(), "b", name.Name{}); err == nil {
		t.Errorf("a leaf for no name: %v", leaf)
	}
	m.Remove("b")
	if _, err := m.Leaf(t.Context(), "b", mustName(t, "a.example.com")); !errors.Is(err, ErrUnknownBox) {
		t.Errorf("removed box: %v", err)
	}
}

func TestLeafIsOfTheBoxAndTheNameAlone(t *testing.T) {
	t.Parallel()
	var m Minter
	one, two := newCA(t, "one"), newCA(t, "two")
	for box, ca := range map[policy.BoxID]*Authority{"one": one, "two": two} {
		if err := m.Add(box, ca); err != nil {
			t.Fatal(err)
		}
	}
	leaf, err := m.Leaf(t.Context(), "one", mustName(t, "a.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	if err := leaf.Leaf.CheckSignatureFrom(one.Certificate()); err != nil {
		t.Error(err)
	}
	if err := leaf.Leaf.CheckSignatureFrom(two.Certificate()); err == nil {
		t.Error("signed by the other box's authority")
	}
	if len(leaf.Leaf.DNSNames) != 1 || leaf.Leaf.DNSNames[0] != "a.example.com" {
		t.Errorf("names %v", leaf.Leaf.DNSNames)
	}
	if life := leaf.Leaf.NotAfter.Sub(leaf.Leaf.NotBefore); life > 8*24*time.Hour+time.Hour {
		t.Errorf("lives %v", life)
	}
	if leaf.Leaf.IsCA {
		t.Error("a leaf that may sign")
	}
}

func TestLeafIsRenewedBeforeItEnds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m := Minter{now: func() time.Time { return now }}
	if err := m.Add("b", newCA(t, "b")); err != nil {
		t.Fatal(err)
	}
	name := mustName(t, "a.example.com")
	ask := func() *tls.Certificate {
		leaf, err := m.Leaf(t.Context(), "b", name)
		if err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	first := ask()
	now = now.Add(17 * time.Hour)
	if ask() != first {
		t.Error("minted anew with seven hours left")
	}
	now = now.Add(2 * time.Hour)
	second := ask()
	if second == first || second.Leaf.NotAfter.Before(now.Add(23*time.Hour)) {
		t.Error("not renewed with five hours left")
	}
	now = now.Add(-10 * 24 * time.Hour)
	if ask() == second {
		t.Error("a leaf from the future was served after the clock was set back")
	}
}

func TestOneMintPerNameInFlight(t *testing.T) {
	t.Parallel()
	var m Minter
	if err := m.Add("b", newCA(t, "b")); err != nil {
		t.Fatal(err)
	}
	name := mustName(t, "a.example.com")
	leaves := make([]*tls.Certificate, 64)
	var all sync.WaitGroup
	for i := range leaves {
		all.Go(func() {
			leaf, err := m.Leaf(context.Background(), "b", name)
			if err != nil {
				t.Error(err)
			}
			leaves[i] = leaf
		})
	}
	all.Wait()
	for _, leaf := range leaves {
		if leaf != leaves[0] {
			t.Fatal("two mints for one name")
		}
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	var m Minter
	if err := m.Add("b", newCA(t, "b")); err != nil {
		t.Fatal(err)
	}
	for i := range leafCache + 20 {
		if _, err := m.Leaf(t.Context(), "b", mustName(t, fmt.Sprintf("n%d.example.com", i))); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.boxes["b"].cache.Len(); got != leafCache {
		t.Errorf("%d leaves kept, want %d", got, leafCache)
	}
	if _, ok := m.boxes["b"].cache.Get(mustName(t, "n0.example.com")); ok {
		t.Error("the leaf used longest ago was kept")
	}
}

func BenchmarkLeaf(b *testing.B) {
	ca, err := NewCA("b")
	if err != nil {
		b.Fatal(err)
	}
	var m Minter
	if err := m.Add("b", ca); err != nil {
		b.Fatal(err)
	}
	host, err := name.Parse("a.example.com")
	if err != nil {
		b.Fatal(err)
	}
	b.Run("cached", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := m.Leaf(b.Context(), "b", host); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("minted", func(b *testing.B) {
		for b.Loop() {
			if _, err := m.boxes["b"].ca.issue(m.boxes["b"].key, []string{"a.example.com"}, time.Now(), leafLifetime); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func TestNoLeafForTheHostsOwnNames(t *testing.T) {
	t.Parallel()
	var m Minter
	for _, domain := range []string{"preview.example.com"} {
		n, err := name.Parse(domain)
		if err != nil {
			t.Fatal(err)
		}
		m.HostDomains = append(m.HostDomains, n)
	}
	ca, err := NewCA("box")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Add("b1", ca); err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]error{
		"localhost": ErrHostName, "a.b.localhost": ErrHostName, "preview.example.com": ErrHostName, "box-80.preview.example.com": ErrHostName,
		"xpreview.example.com": nil, "example.com": nil, "api.internal": nil,
	} {
		n, err := name.Parse(host)
		if err != nil {
			t.Fatal(err)
		}
		if leaf, err := m.Leaf(t.Context(), "b1", n); !errors.Is(err, want) || (leaf == nil) != (want != nil) {
			t.Errorf("%s: %v", host, err)
		}
	}
}
