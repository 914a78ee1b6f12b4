package cni

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestInstall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	i := Installation{Binaries: filepath.Join(dir, "bin"), Networks: filepath.Join(dir, "net.d"), Alone: filepath.Join(dir, "alone"), Config: write("boxgate.yaml", "attach: {}"),
		HostConfig: "/etc/boxgate/boxgate.yaml", Root: filepath.Join(dir, "root"), Namespaces: []string{"sandboxes"}}
	self := write("self", "program")
	if err := os.Mkdir(i.Networks, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := i.Install(self); err == nil {
		t.Error("chained to no network")
	}
	write("net.d/20-other.conflist", `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"other"}]}`)
	write("net.d/10-cluster.conflist", `{"cniVersion":"1.0.0","name":"cluster","plugins":[{"type":"bridge","mtu":1400,"deep":{"a":[1]}},{"type":"portmap","capabilities":{"portMappings":true}}]}`)
	for range 2 { // it can be repeated
		if err := i.Install(self); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) (list struct {
		Name         string
		DisableCheck bool
		Plugins      []map[string]any
	}) {
		t.Helper()
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &list)
		}
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	chained := read(filepath.Join(i.Networks, chainedFile))
	if chained.Name != "cluster" || !chained.DisableCheck || len(chained.Plugins) != 3 || chained.Plugins[0]["mtu"] != 1400.0 || chained.Plugins[2]["type"] != Program ||
		chained.Plugins[2]["config"] != i.HostConfig {
		t.Errorf("%+v", chained)
	}
	if alone := read(filepath.Join(i.Alone, aloneFile)); len(alone.Plugins) != 1 || alone.Plugins[0]["type"] != Program {
		t.Errorf("%+v", alone)
	}
	if info, err := os.Stat(filepath.Join(i.Binaries, Program)); err != nil || info.Mode().Perm() != 0o755 {
		t.Error(info, err)
	}
	if info, err := os.Stat(filepath.Join(i.Root, i.HostConfig)); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	entries, err := os.ReadDir(i.Networks)
	if err != nil || entries[0].Name() != chainedFile || len(entries) != 3 { // runtimes take the first
		t.Error(entries, err)
	}
	for range 2 {
		if err := i.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(i.Networks); err != nil || len(entries) != 2 {
		t.Error(entries, err)
	}
}

// A network of one plugin becomes a list.
func TestInstallAfterASinglePlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "10-one.conf"), []byte(`{"cniVersion":"0.4.0","name":"one","type":"ptp"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := (&Installation{Networks: dir}).chained()
	if err != nil || list["cniVersion"] != "0.4.0" || len(list["plugins"].([]any)) != 2 {
		t.Error(list, err)
	}
	for _, text := range []string{"", "[]", "{}", `{"name":"n","plugins":[]}`, `{"plugins":[{"type":"a"}]}`} {
		if err := os.WriteFile(filepath.Join(dir, "10-one.conf"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := (&Installation{Networks: dir}).chained(); err == nil {
			t.Errorf("%q: %v", text, list)
		}
	}
}
