// Package preset has policies for well-known services by name: the hosts and ports of GitHub, package registries and APIs of
// models. They are files of this package (data/NAME.json). A change of the hosts is a new version of the preset. Policies that
// were made from an older version keep their hosts.
package preset

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"boxgate/policy"
	"boxgate/policy/document"
)

//go:embed data/*.json
var files embed.FS

// Preset is a named list of hosts.
type Preset struct {
	Name           string   `json:"name"`
	Version        int      `json:"version"` // incremented with each change of AllowedDomains
	About          string   `json:"about"`
	Source         string   `json:"source"` // where the service says which hosts it needs
	AllowedDomains []string `json:"allowed_domains"`
}

// Names returns the names of all presets, sorted.
func Names() []string {
	entries, _ := files.ReadDir("data") // embedded: it is there
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".json"))
	}
	slices.Sort(names)
	return names
}

// Find returns a preset by its name. The error lists the presets.
func Find(name string) (Preset, error) {
	if !slices.Contains(Names(), name) {
		hint := ""
		if near := Nearest(name); near != "" {
			hint = " (did you mean " + near + "?)"
		}
		return Preset{}, fmt.Errorf("there is no preset %q%s; the presets are %s", name, hint, strings.Join(Names(), ", "))
	}
	data, err := files.ReadFile("data/" + name + ".json")
	if err != nil {
		return Preset{}, err
	}
	p := Preset{}
	err = json.Unmarshal(data, &p)
	p.Name = name
	return p, err
}

// Nearest returns the preset whose name resembles a word, or "". Words of three letters resemble too many.
func Nearest(word string) string {
	if len(word) <= 3 {
		return ""
	}
	known := map[string]bool{}
	for _, name := range Names() {
		known[name] = true
	}
	return document.Nearest(word, known)
}

// Hosts returns the hosts of presets, whose names are separated by commas, each host once.
func Hosts(names string) ([]string, error) {
	var hosts []string
	for _, name := range strings.Split(names, ",") {
		p, err := Find(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		for _, host := range p.AllowedDomains {
			if !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
		}
	}
	return hosts, nil
}

// Policy returns the policy that allows only the hosts of presets, whose names are separated by commas.
func Policy(names string) (policy.Spec, error) {
	hosts, err := Hosts(names)
	return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: hosts}, err
}
