package token

import (
	"bytes"
	"context"
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/policy"
)

// keys are API keys by their text, of callers that see one box each.
type keys map[string]api.Caller

func (k keys) Owners(id string) (list []Owner) {
	for text, c := range k {
		if id == "" || c.Key == id {
			list = append(list, OwnerOf(c, text))
		}
	}
	slices.SortFunc(list, func(a, b Owner) int { return bytes.Compare(a.Hash[:], b.Hash[:]) })
	return list
}

func (k keys) Find(hash [sha256.Size]byte) (api.Caller, bool) {
	for text, c := range k {
		if sha256.Sum256([]byte(text)) == hash {
			return c, true
		}
	}
	return api.Caller{}, false
}

func (k keys) MayUse(_ context.Context, c api.Caller, box policy.BoxID) bool {
	return c.Sees(api.Box{ID: box}) && c.Role != api.RoleReader
}

func checker(t testing.TB, k keys) *Checker {
	t.Helper()
	m, err := NewMaker(bytes.Repeat([]byte{7}, SecretSize))
	if err != nil {
		t.Fatal(err)
	}
	return &Checker{Maker: m, Keys: k, May: k}
}

func one(id string, box policy.BoxID) api.Caller {
	return api.Caller{Key: id, Role: api.RoleBox, Box: box}
}

// A token opens its box to its key, and nothing else: no other box, no other key, no changed code, no key that ended or lost its right.
func TestToken(t *testing.T) {
	t.Parallel()
	ctx, k := t.Context(), keys{"alpha": one("key_a", "box1"), "beta": one("key_b", "box1"), "root": {Key: "operator", Role: api.RoleAdmin}, "eyes": {Key: "key_r", Role: api.RoleReader}}
	c := checker(t, k)
	token := func(key string, box policy.BoxID) string { return c.Maker.Token(box, OwnerOf(k[key], key)).Reveal() }
	for _, key := range []string{"alpha", "beta", "root"} {
		a, ok := c.Check(ctx, "box1", token(key, "box1"))
		if !ok || a.Caller != k[key] || a.Box != "box1" || !c.Valid(ctx, a) {
			t.Errorf("the token of %s: %+v %v", key, a, ok)
		}
	}
	good := token("alpha", "box1")
	wrong := map[string]string{
		"another box's": token("alpha", "box2"), "a reader's": token("eyes", "box1"), "another ID": "key_b" + strings.TrimPrefix(good, "key_a"),
		"an unknown ID": "key_c" + strings.TrimPrefix(good, "key_a"), "no ID": strings.TrimPrefix(good, "key_a"), "no code": "key_a.", "empty": "", "cut": good[:len(good)-1],
		"longer": good + "A", "the API key": "alpha", "of a wrong key": c.Maker.Token("box1", OwnerOf(k["alpha"], "gamma")).Reveal(),
		"of another installation": (&Maker{}).Token("box1", OwnerOf(k["alpha"], "alpha")).Reveal(),
	}
	for what, text := range wrong {
		if a, ok := c.Check(ctx, "box1", text); ok {
			t.Errorf("a token with %s is accepted: %+v", what, a)
		}
	}
	if _, ok := c.Check(ctx, "box2", good); ok {
		t.Error("a token opens another box")
	}
	gone := token("alpha", "gone")
	if !c.Made("gone", gone) || c.Made("gone", good) || c.Made("box1", gone) || c.Made("gone", "key_a.") || (&Checker{}).Made("gone", gone) {
		t.Error("a token for a box that is gone")
	}
	a, _ := c.Check(ctx, "box1", good)
	k["alpha"] = one("key_a", "box9")
	if c.Valid(ctx, a) {
		t.Error("a token is valid although its key belongs to another caller")
	}
	if delete(k, "alpha"); c.Valid(ctx, a) || c.Made("gone", gone) {
		t.Error("a token is valid without its key")
	}
	if _, ok := c.Check(ctx, "box1", good); ok {
		t.Error("the token of a revoked key is accepted")
	}
	k["alpha2"] = one("key_a", "box1") // replaced: the same ID
	if _, ok := c.Check(ctx, "box1", good); ok {
		t.Error("the token of a replaced key is accepted")
	}
	if _, ok := (&Checker{}).Check(ctx, "box1", good); ok {
		t.Error("a checker without a key admits")
	}
	if _, err := NewMaker(nil); err == nil {
		t.Error("an empty key is accepted")
	}
}

// Within the grace of a replaced key, its tokens work beside the tokens of the new key.
func TestTokensOfBothKeysInAGrace(t *testing.T) {
	t.Parallel()
	k := keys{"old": one("key_a", "box1"), "new": one("key_a", "box1")}
	c := checker(t, k)
	for key := range k {
		if _, ok := c.Check(t.Context(), "box1", c.Maker.Token("box1", OwnerOf(k[key], key)).Reveal()); !ok {
			t.Errorf("the token of the %s key is refused", key)
		}
	}
}

// A signature permits one operation on one path as one user until it expires.
func TestSignature(t *testing.T) {
	t.Parallel()
	ctx, k := t.Context(), keys{"alpha": one("key_a", "box1"), "beta": one("key_b", "box2")}
	c := checker(t, k)
	now := time.Unix(1_800_000_000, 0)
	soon, past := strconv.FormatInt(now.Unix()+1, 10), strconv.FormatInt(now.Unix(), 10)
	signed := func(change func(*Signed)) Signed {
		s := Signed{Path: "/home/user/a", Operation: Read, User: "user", Expires: soon}
		s.Signature = Sign(s, c.Maker.text("box1", OwnerOf(k["alpha"], "alpha")))
		change(&s)
		return s
	}
	if a, ok := c.CheckSignature(ctx, "box1", signed(func(*Signed) {}), now); !ok || a.Caller != k["alpha"] {
		t.Errorf("a signature is refused: %+v %v", a, ok)
	}
	for what, change := range map[string]func(*Signed){
		"path": func(s *Signed) { s.Path = "/home/user/b" }, "operation": func(s *Signed) { s.Operation = Write }, "no operation": func(s *Signed) { s.Operation = "" },
		"user": func(s *Signed) { s.User = "root" }, "later end": func(s *Signed) { s.Expires += "0" }, "no end": func(s *Signed) { s.Expires = "" },
		"no signature": func(s *Signed) { s.Signature = "" }, "no version": func(s *Signed) { s.Signature = strings.TrimPrefix(s.Signature, "v1_") },
		"padding": func(s *Signed) { s.Signature += "=" }, "no number": func(s *Signed) { s.Expires = "x" },
	} {
		if _, ok := c.CheckSignature(ctx, "box1", signed(change), now); ok {
			t.Errorf("with another %s, a signature is accepted", what)
		}
	}
	ended := Signed{Path: "/a", Operation: Read, Expires: past}
	ended.Signature = Sign(ended, c.Maker.text("box1", OwnerOf(k["alpha"], "alpha")))
	if _, ok := c.CheckSignature(ctx, "box1", ended, now); ok {
		t.Error("an expired signature is accepted")
	}
	if _, ok := c.CheckSignature(ctx, "box2", signed(func(*Signed) {}), now); ok {
		t.Error("a signature opens another box")
	}
	forged := Signed{Path: "/a", Operation: Read}
	forged.Signature = Sign(forged, c.Maker.text("box1", OwnerOf(k["beta"], "beta")))
	if _, ok := c.CheckSignature(ctx, "box1", forged, now); ok {
		t.Error("a key that may not use the box signs for it")
	}
}

// counted counts the looks at the API keys.
type counted struct {
	keys
	looks int
}

func (c *counted) Owners(id string) []Owner {
	c.looks++
	return c.keys.Owners(id)
}

// TestAttackLongSignatures: a stranger's request whose fields are too long to be signed costs no look at any key.
func TestAttackLongSignatures(t *testing.T) {
	t.Parallel()
	k := &counted{keys: keys{"alpha": one("key_a", "box1")}}
	c := checker(t, k.keys)
	c.Keys = k
	long := strings.Repeat("a", maxPath)
	check := func(s Signed) bool {
		t.Helper()
		s.Operation = Read
		if s.Signature == "" {
			s.Signature = Sign(s, c.Maker.text("box1", OwnerOf(k.keys["alpha"], "alpha")))
		}
		_, ok := c.CheckSignature(t.Context(), "box1", s, time.Unix(0, 0))
		return ok
	}
	if !check(Signed{Path: long}) || k.looks != 1 {
		t.Errorf("the longest path is refused, %d looks", k.looks)
	}
	for what, s := range map[string]Signed{
		"path": {Path: long + "a"}, "user": {User: long + "a"}, "time": {Expires: "9" + strings.Repeat("0", maxExpires)}, "signature": {Signature: signaturePrefix + long},
		"short signature": {Signature: signaturePrefix + "a"},
	} {
		if check(s) || k.looks != 1 {
			t.Errorf("%s: %d looks", what, k.looks)
		}
	}
	wrong := Signed{Operation: Read, Signature: Sign(Signed{}, "wrong")}
	if _, ok := c.CheckSignature(t.Context(), policy.BoxID(strings.Repeat("b", maxID+1)), wrong, time.Unix(0, 0)); ok || k.looks != 1 {
		t.Errorf("a box that cannot exist: %d looks", k.looks)
	}
}

// BenchmarkWrongSignature is the work for a stranger's request, with many keys.
func BenchmarkWrongSignature(b *testing.B) {
	k := keys{}
	for i := range 1000 {
		id := strconv.Itoa(i)
		k[id] = one(id, "box1")
	}
	c := checker(b, k)
	list := fixed(k.Owners(""))
	c.Keys = list
	s := Signed{Path: strings.Repeat("a", maxPath), Operation: Read, Signature: signaturePrefix + strings.Repeat("a", signatureSize-len(signaturePrefix))}
	for b.Loop() {
		if _, ok := c.CheckSignature(b.Context(), "box1", s, time.Unix(0, 0)); ok {
			b.Fatal("accepted")
		}
	}
}

// fixed is a list of owners without callers.
type fixed []Owner

func (f fixed) Owners(string) []Owner                     { return f }
func (f fixed) Find([sha256.Size]byte) (api.Caller, bool) { return api.Caller{}, false }

// TestSignatureOfTheSDK compares with a signature that the SDK's own function has made.
func TestSignatureOfTheSDK(t *testing.T) {
	t.Parallel()
	got := Sign(Signed{Path: "/home/user/file.txt", Operation: Read, User: "user", Expires: "1800000000"}, "token-1")
	if want := "v1_qVh86VKTu67VP+dV6ljoOVT0cc+VbRBHSBXiBGeiC4E"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// FuzzCheck checks that only the token itself is accepted.
func FuzzCheck(f *testing.F) {
	k := keys{"alpha": one("key_a", "box1")}
	c := checker(f, k)
	good := c.Maker.Token("box1", OwnerOf(k["alpha"], "alpha")).Reveal()
	for _, text := range []string{good, "", ".", "key_a.", good + ".", strings.ToUpper(good), "key_a" + strings.Repeat("A", 44)} {
		f.Add(text, "/a", "v1_x", "1")
	}
	f.Fuzz(func(t *testing.T, text, path, signature, end string) {
		if _, ok := c.Check(t.Context(), "box1", text); ok != (text == good) {
			t.Errorf("%q: %v", text, ok)
		}
		s := Signed{Path: path, Operation: Read, Signature: signature, Expires: end}
		if _, ok := c.CheckSignature(t.Context(), "box1", s, time.Now()); ok && signature != Sign(s, good) {
			t.Errorf("%+v is accepted", s)
		}
	})
}
