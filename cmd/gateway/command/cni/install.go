package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Installation has the directories into which the plugin and its configuration are installed, as the installing process sees them: in a
// pod they are mounts of the host's.
type Installation struct {
	Binaries string // directory of CNI plugins
	Networks string // directory of CNI networks; runtimes use the first in it
	Alone    string // directory of a network with the plugin alone, for a runtime class; empty: none
	Config   string // the gateway's configuration, copied to HostConfig

	HostConfig string   // where the plugin finds the configuration; in Root
	Root       string   // mount of the host's root, for HostConfig
	Namespaces []string // of Kubernetes; all their pods are the gateway's
}

// chainedFile is the name of the network that Install writes. Runtimes use the first in the order of names, so that it stays in use when
// the agent of the cluster's network writes its own again.
const chainedFile = "00-boxgate.conflist"

// aloneFile is the name of the network with the plugin alone.
const aloneFile = "boxgate.conflist"

// aloneVersion is the version of CNI of that network: containerd 1.6 and 1.7 know none newer.
const aloneVersion = "1.0.0"

// Install writes binary, configuration and networks. Each file is replaced as a whole, the networks last. It can be repeated.
func (i *Installation) Install(self string) error {
	if err := copyFile(self, filepath.Join(i.Binaries, Program), 0o755); err != nil {
		return err
	}
	if i.Config != "" {
		if err := copyFile(i.Config, filepath.Join(i.Root, i.HostConfig), 0o600); err != nil {
			return err
		}
	}
	if i.Alone != "" {
		list := map[string]any{"cniVersion": aloneVersion, "name": "boxgate", "plugins": []any{i.plugin()}}
		if err := writeNetwork(filepath.Join(i.Alone, aloneFile), list); err != nil {
			return err
		}
	}
	if i.Networks == "" {
		return nil
	}
	list, err := i.chained()
	if err != nil {
		return err
	}
	return writeNetwork(filepath.Join(i.Networks, chainedFile), list)
}

// Remove removes the networks, first, and the binary. Boxes and records stay for DEL of their pods.
func (i *Installation) Remove() error {
	var errs []error
	paths := []string{filepath.Join(i.Networks, chainedFile), filepath.Join(i.Alone, aloneFile), filepath.Join(i.Binaries, Program)}
	for at, dir := range []string{i.Networks, i.Alone, i.Binaries} {
		if dir == "" {
			continue
		}
		if err := os.Remove(paths[at]); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// plugin is the plugin in the list of a network.
func (i *Installation) plugin() map[string]any {
	conf := map[string]any{"type": Program, "capabilities": map[string]bool{"io.kubernetes.cri.pod-annotations": true, "dns": true}}
	if i.HostConfig != "" {
		conf["config"] = i.HostConfig
	}
	if len(i.Namespaces) > 0 {
		conf["namespaces"] = i.Namespaces
	}
	return conf
}

// chained returns the cluster's network with the plugin as the last of its list.
func (i *Installation) chained() (map[string]any, error) {
	path, err := clusterNetwork(i.Networks)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list map[string]any
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	plugins, isList := list["plugins"].([]any)
	if !isList { // a network of one plugin
		single := list
		list = map[string]any{"cniVersion": single["cniVersion"], "name": single["name"]}
		plugins = []any{single}
	}
	plugins = slices.DeleteFunc(plugins, func(p any) bool {
		conf, _ := p.(map[string]any)
		return conf["type"] == Program
	})
	if name, _ := list["name"].(string); name == "" || len(plugins) == 0 {
		return nil, fmt.Errorf("%s is not a network: it has no name or no plugins", path)
	}
	list["plugins"] = append(plugins, any(i.plugin()))
	list["disableCheck"] = true // CHECK of the others would not find the interface that ADD removes
	return list, nil
}

// clusterNetwork returns the file of the network that the runtime would use without ours.
func clusterNetwork(dir string) (string, error) {
	entries, err := os.ReadDir(dir) // sorted, as by runtimes
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		name := entry.Name()
		if name != chainedFile && !entry.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) && !strings.HasPrefix(name, ".") {
			return filepath.Join(dir, name), nil
		}
	}
	return "", fmt.Errorf("%s has no network of the cluster yet: install that first, or only for a runtime class, with --alone", dir)
}

// writeNetwork replaces the file of a network.
func writeNetwork(path string, list map[string]any) error {
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(path, 0o644, func(f *os.File) error { _, err := f.Write(append(text, '\n')); return err })
}

// copyFile replaces a file by a copy of another.
func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return replaceFile(to, mode, func(f *os.File) error { _, err := io.Copy(f, in); return err })
}

// replaceFile replaces a file as a whole, so that a runtime never reads or runs a part of it. Its name while it is written has no
// extension that runtimes look for.
func replaceFile(path string, mode os.FileMode, write func(*os.File) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".boxgate-*.new")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after the rename it has no effect
	err = errors.Join(f.Chmod(mode), write(f), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
