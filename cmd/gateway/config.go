package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// config is the configuration file. Every key has a default, and every key can be set by environment as BOXGATE_ and
// its path in capitals (BOXGATE_DNS_UPSTREAMS); docs/configuration.md explains each.
type config struct {
	StateDir string         `yaml:"state_dir"`
	Store    storeConfig    `yaml:"store"`
	Admin    adminConfig    `yaml:"admin"`
	Network  networkConfig  `yaml:"network"`
	DNS      dnsConfig      `yaml:"dns"`
	Proxy    proxyConfig    `yaml:"proxy"`
	Limits   limitsConfig   `yaml:"limits"`
	Ingress  ingressConfig  `yaml:"ingress"`
	Launcher launcherConfig `yaml:"launcher"`
	Secrets  secretsConfig  `yaml:"secrets,omitempty"`
	Metrics  metricsConfig  `yaml:"metrics"`
	Log      logConfig      `yaml:"log"`
}

type storeConfig struct {
	Kind string `yaml:"kind"`
}

type adminConfig struct {
	Socket string   `yaml:"socket"`
	Listen string   `yaml:"listen"`
	Hosts  []string `yaml:"hosts"`
}

type networkConfig struct {
	PoolV4          string   `yaml:"pool_v4"`
	PoolV6          string   `yaml:"pool_v6"`
	ProtectedExempt []string `yaml:"protected_exempt"`
}

type dnsConfig struct {
	Upstreams []string `yaml:"upstreams"`
}

type proxyConfig struct {
	UpstreamCAFiles []string `yaml:"upstream_ca_files"`
	Deny            string   `yaml:"deny"`
	// IdleTimeout ends tunnels, which no request bounds.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
}

type ingressConfig struct {
	HTTPS       string    `yaml:"https"`
	HTTP        string    `yaml:"http"`
	Domain      string    `yaml:"domain"`
	TLS         tlsConfig `yaml:"tls"`
	RequireAuth bool      `yaml:"require_auth"`
}

type tlsConfig struct {
	Mode string `yaml:"mode"`
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

type launcherConfig struct {
	Runtime     string            `yaml:"runtime"`
	Images      map[string]string `yaml:"images"`
	ImageDir    string            `yaml:"image_dir"`
	RunDir      string            `yaml:"run_dir"`
	IdleTimeout time.Duration     `yaml:"idle_timeout"`
}

type metricsConfig struct {
	Listen string `yaml:"listen"`
}

type logConfig struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

// defaultConfig returns the configuration of a gateway that was given none.
func defaultConfig() config {
	return config{
		StateDir: "/var/lib/boxgate",
		Store:    storeConfig{Kind: "bbolt"},
		Admin:    adminConfig{Socket: "/run/boxgate/admin.sock", Listen: "127.0.0.1:8600"},
		Network:  networkConfig{PoolV4: "10.200.0.0/16", PoolV6: "fd42:b0c5::/64"},
		Proxy:    proxyConfig{Deny: "alert", IdleTimeout: 24 * time.Hour},
		Limits:   defaultLimits(),
		Ingress: ingressConfig{
			HTTPS: ":443", HTTP: ":80", Domain: "preview.localhost", TLS: tlsConfig{Mode: "internal"},
		},
		Launcher: launcherConfig{
			Runtime: "runc", Images: map[string]string{"default": "debian"}, IdleTimeout: 30 * time.Minute,
		},
		Metrics: metricsConfig{Listen: "127.0.0.1:9600"},
		Log:     logConfig{Level: "info", Format: "json"},
	}
}

// loadConfig reads the file (none if path is empty), then the environment, and validates the result. It reports every
// mistake at once.
func loadConfig(path string, environ []string) (config, error) {
	cfg := defaultConfig()
	var errs []error
	if path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return cfg, fmt.Errorf("cannot read the configuration: %w; name an existing file with --config", err)
		}
		cfg.Secrets.file = path
		if err := parseConfig(data, &cfg); err != nil {
			errs = append(errs, fmt.Errorf("configuration %s: %w", path, err))
		}
	}
	errs = append(errs, applyEnvironment(&cfg, environ), cfg.validate())
	return cfg, errors.Join(errs...)
}

// parseConfig decodes YAML strictly onto cfg: an unknown key is an error that names the nearest known one.
func parseConfig(data []byte, cfg *config) error {
	var tree map[string]any
	if err := yaml.NewDecoder(bytes.NewReader(data)).Decode(&tree); err != nil && !errors.Is(err, io.EOF) {
		return yamlError(err)
	}
	unknown := errors.Join(unknownKeys(tree, reflect.TypeFor[config](), "")...)
	if len(tree) == 0 {
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(unknown == nil) // those that are known already do not keep the others from being read
	if err := dec.Decode(cfg); err != nil {
		return errors.Join(unknown, yamlError(err))
	}
	if unknown != nil {
		return unknown
	}
	if err := dec.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return errors.New("the file holds more than one YAML document; keep the first")
	}
	return nil
}

// yamlError puts the several lines of a YAML error into one.
func yamlError(err error) error {
	lines := strings.Fields(strings.ReplaceAll(err.Error(), "\n", " "))
	// The decoder quotes what stands after a '*', which may be a secret that somebody forgot to quote.
	if line, _, alias := strings.Cut(strings.Join(lines, " "), "unknown anchor"); alias {
		return errors.New(line + "a value that begins with '*' must stand in quotes")
	}
	return errors.New(strings.Join(lines, " "))
}

// unknownKeys returns an error for every key of tree that t has no field for.
func unknownKeys(tree map[string]any, t reflect.Type, prefix string) []error {
	known := map[string]reflect.Type{}
	for f := range t.Fields() {
		known[yamlKey(f)] = f.Type
	}
	var errs []error
	for key, value := range tree {
		field, ok := known[key]
		if !ok {
			errs = append(errs, fmt.Errorf("unknown key %q; did you mean %q?", prefix+key, prefix+nearest(key, known)))
			continue
		}
		if sub, isMap := value.(map[string]any); isMap && hasKeys(field) {
			errs = append(errs, unknownKeys(sub, field, prefix+key+".")...)
		}
	}
	return errs
}

// yamlKey is the key of a field.
func yamlKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return key
}

// hasKeys reports whether a field is a section whose keys are the fields of its type.
func hasKeys(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[secretsConfig]()
}

// nearestOf is [nearest] of a list.
func nearestOf(key string, list []string) string {
	known := map[string]reflect.Type{}
	for _, k := range list {
		known[k] = nil
	}
	return nearest(key, known)
}

// nearest returns the known key with the smallest edit distance to key.
func nearest(key string, known map[string]reflect.Type) string {
	best, bestDistance := "", 1<<30
	for k := range known {
		if d := editDistance(key, k); d < bestDistance || d == bestDistance && k < best {
			best, bestDistance = k, d
		}
	}
	return best
}

// editDistance is Levenshtein's.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// environmentPrefix starts the name of every variable that sets a configuration key.
const environmentPrefix = "BOXGATE_"

// notConfiguration are variables with the prefix that other commands read.
var notConfiguration = map[string]bool{
	"BOXGATE_API_KEY": true, "BOXGATE_ADMIN": true, passphraseVariable: true, newPassphraseVariable: true, "BOXGATE_CONFIG": true,
}

// applyEnvironment sets the keys that BOXGATE_* variables name; an unknown variable is an error.
func applyEnvironment(cfg *config, environ []string) error {
	fields := map[string]reflect.Value{}
	collectFields(reflect.ValueOf(cfg).Elem(), environmentPrefix, fields)
	var errs []error
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, environmentPrefix) || notConfiguration[name] {
			continue
		}
		if strings.HasPrefix(name, secretsPrefix) {
			errs = append(errs, cfg.Secrets.setFromEnvironment(name, value))
			continue
		}
		field, ok := fields[name]
		if !ok {
			errs = append(errs, fmt.Errorf("unknown variable %s; did you mean %s?", name, nearestOf(name, slices.Collect(maps.Keys(fields)))))
			continue
		}
		if err := setField(field, value); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %w", name, value, err))
		}
	}
	return errors.Join(errs...)
}

// collectFields fills out with every leaf of v, keyed by the name of its variable.
func collectFields(v reflect.Value, prefix string, out map[string]reflect.Value) {
	for i := range v.NumField() {
		name := prefix + strings.ToUpper(yamlKey(v.Type().Field(i)))
		switch {
		case hasKeys(v.Field(i).Type()):
			collectFields(v.Field(i), name+"_", out)
			continue
		case v.Field(i).Kind() == reflect.Struct:
			continue // it reads its variables itself
		}
		out[name] = v.Field(i)
	}
}

// setField parses a variable's value: lists are separated by commas, maps are key=value pairs separated by commas.
func setField(field reflect.Value, value string) error {
	switch target := field.Addr().Interface().(type) {
	case *string:
		*target = value
	case *int:
		n, err := strconv.Atoi(value)
		if err != nil {
			return errors.New("use a whole number")
		}
		*target = n
	case *bool:
		b, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("use true or false")
		}
		*target = b
	case *time.Duration:
		d, err := time.ParseDuration(value)
		if err != nil {
			return errors.New("use a duration such as 30m")
		}
		*target = d
	case *size:
		return target.UnmarshalText([]byte(value))
	case *[]string:
		*target = splitList(value)
	case *map[string]string:
		m := map[string]string{}
		for _, pair := range splitList(value) {
			k, v, ok := strings.Cut(pair, "=")
			if !ok {
				return errors.New("use key=value pairs separated by commas")
			}
			m[k] = v
		}
		*target = m
	}
	return nil
}

func splitList(value string) []string {
	var out []string
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// validate returns every mistake in the values, each with its key and the remedy.
func (c *config) validate() error {
	var errs []error
	fail := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	oneOf := func(key, value string, allowed ...string) {
		for _, a := range allowed {
			if value == a {
				return
			}
		}
		fail(key, "%q is not known; use %s", value, strings.Join(allowed, " or "))
	}
	oneOf("store.kind", c.Store.Kind, "bbolt")
	oneOf("proxy.deny", c.Proxy.Deny, "alert", "page")
	if c.Proxy.IdleTimeout < time.Second || c.Proxy.IdleTimeout > 8760*time.Hour {
		fail("proxy.idle_timeout", "%v is out of range; use 1s to 8760h", c.Proxy.IdleTimeout)
	}
	oneOf("ingress.tls.mode", c.Ingress.TLS.Mode, "internal", "files")
	oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", c.Log.Format, "json", "console")
	if c.StateDir == "" || c.StateDir[0] != '/' {
		fail("state_dir", "%q is not an absolute path", c.StateDir)
	}
	if c.Ingress.TLS.Mode == "files" && (c.Ingress.TLS.Cert == "" || c.Ingress.TLS.Key == "") {
		fail("ingress.tls", "mode files needs both cert and key")
	}
	if c.Launcher.Images["default"] == "" {
		fail("launcher.images", `has no entry "default"`)
	}
	c.checkMore(fail)
	checkPool(fail, "network.pool_v4", c.Network.PoolV4, netip.Addr.Is4, 8, 28)
	checkPool(fail, "network.pool_v6", c.Network.PoolV6, netip.Addr.Is6, 32, 124)
	for _, s := range c.Network.ProtectedExempt {
		if p, err := netip.ParsePrefix(s); err != nil || p != p.Masked() {
			fail("network.protected_exempt", "%q is not a masked CIDR such as 192.0.2.0/24", s)
		}
	}
	c.Limits.check(fail)
	errs = append(errs, c.Secrets.validate())
	checkListeners(fail, map[string]string{
		"admin.listen": c.Admin.Listen, "ingress.https": c.Ingress.HTTPS, "ingress.http": c.Ingress.HTTP,
		"metrics.listen": c.Metrics.Listen,
	})
	return errors.Join(errs...)
}

// checkPool requires a masked prefix of the right family with room for the gateway, the sink and some boxes.
func checkPool(fail func(key, format string, args ...any), key, value string, family func(netip.Addr) bool, minBits, maxBits int) {
	p, err := netip.ParsePrefix(value)
	switch {
	case err != nil || !family(p.Addr()):
		fail(key, "%q is not a CIDR of the right family", value)
	case p != p.Masked():
		fail(key, "%q has host bits set; use %q", value, p.Masked())
	case p.Bits() < minBits:
		fail(key, "%q is too large: it would take addresses from everybody else; use /%d or smaller", value, minBits)
	case p.Bits() > maxBits:
		fail(key, "%q is too small; use /%d or larger", value, maxBits)
	}
}

// checkListeners requires host:port; an empty value turns a listener off.
func checkListeners(fail func(key, format string, args ...any), listeners map[string]string) {
	for key, value := range listeners {
		if value == "" {
			continue
		}
		if _, port, err := net.SplitHostPort(value); err != nil {
			fail(key, "%q is not host:port, such as 127.0.0.1:8600", value)
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			fail(key, "port %q is not a number from 0 to 65535", port)
		}
	}
}
