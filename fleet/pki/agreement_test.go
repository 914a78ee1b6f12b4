package pki

import (
	"bytes"
	"testing"
)

// agreement returns the agreement of a host with a new key.
func agreement(t *testing.T, host string) *Agreement {
	t.Helper()
	der, _, err := NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAgreement(host, der)
	if err != nil {
		t.Fatal(err)
	}
	again, err := NewAgreement(host, der)
	if err != nil || !bytes.Equal(a.Public(), again.Public()) {
		t.Fatal("the key of a host changes", err)
	}
	return a
}

// TestAgreement: two hosts have the same two secrets; no other host, purpose or direction has one of them.
func TestAgreement(t *testing.T) {
	t.Parallel()
	a, b, c := agreement(t, "aaaaaa"), agreement(t, "bbbbbb"), agreement(t, "cccccc")
	to, from, err := a.Secrets("bbbbbb", b.Public(), "visitors")
	if err != nil || len(to) != SecretSize || bytes.Equal(to, from) {
		t.Fatal(to, from, err)
	}
	back, forth, err := b.Secrets("aaaaaa", a.Public(), "visitors")
	if err != nil || !bytes.Equal(back, from) || !bytes.Equal(forth, to) {
		t.Error("the hosts do not agree", err)
	}
	for what, got := range map[string]func() ([]byte, []byte, error){
		"another host": func() ([]byte, []byte, error) { return c.Secrets("aaaaaa", a.Public(), "visitors") },
		"a host with a member's ID": func() ([]byte, []byte, error) {
			return agreement(t, "bbbbbb").Secrets("aaaaaa", a.Public(), "visitors")
		},
		"another purpose":            func() ([]byte, []byte, error) { return b.Secrets("aaaaaa", a.Public(), "other") },
		"another ID of the same key": func() ([]byte, []byte, error) { return b.Secrets("dddddd", a.Public(), "visitors") },
	} {
		x, y, err := got()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for _, secret := range [][]byte{x, y} {
			if bytes.Equal(secret, to) || bytes.Equal(secret, from) {
				t.Errorf("%s has a secret of the two", what)
			}
		}
	}
	for what, public := range map[string][]byte{"none": nil, "of small order": make([]byte, 32), "of another size": make([]byte, 31)} {
		if _, _, err := a.Secrets("bbbbbb", public, "visitors"); err == nil {
			t.Errorf("a secret with a public key %s", what)
		}
	}
	if _, _, err := a.Secrets("aaaaaa", a.Public(), "visitors"); err == nil {
		t.Error("a secret with itself")
	}
	if _, err := NewAgreement("aaaaaa", []byte("no key")); err == nil {
		t.Error("an agreement without a key")
	}
}
