package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeysAreApart: no key of one fleet is below the prefix of another, and only hosts are watched.
func TestKeysAreApart(t *testing.T) {
	a, b := KeysOf("a"), KeysOf("ab")
	for _, key := range []string{a.Founding(), a.Host("1"), a.Presence("1"), a.Wrap("1"), a.Token("1")} {
		if strings.HasPrefix(key, b.root) || !strings.HasPrefix(key, a.root) {
			t.Errorf("%s and %s", key, b.root)
		}
		if watched := strings.HasPrefix(key, a.Watched()); watched != (key == a.Host("1")) {
			t.Errorf("%s is watched: %v", key, watched)
		}
	}
}

func TestCheckHost(t *testing.T) {
	for id, ok := range map[string]bool{"a1b2c3": true, "": false, "A1B2C3": false, "a1b2c": false, "a1b2c34": false, "a1b2c3/": false, "../../": false} {
		if err := CheckHost(id); (err == nil) != ok {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// FuzzDecode: a record that was read is written and read again alike; large ones are refused.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"id":"a1b2c3","protocol":1,"name":"x","key":"AA==","joined":"2026-11-30T00:00:00Z","cordoned":true}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		host, err := Decode[Host](text)
		if err != nil {
			return
		}
		if len(text) > maxRecord {
			t.Fatalf("%d bytes were read", len(text))
		}
		again, err := Encode(host)
		if err != nil {
			return // a time that JSON cannot have
		}
		if back, err := Decode[Host]([]byte(again)); err != nil || back.ID != host.ID || back.Cordoned != host.Cordoned || string(back.Key) != string(host.Key) {
			t.Errorf("%q: %+v, %+v, %v", text, host, back, err)
		}
	})
}

// TestDialFiles: files that cannot be used are named with their keys, before a connection.
func TestDialFiles(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, a := range map[string]Access{
		"fleet.tls.ca_file": {Endpoints: []string{"https://127.0.0.1:1"}, CAFile: empty}, "fleet.tls.cert_file and key_file": {Endpoints: []string{"https://127.0.0.1:1"}, CertFile: empty, KeyFile: empty},
		"no such file": {Endpoints: []string{"https://127.0.0.1:1"}, CAFile: empty + ".not"},
	} {
		c, err := Dial(a)
		if err == nil {
			_ = c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
