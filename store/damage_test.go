package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/history"
	"boxgate/store/layout"
	"boxgate/store/pages"
)

// fullStore makes a store with a document of every kind, and returns its directory.
func fullStore(t *testing.T) string {
	t.Helper()
	dir := newDir(t)
	db, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Keys.Ensure(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []policy.BoxID{"b1", "b2"} {
		allocate(t, db, Box{ID: id, Name: "name-" + string(id), State: "idle", CreatedAt: time.Unix(1000, 0).UTC(),
			Env: map[string]name.Secret{"A": name.NewSecret("value")}})
		spec := policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"evil.example.com"}}
		if err := errors.Join(
			db.Rules.StagePolicy(id, Policy{Spec: spec, Version: 1}, history.Origin{}), db.Rules.CommitPolicy(id), db.Rules.SetHeaders(id, rules(t, "api.example.com", "X-Key", "value"), 1),
			db.Authorities.SetCA(id, CA{CertPEM: []byte("cert"), KeyPEM: name.NewSecret("key")}),
			db.URLs.Set(URL{Box: id, Port: 8000, Bearer: &KeyHash{1}, ExpiresAt: time.Unix(4000000000, 0).UTC(), Key: name.NewSecret("url-key-" + string(id))}, Claim{}),
		); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		db.Rules.SetGlobalHeaders(rules(t, "api.example.com", "X-Key", "value"), 1), db.Authorities.SetInstallationCA(CA{CertPEM: []byte("cert")}),
		db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{Mode: policy.ModeDenyAll}, Version: 2}, history.Origin{}), db.Environment.Change(setting("SHARED", "value")),
		db.Schedules.Add(Schedule{ID: "s1", Box: "b1", Cron: "0 9 * * *", Command: []string{"true"}, WebhookHeaders: map[string]string{"X-Key": "value"}}, 1),
		db.Usages.Save(map[policy.BoxID]Usage{"b1": {CPU: Count{Total: 5, Life: "1", Seen: 5}}}),
		db.Snapshots.Add(Snapshot{ID: "snap1", Box: "b1", Layers: []string{"layer1"}, Env: map[string]string{"A": "value"}}),
		db.Rules.StageHeaders("b1", rules(t, "api.example.com", "X-Key", "staged"), 2, history.Origin{}), db.Close(),
	); err != nil {
		t.Fatal(err)
	}
	return dir
}

// meaning returns the complete content of a store as text, or the first error.
func meaning(db *DB) (string, error) {
	var out strings.Builder
	var errs []error
	say := func(v any, err error) {
		data, encodeErr := json.Marshal(v)
		fmt.Fprintf(&out, "%s\n", data)
		errs = append(errs, err, encodeErr)
	}
	rules := func(h Headers, err error) {
		data, encodeErr := policy.MarshalHeaderRules(h.Rules)
		fmt.Fprintf(&out, "%s\n", data)
		errs = append(errs, encodeErr)
		say(h.Version, err)
	}
	authority := func(ca CA, err error) { say([]string{string(ca.CertPEM), ca.KeyPEM.Reveal()}, err) }
	boxes, err := db.Boxes.All()
	say(boxes, err)
	for _, b := range boxes {
		say(toPlain(b.Env), nil)
		say(db.Boxes.ByName(b.Name))
		say(db.Rules.Policy(b.ID))
		rules(db.Rules.Headers(b.ID))
		authority(db.Authorities.CA(b.ID))
	}
	rules(db.Rules.GlobalHeaders())
	vars, err := db.Environment.Variables()
	say(toPlain(vars), err)
	say(db.Schedules.List(""))
	say(db.Usages.All())
	authority(db.Authorities.InstallationCA())
	say(db.Rules.Staged())
	staged, err := db.Rules.StagedHeaders()
	rules(staged["b1"], err)
	urls, err := db.URLs.List("")
	say(urls, err)
	for _, u := range urls {
		say(u.Key.Reveal(), nil)
	}
	say(db.Keys.All())
	return out.String(), errors.Join(errs...)
}

// openedWith opens a copy of the state directory with this store file. It returns an error if the store is refused,
// else the store's content.
func openedWith(t *testing.T, from, to string, file []byte) (string, error) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil { // a refused store may keep its lock until the process ends
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{layout.FileDB: file, layout.FileSecret: nil, layout.FileAPIKey: nil} {
		var err error
		if data == nil {
			data, err = os.ReadFile(filepath.Join(from, name))
		}
		if err == nil {
			err = errors.Join(os.MkdirAll(to, 0o700), os.WriteFile(filepath.Join(to, name), data, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := Open(Options{Dir: to})
	if err != nil {
		return "", err
	}
	defer db.Close()
	return meaning(db)
}

// One bit of the file is flipped. The store must be refused with an error message or have unchanged content: no box is
// lost and no document has changed. Zero bytes are mostly unused, so fewer of them are tried; the gate tries every
// seventh byte.
func TestFlippedBitsAreRefusedOrMeanTheSame(t *testing.T) {
	t.Parallel()
	dir := fullStore(t)
	file, err := os.ReadFile(filepath.Join(dir, layout.FileDB))
	if err != nil {
		t.Fatal(err)
	}
	to := newDir(t)
	want, err := openedWith(t, dir, to, file)
	if err != nil {
		t.Fatal(err)
	}
	every := nightly.Size(11, 1) // coprime to the 8 bits of a byte
	var drawn, tried, refused, wrong int
	for at := range file {
		if file[at] == 0 && at%61 != 0 && at%pageSize > 96 || at%nightly.Size(7, 1) != 0 {
			continue
		}
		bits := []int{at % 8}
		if at%pageSize < 96 { // headers of pages
			bits = []int{0, 1, 2, 3, 4, 5, 6, 7}
		}
		for _, bit := range bits {
			if drawn++; drawn%every != 0 {
				continue
			}
			damaged := slices.Clone(file)
			damaged[at] ^= 1 << bit
			tried++
			switch got, err := openedWith(t, dir, to, damaged); {
			case err != nil:
				refused++
			case got != want:
				wrong++
				t.Logf("bit %d of byte %d (page %d, %#x): the store opens and says\n%s", bit, at, at/pageSize, at%pageSize, got)
			}
		}
	}
	t.Logf("%d flipped bits, %d of them refused", tried, refused)
	if wrong > 0 {
		t.Errorf("%d of %d flipped bits changed what the store says", wrong, tried)
	}
}

// A key in a branch page is wrong: bbolt would not find the keys below it, and a box would have no policy.
func TestKeysThatLeadAstrayAreRefused(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	wide := Pools{V4: netip.MustParsePrefix("10.200.0.0/16"), Reserved: 3}
	for i := range 60 {
		if _, err := db.Boxes.Allocate(Box{ID: policy.BoxID(fmt.Sprintf("box%03d", i)), Image: strings.Repeat("x", 200)}, wide); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, layout.FileDB))
	if err != nil {
		t.Fatal(err)
	}
	const branch, pageHeader, elementSize = 0x01, 16, 16 // of bbolt
	tried := 0
	for at := 2 * pageSize; at < len(file); at += pageSize {
		page := file[at : at+pageSize]
		if binary.LittleEndian.Uint16(page[8:]) != branch || binary.LittleEndian.Uint16(page[10:]) < 2 {
			continue
		}
		element := pageHeader + elementSize // the second: bbolt treats the first key as the lowest possible
		key := element + int(binary.LittleEndian.Uint32(page[element:]))
		damaged := slices.Clone(file)
		damaged[at+key+5]++
		tried++
		to := newDir(t)
		if err := os.WriteFile(filepath.Join(dir, layout.FileAPIKey), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _ = openedWith(t, dir, to, damaged) // the damage may be detected later
		if db, err := Open(Options{Dir: to}); err == nil {
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if slices.Contains(reachable(t, file), uint64(at/pageSize)) {
				t.Errorf("page %d: the store opens", at/pageSize)
			}
		}
	}
	if tried == 0 {
		t.Error("no page leads to others")
	}
}

// reachable returns the pages in use of an intact file.
func reachable(t *testing.T, file []byte) []uint64 {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen, err := pages.Reachable(f)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(maps.Keys(seen))
}
