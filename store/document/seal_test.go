package document

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/crypto/chacha20poly1305"

	"boxgate/store/layout"
)

// secret is a sealed document of the tests.
type secret struct {
	Values map[string]string `json:"values"`
}

const canary = "canary-value"

// sealed seals a value for box b1, in the bucket of header rules.
func (f *fixture) sealed(v any) (out []byte, err error) {
	err = f.db.View(func(tx *bolt.Tx) error {
		out, err = f.SealJSON(tx, layout.Headers, "b1", v)
		return err
	})
	return out, err
}

// opened opens a value for a place.
func (f *fixture) opened(bucket []byte, owner string, sealed []byte) (v secret, err error) {
	err = f.db.View(func(tx *bolt.Tx) error { return f.OpenJSON(tx, bucket, owner, sealed, &v) })
	return v, err
}

// TestSealedValues checks that a value opens only in its own place and unmodified, and that its encryption never
// repeats.
func TestSealedValues(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, err := f.sealed(secret{map[string]string{"A": canary}})
	two, again := f.sealed(secret{map[string]string{"A": canary}})
	if errors.Join(err, again) != nil || bytes.Equal(one, two) || bytes.Contains(one, []byte(canary)) {
		t.Fatalf("%q and %q, %v", one, two, errors.Join(err, again))
	}
	for _, text := range [][]byte{one, two} {
		if got, err := f.opened(layout.Headers, "b1", text); err != nil || got.Values["A"] != canary {
			t.Errorf("%+v, %v", got, err)
		}
	}
	flipped := bytes.Clone(one)
	flipped[len(flipped)-1] ^= 1
	for name, c := range map[string]struct {
		bucket []byte
		owner  string
		text   []byte
		words  string
	}{
		"of another box":                 {layout.Headers, "b2", one, "changed or moved"},
		"of another table":               {layout.Secrets, "b1", one, "changed or moved"},
		"of a place that ends elsewhere": {[]byte("headers\x00b"), "1", one, "changed or moved"},
		"changed":                        {layout.Headers, "b1", flipped, "changed or moved"},
		"without its end":                {layout.Headers, "b1", one[:len(one)-1], "changed or moved"},
		"half a nonce":                   {layout.Headers, "b1", one[:10], "truncated"},
		"nothing":                        {layout.Headers, "b1", nil, "truncated"},
	} {
		if got, err := f.opened(c.bucket, c.owner, c.text); err == nil || !strings.Contains(err.Error(), c.words) || got.Values != nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestFormatsThatAreNotKnown checks that the error about a value of a later version does not quote it.
func TestFormatsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, v := range []any{map[string]any{canary: 1}, map[string]any{"values": canary}, []string{canary}, map[string]any{"values": map[string]any{"A": []string{canary}}}} {
		text, err := f.sealed(v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.opened(layout.Headers, "b1", text); err == nil || !strings.Contains(err.Error(), "headers of b1") || strings.Contains(err.Error(), canary) {
			t.Errorf("%v: %v", v, err)
		}
	}
	if _, err := f.sealed(func() {}); err == nil {
		t.Error("what is no JSON was sealed")
	}
}

// TestDataKeys checks that a value is read with the key of its transaction, so that the key can change during other
// reads.
func TestDataKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	text, err := f.sealed(secret{map[string]string{"A": canary}})
	if err != nil {
		t.Fatal(err)
	}
	before, err := f.db.Begin(false)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := f.NewKey(wrapped)
	if err != nil {
		t.Fatal(err)
	}
	f.change(func(tx *bolt.Tx) error { return PutKey(tx, fresh, layout.SealedByPassphrase) })
	var v secret
	if err := f.OpenJSON(before, layout.Headers, "b1", text, &v); err != nil || v.Values["A"] != canary {
		t.Errorf("in the transaction that began before: %+v, %v", v, err)
	}
	if err := before.Rollback(); err != nil {
		t.Error(err)
	}
	if _, err := f.opened(layout.Headers, "b1", text); err == nil {
		t.Error("a value of the old key opens under the new one")
	}
	f.change(func(tx *bolt.Tx) error {
		if got := tx.Bucket(layout.Meta).Get(layout.Sealing); string(got) != layout.SealedByPassphrase {
			t.Errorf("sealed by %q", got)
		}
		return PutKey(tx, []byte("unknown"), layout.SealedByFile)
	})
	if _, err := f.sealed(secret{}); err == nil || !strings.Contains(err.Error(), "not known") {
		t.Errorf("under an unknown key: %v", err)
	}
	if _, err := f.opened(layout.Headers, "b1", text); err == nil || !strings.Contains(err.Error(), "not known") {
		t.Errorf("under an unknown key: %v", err)
	}
}

// TestKeysAreClearedAndHaveTheirSchema checks that the schema is encrypted with the data key.
func TestKeysAreClearedAndHaveTheirSchema(t *testing.T) {
	t.Parallel()
	s := NewSealer()
	key := bytes.Repeat([]byte{7}, chacha20poly1305.KeySize)
	var content []byte
	text, err := s.WrapKey(key, func(c []byte) ([]byte, error) {
		content = bytes.Clone(c)
		return []byte("wrapped"), nil
	})
	if err != nil || string(text) != "wrapped" || !bytes.Equal(key, make([]byte, len(key))) {
		t.Fatalf("%q, %v, and the key is %v", text, err, key)
	}
	for _, c := range []struct {
		content []byte
		schema  int
	}{{content, layout.SchemaNow}, {content[:chacha20poly1305.KeySize], 1}} {
		got, schema, err := ParseKey(c.content)
		if err != nil || schema != c.schema || !bytes.Equal(got, bytes.Repeat([]byte{7}, chacha20poly1305.KeySize)) {
			t.Errorf("%v, schema %d, %v", got, schema, err)
		}
	}
	for _, n := range []int{0, 31, 34} {
		if _, _, err := ParseKey(make([]byte, n)); err == nil || !strings.Contains(err.Error(), "wrong length") {
			t.Errorf("a key of %d bytes: %v", n, err)
		}
	}
	if err := s.AddKey([]byte("short"), make([]byte, 8)); err == nil || !strings.Contains(err.Error(), "unusable") {
		t.Error(err)
	}
	full := errors.New("no recipient")
	if _, err := s.NewKey(func([]byte) ([]byte, error) { return nil, full }); !errors.Is(err, full) || len(s.known) != 1 {
		t.Errorf("%v, and %d keys are known", err, len(s.known))
	}
}
