// Package config reads the configuration of the gateway: one strict YAML file, the environment and the defaults. [Load]
// reports all mistakes, each with its key and the remedy. It has no side effects.
package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"boxgate/launcher/oci"
	"boxgate/llm"
	"boxgate/policy/name"
)

// Config is the configuration file. Every key has a default, and most can be set by an environment variable: BOXGATE_
// and the key's path in capitals (BOXGATE_DNS_UPSTREAMS). docs/configuration.md explains each key.
type Config struct {
	StateDir   string     `yaml:"state_dir"`
	Store      Store      `yaml:"store"`
	Admin      Admin      `yaml:"admin"`
	Network    Network    `yaml:"network"`
	DNS        DNS        `yaml:"dns"`
	Proxy      Proxy      `yaml:"proxy"`
	Limits     Limits     `yaml:"limits"`
	Quotas     Quotas     `yaml:"quotas"`
	Prices     Prices     `yaml:"prices,omitempty"`
	Meters     llm.Meters `yaml:"meters,omitempty"`
	Ingress    Ingress    `yaml:"ingress"`
	Remote     Remote     `yaml:"remote"`
	SSH        SSH        `yaml:"ssh"`
	E2B        E2B        `yaml:"e2b"`
	Launcher   Launcher   `yaml:"launcher"`
	Policy     Policies   `yaml:"policy"`
	Secrets    Secrets    `yaml:"secrets,omitempty"`
	Approvals  Approvals  `yaml:"approvals"`
	Attach     Attach     `yaml:"attach,omitempty"`
	Kubernetes Kubernetes `yaml:"kubernetes"`
	Fleet      Fleet      `yaml:"fleet"`
	Snapshots  Snapshots  `yaml:"snapshots"`
	Metrics    Metrics    `yaml:"metrics"`
	Log        Log        `yaml:"log"`
	// Drain is how long a replaced process lets open connections continue.
	Drain time.Duration `yaml:"drain"`
}

// Store configures the storage of state.
type Store struct {
	Kind string `yaml:"kind"`
}

// Admin configures the listeners of the admin API, and the host names that it accepts.
type Admin struct {
	Socket string    `yaml:"socket"`
	Group  string    `yaml:"group"` // may use the socket without an API key; empty: root alone opens it, with a key
	Listen string    `yaml:"listen"`
	UI     bool      `yaml:"ui"` // the dashboard on listen
	TLS    AdminTLS  `yaml:"tls"`
	OIDC   AdminOIDC `yaml:"oidc"`
	Hosts  []string  `yaml:"hosts"`
	Audit  Bounds    `yaml:"audit"`
	// Silence is how long a response may be silent before something is sent that its reader ignores.
	Silence time.Duration `yaml:"silence"`
}

// Network has the address pools of the boxes, the operator's exemptions from the protected ranges, and the source
// addresses that boxes can be given.
type Network struct {
	PoolV4          string   `yaml:"pool_v4"`
	PoolV6          string   `yaml:"pool_v6"`
	ProtectedExempt []string `yaml:"protected_exempt"`
	ForwardExempt   []string `yaml:"forward_exempt"`
	Sources         []string `yaml:"sources"`
	// Services are hosts and boxes that policies may list by name.
	Services Services `yaml:"services,omitempty"`
	Cluster  Cluster  `yaml:"cluster,omitempty"`
}

// DNS has the upstream DNS servers.
type DNS struct {
	Upstreams []string `yaml:"upstreams"`
	// MinGrant is how long a box may at least use an address that it received for a name.
	MinGrant time.Duration `yaml:"min_grant"`
}

// Proxy configures the handling of egress connections.
type Proxy struct {
	UpstreamCAFiles []string `yaml:"upstream_ca_files"`
	Upstream        Upstream `yaml:"upstream"`
	Deny            string   `yaml:"deny"`
	// TokenIssuer is the iss claim of the tokens that identify the box of a forwarded request.
	TokenIssuer string `yaml:"token_issuer"`
	// IdleTimeout closes idle tunnels.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
}

// Ingress configures the public URLs.
type Ingress struct {
	HTTPS  string `yaml:"https"`
	HTTP   string `yaml:"http"`
	Domain string `yaml:"domain"`
	// Names is the form of the host names of public URLs: see [Ingress.HostName].
	Names       string `yaml:"names"`
	TLS         TLS    `yaml:"tls"`
	RequireAuth bool   `yaml:"require_auth"`
	// PublicPorts permits sharing all ports of a box without a token.
	PublicPorts bool `yaml:"public_ports"`
	// TokenHeaders are fields in which visitors may send a token instead of in Authorization. Boxes never get them.
	TokenHeaders []string `yaml:"token_headers"`
	// ProxyProtocol lists the load balancers whose PROXY headers identify the visitor.
	ProxyProtocol []string `yaml:"proxy_protocol"`
	// ForwardFields are header fields with a visitor's identity that are passed on to boxes, although such fields are
	// normally removed.
	ForwardFields []string `yaml:"forward_fields"`
	// Domains list which API keys may use which domains for URLs without proving control of them.
	Domains Domains `yaml:"domains"`
	// SessionTime is how long a browser stays signed in.
	SessionTime time.Duration `yaml:"session_time"`
	OIDC        OIDC          `yaml:"oidc"`
	HSTS        HSTS          `yaml:"hsts"`
	Limits      URLLimits     `yaml:"limits"`
}

// HSTS configures the Strict-Transport-Security header of public URLs.
type HSTS struct {
	MaxAge            time.Duration `yaml:"max_age"`
	IncludeSubdomains bool          `yaml:"include_subdomains"`
}

// TLS configures the source of the certificates of public URLs.
type TLS struct {
	Mode string `yaml:"mode"`
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	ACME ACME   `yaml:"acme"`
}

// Launcher configures how boxes are created on this host.
type Launcher struct {
	// Enabled is false on a host that only attaches sandboxes of others.
	Enabled bool              `yaml:"enabled"`
	Runtime string            `yaml:"runtime"`
	Images  map[string]string `yaml:"images"`
	// Agents are versions of programs in the image debian-agents, by agent.
	Agents      map[string]string `yaml:"agents"`
	ImageDir    string            `yaml:"image_dir"`
	RunDir      string            `yaml:"run_dir"`
	IdleTimeout time.Duration     `yaml:"idle_timeout"`
	// MaxTTL is the longest life of boxes of keys other than admin keys, which then all have an end; 0: boxes need no end.
	MaxTTL time.Duration `yaml:"max_ttl"`
	// MaxPaused is how long a box that was paused at its end is kept; 0: until it is deleted by a call.
	MaxPaused time.Duration `yaml:"max_paused"`
	Disk      Disk          `yaml:"disk"`
	// Reserve is the space that boxes, snapshots, images and the history leave free on the disk of the state directory.
	Reserve Size `yaml:"reserve"`
	IO      IO   `yaml:"io"`
	// Root lets set-user-ID programs of boxes become their root.
	Root bool `yaml:"root"`
}

// Metrics configures the listener for Prometheus.
type Metrics struct {
	Listen string `yaml:"listen"`
	PerBox PerBox `yaml:"per_box"`
	// OTLP is a collector that receives the same metrics.
	OTLP MetricsOTLP `yaml:"otlp"`
}

// PerBox configures metrics of single boxes.
type PerBox struct {
	Enabled bool `yaml:"enabled"`
	Max     int  `yaml:"max"`
}

// MaxBoxMetrics is the maximum number of boxes with metrics: each costs a monitoring system some twenty series for its
// whole retention time.
const MaxBoxMetrics = 10_000

// Log configures the gateway's log on standard error.
type Log struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
	// History bounds the decisions kept on disk.
	History Bounds `yaml:"history"`
	// Observations bounds the sums of the traffic of boxes.
	Observations Bounds `yaml:"observations"`
	Export       Export `yaml:"export"`
}

// Default returns the configuration without file and environment.
func Default() Config {
	return Config{
		StateDir: "/var/lib/boxgate",
		Store:    Store{Kind: "bbolt"},
		Admin:    Admin{Socket: "/run/boxgate/admin.sock", Listen: "127.0.0.1:8600", UI: true, OIDC: AdminOIDC{Scopes: []string{"email"}, GroupsClaim: "groups"}, Audit: Bounds{Days: 365, Size: 256 << 20}, Silence: 15 * time.Second},
		Network:  Network{PoolV4: "10.200.0.0/16", PoolV6: "fd42:b0c5::/64"},
		Proxy:    Proxy{Deny: "alert", IdleTimeout: 24 * time.Hour},
		Limits:   DefaultLimits(),
		Quotas:   DefaultQuotas(),
		Ingress: Ingress{
			HTTPS: ":443", HTTP: ":80", Domain: "preview.localhost", Names: namesFlat, TLS: TLS{Mode: "internal", ACME: defaultACME()},
			SessionTime: 12 * time.Hour, OIDC: defaultOIDC(), HSTS: HSTS{MaxAge: 8760 * time.Hour}, Limits: DefaultURLLimits(),
		},
		Launcher: Launcher{
			Enabled: true, Runtime: oci.Default, Images: map[string]string{"default": "debian"}, IdleTimeout: 30 * time.Minute, MaxPaused: 30 * 24 * time.Hour, Disk: defaultDisk(), Reserve: 1 << 30,
		},
		Policy:     defaultPolicies(),
		Kubernetes: defaultKubernetes(),
		Fleet:      Fleet{Placement: PlacementHere},
		Metrics:    Metrics{Listen: "127.0.0.1:9600", PerBox: PerBox{Max: 100}, OTLP: defaultMetricsOTLP()},
		Log:        Log{Level: "info", Format: "auto", History: Bounds{Days: 7, Size: 256 << 20}, Observations: Bounds{Days: 7, Size: 64 << 20}, Export: defaultExport()},
		Drain:      5 * time.Minute,
	}
}

// DefaultFile is the configuration of a packaged install. Commands read it unless another file is given.
const DefaultFile = "/etc/boxgate/boxgate.yaml"

// Load reads the file, unless path is empty, then the environment, and validates the result. It reports all mistakes.
func Load(path string, environ []string) (Config, error) {
	text, err := ReadFile(path)
	if err != nil {
		return Default(), err
	}
	return Parse(path, text, environ)
}

// ReadFile returns the text of the configuration file, empty if path is empty. As root, it refuses a file that another
// user owns or can write to: the configuration names programs to run and files to read with root's privileges.
func ReadFile(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	var text []byte
	if err == nil {
		defer f.Close()
		if err := checkFileOwner(f); err != nil {
			return nil, fmt.Errorf("configuration %s: %w", path, err)
		}
		text, err = io.ReadAll(f)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w; name an existing file with --config", readError(err))
	}
	return text, nil
}

// checkFileOwner returns an error if the gateway runs as root and another user can change the file.
func checkFileOwner(f *os.File) error {
	info, err := f.Stat()
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("its owner is not known")
	case info.Mode()&os.ModeCharDevice != 0 && stat.Rdev == unix.Mkdev(1, 3):
		return nil // /dev/null, which is empty whoever owns it
	case stat.Uid != 0:
		return fmt.Errorf("it belongs to user %d, who would decide what root runs and reads: give it to root (chown root %s), or use a copy owned by root", stat.Uid, f.Name())
	case info.Mode().IsRegular() && info.Mode()&0o022 != 0:
		return fmt.Errorf("users other than root can change it (mode %04o), and so what root runs and reads: run chmod go-w %s", info.Mode().Perm(), f.Name())
	}
	return nil
}

// Parse is [Load] for a file that has been read already.
func Parse(path string, data []byte, environ []string) (Config, error) {
	cfg := Default()
	var errs []error
	if path != "" {
		cfg.Secrets.File = path
		if err := parseStrict(data, &cfg); err != nil {
			errs = append(errs, fmt.Errorf("configuration %s: %w", path, err))
		}
	}
	errs = append(errs, applyEnvironment(&cfg, environ), cfg.validate())
	return cfg, errors.Join(errs...)
}

// readError describes why a file cannot be read.
func readError(err error) error {
	if failed, ok := errors.AsType[*os.PathError](err); ok && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %w", failed.Path, failed.Err)
	} else if ok {
		return fmt.Errorf("there is no file %s", failed.Path)
	}
	return err
}

// EnvironmentPrefix starts the name of every variable that sets a configuration key.
const EnvironmentPrefix = "BOXGATE_"

// notConfiguration are variables with the prefix that are not configuration keys.
var notConfiguration = map[string]bool{
	APIKeyVariable: true, AdminVariable: true, PassphraseVariable: true, NewPassphraseVariable: true, FileVariable: true,
}

// applyEnvironment sets the keys named by BOXGATE_* variables; an unknown variable is an error.
func applyEnvironment(cfg *Config, environ []string) error {
	fields := map[string]reflect.Value{}
	collectFields(reflect.ValueOf(cfg).Elem(), EnvironmentPrefix, fields)
	var errs []error
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, EnvironmentPrefix) || notConfiguration[name] {
			continue
		}
		if strings.HasPrefix(name, secretsPrefix) {
			errs = append(errs, cfg.Secrets.setFromEnvironment(name, value))
			continue
		}
		field, ok := fields[name]
		if !ok {
			errs = append(errs, fmt.Errorf("unknown variable %s; did you mean %s?", name, Nearest(name, slices.Collect(maps.Keys(fields)))))
			continue
		}
		if err := setFromText(field, value); err != nil {
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
		case v.Field(i).Type() == reflect.TypeFor[Secrets]():
			continue // parses its own variables
		}
		out[name] = v.Field(i)
	}
}

// setFromText parses a variable's value: lists are separated by commas, maps are key=value pairs separated by commas.
func setFromText(field reflect.Value, value string) error {
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
	case *llm.Money:
		return target.UnmarshalText([]byte(value))
	case *Size:
		return target.UnmarshalText([]byte(value))
	case *PolicyDocument:
		return target.UnmarshalText([]byte(value))
	case *[]string:
		*target = splitList(value)
	case *Issuers:
		*target = nil
		for _, directory := range splitList(value) {
			*target = append(*target, Issuer{Directory: directory})
		}
	case *Domains, *AttachRules, *Services, *Prices:
		return errors.New("set it in the configuration file: it cannot be set by a variable")
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
func (c *Config) validate() error {
	var errs []error
	fail := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	oneOf := func(key, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			fail(key, "%q is not a valid value; use %s", value, strings.Join(allowed, " or "))
		}
	}
	oneOf("store.kind", c.Store.Kind, "bbolt")
	oneOf("proxy.deny", c.Proxy.Deny, "alert", "page")
	if c.Proxy.IdleTimeout < time.Second || c.Proxy.IdleTimeout > 8760*time.Hour {
		fail("proxy.idle_timeout", "%v is out of range; use 1s to 8760h", c.Proxy.IdleTimeout)
	}
	oneOf("ingress.tls.mode", c.Ingress.TLS.Mode, "internal", "acme", "files")
	oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", c.Log.Format, "auto", "json", "console")
	if c.StateDir == "" || c.StateDir[0] != '/' {
		fail("state_dir", "%q is not an absolute path", c.StateDir)
	}
	if c.Ingress.TLS.Mode == "files" && (c.Ingress.TLS.Cert == "" || c.Ingress.TLS.Key == "") {
		fail("ingress.tls", "mode files needs both cert and key")
	}
	c.Launcher.check(fail)
	c.Attach.check(fail)
	c.Remote.check(fail)
	c.E2B.check(c.Ingress, fail)
	c.Kubernetes.check(fail)
	c.Fleet.check(fail)
	c.Snapshots.check(fail, c.Secrets)
	if r := c.Launcher.Reserve; r < MinReserve || r > 1<<44 {
		fail("launcher.reserve", "%v is out of range; use %v to 16TiB", r, Size(MinReserve))
	}
	c.checkSections(fail)
	checkPool(fail, "network.pool_v4", c.Network.PoolV4, netip.Addr.Is4, 8, 28)
	checkPool(fail, "network.pool_v6", c.Network.PoolV6, netip.Addr.Is6, 32, 124)
	checkCIDRs(fail, "network.protected_exempt", c.Network.ProtectedExempt)
	checkCIDRs(fail, "network.forward_exempt", c.Network.ForwardExempt)
	c.Network.checkSources(fail)
	c.checkServices(fail)
	c.Network.checkCluster(fail)
	if c.Metrics.PerBox.Max < 1 || c.Metrics.PerBox.Max > MaxBoxMetrics {
		fail("metrics.per_box.max", "%d is out of range; use 1 to %d", c.Metrics.PerBox.Max, MaxBoxMetrics)
	}
	c.Metrics.OTLP.check(fail, c.Secrets)
	c.checkLimits(fail)
	c.Policy.check(fail)
	errs = append(errs, c.Secrets.validate())
	checkListeners(fail, map[string]string{
		"admin.listen": c.Admin.Listen, "ingress.https": c.Ingress.HTTPS, "ingress.http": c.Ingress.HTTP,
		"metrics.listen": c.Metrics.Listen, "remote.listen": c.Remote.Listen, "ssh.listen": c.SSH.Listen,
	})
	return errors.Join(errs...)
}

func checkCIDRs(fail func(key, format string, args ...any), key string, list []string) {
	for _, s := range list {
		if p, err := netip.ParsePrefix(s); err != nil || p != p.Masked() {
			fail(key, "%q is not a masked CIDR such as 192.0.2.0/24", s)
		}
	}
}

// checkPool requires a masked prefix of the right family that fits the gateway, the sink and some boxes.
func checkPool(fail func(key, format string, args ...any), key, value string, family func(netip.Addr) bool, minBits, maxBits int) {
	p, err := netip.ParsePrefix(value)
	switch {
	case err != nil || !family(p.Addr()):
		fail(key, "%q is not a CIDR of the right family", value)
	case p != p.Masked():
		fail(key, "%q has host bits set; use %q", value, p.Masked())
	case p.Bits() < minBits:
		fail(key, "%q is too large: it would cover addresses of others; use /%d or smaller", value, minBits)
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

// Variables without a key in the configuration file.
const (
	FileVariable   = "BOXGATE_CONFIG"  // the configuration file
	AdminVariable  = "BOXGATE_ADMIN"   // for clients: the admin API, a socket or a URL
	APIKeyVariable = "BOXGATE_API_KEY" // for clients
	// The passphrase of the store, and the next one during a change.
	PassphraseVariable    = "BOXGATE_STORE_PASSPHRASE"
	NewPassphraseVariable = "BOXGATE_STORE_NEW_PASSPHRASE"
)

// checkSections finds well-formed values that no gateway could run with.
func (c *Config) checkSections(fail func(key, format string, args ...any)) {
	if _, err := name.Parse(c.Ingress.Domain); err != nil {
		fail("ingress.domain", "%q is not a domain name: %v", c.Ingress.Domain, err)
	}
	c.Ingress.checkNames(fail)
	for _, s := range c.Ingress.ProxyProtocol {
		if p, err := netip.ParsePrefix(s); err != nil || p != p.Masked() || p.Bits() == 0 {
			fail("ingress.proxy_protocol", "%q is not a masked CIDR of load balancers such as 192.0.2.0/24", s)
		}
	}
	c.Ingress.checkForwardFields(fail)
	c.Ingress.checkTokenHeaders(fail)
	c.Ingress.Domains.check(fail)
	c.Ingress.HSTS.check(fail)
	if c.Ingress.TLS.Mode == "acme" {
		c.Ingress.TLS.ACME.check(fail, c.Ingress.Domain)
	}
	if t := c.Ingress.SessionTime; t < time.Minute || t > 720*time.Hour {
		fail("ingress.session_time", "%v is out of range; use 1m to 720h", t)
	}
	c.Ingress.OIDC.check(fail, c.Secrets)
	c.Proxy.Upstream.check(fail, c.Secrets)
	if c.Ingress.OIDC.Issuer != "" && c.Ingress.HTTPS == "" {
		fail("ingress.oidc", "needs ingress.https")
	}
	c.Ingress.Limits.check(fail)
	c.Approvals.check(c.Policy.Ceiling, c.Secrets, fail)
	for key, path := range map[string]string{
		"admin.socket": c.Admin.Socket, "launcher.run_dir": c.Launcher.RunDir, "launcher.image_dir": c.Launcher.ImageDir,
	} {
		if path != "" && !filepath.IsAbs(path) {
			fail(key, "%q is not an absolute path", path)
		}
	}
	for key, path := range map[string]string{"state_dir": c.StateDir, "launcher.run_dir": c.Launcher.RunDir} {
		if path != "" && slices.Contains(systemDirs, filepath.Clean(path)) {
			fail(key, "%s is shared with other programs; use a directory only for the gateway", path)
		}
	}
	if c.Admin.Group != "" && c.Admin.Socket == "" {
		fail("admin.group", "needs admin.socket, which its members use")
	}
	c.Admin.check(fail, c.Secrets)
	c.Log.History.check("log.history", true, fail)
	c.Log.Observations.check("log.observations", true, fail)
	c.Log.Export.check(fail, c.Secrets)
	if c.Admin.Socket == "" && c.Admin.Listen == "" {
		fail("admin", "neither socket nor listen is set, so the admin API would be unreachable; set one of them")
	}
	if c.Drain < 0 || c.Drain > 24*time.Hour {
		fail("drain", "%v is out of range; use 0s to 24h", c.Drain)
	}
	if c.DNS.MinGrant < 0 || c.DNS.MinGrant > 24*time.Hour {
		fail("dns.min_grant", "%v is out of range; use 0s to 24h", c.DNS.MinGrant)
	}
	c.Launcher.checkTimes(fail)
}

// checkTimes checks the times of boxes.
func (l Launcher) checkTimes(fail func(key, format string, args ...any)) {
	if l.IdleTimeout < 0 {
		fail("launcher.idle_timeout", "%v is negative; use 0 or more", l.IdleTimeout)
	}
	if t := l.MaxTTL; t != 0 && (t < time.Minute || t > 72*time.Hour) {
		fail("launcher.max_ttl", "%v is out of range; use 1m to 72h, or 0 for boxes that may be without an end", t)
	}
	if t := l.MaxPaused; t != 0 && (t < time.Minute || t > 8760*time.Hour) {
		fail("launcher.max_paused", "%v is out of range; use 1m to 8760h, or 0 for boxes that are kept until a call deletes them", t)
	}
}

// systemDirs are directories of the system, which the gateway cannot have for itself.
var systemDirs = []string{
	"/", "/bin", "/boot", "/dev", "/dev/shm", "/etc", "/home", "/lib", "/media", "/mnt", "/opt", "/proc", "/root", "/run", "/run/lock",
	"/run/user", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/local", "/var", "/var/cache", "/var/lib", "/var/lock", "/var/log",
	"/var/run", "/var/tmp",
}

// check finds values that browsers would ignore, or that they would remember for too long.
func (h HSTS) check(fail func(key, format string, args ...any)) {
	if h.MaxAge < 0 || h.MaxAge > 17520*time.Hour || h.MaxAge%time.Second != 0 {
		fail("ingress.hsts.max_age", "%v is out of range; use whole seconds up to 17520h, or 0s for no Strict-Transport-Security", h.MaxAge)
	}
	if h.IncludeSubdomains && h.MaxAge == 0 {
		fail("ingress.hsts.include_subdomains", "has no effect without max_age; set ingress.hsts.max_age")
	}
}

// ImageDir is the directory of unpacked images.
func ImageDir(cfg Config) string {
	if cfg.Launcher.ImageDir != "" {
		return cfg.Launcher.ImageDir
	}
	return filepath.Join(cfg.StateDir, "images")
}

// Difference is a key with different values in two configurations, as YAML. Values of secrets are not shown.
type Difference struct {
	Key string `json:"key"`
	Old string `json:"old"`
	New string `json:"new"`
}

// String returns the difference in one line.
func (d Difference) String() string { return fmt.Sprintf("%s: %s -> %s", d.Key, d.Old, d.New) }

// Diff returns the differences between two configurations, sorted by key.
func Diff(old, new Config) ([]Difference, error) {
	was, is := map[string]string{}, map[string]string{}
	for _, side := range []struct {
		cfg Config
		to  map[string]string
	}{{old, was}, {new, is}} {
		data, err := yaml.Marshal(side.cfg)
		if err != nil {
			return nil, err
		}
		var tree map[string]any
		if err := yaml.Unmarshal(data, &tree); err != nil {
			return nil, err
		}
		flatten(tree, "", side.to)
	}
	keys := slices.Collect(maps.Keys(was))
	for k := range is {
		if _, both := was[k]; !both {
			keys = append(keys, k)
		}
	}
	for name, source := range new.Secrets.Sources {
		if k := "secrets." + name + ".value"; !source.Value.Equal(old.Secrets.Sources[name].Value) {
			keys, was[k], is[k] = append(keys, k), "old", "new"
		}
	}
	slices.Sort(keys)
	out := []Difference{}
	for _, k := range slices.Compact(keys) {
		if was[k] != is[k] {
			out = append(out, Difference{k, displayValue(k, was[k]), displayValue(k, is[k])})
		}
	}
	return out, nil
}

// flatten fills out with every value that is not a map, by its path.
func flatten(tree map[string]any, prefix string, out map[string]string) {
	for k, v := range tree {
		if below, ok := v.(map[string]any); ok {
			flatten(below, prefix+k+".", out)
			continue
		}
		data, err := yaml.Marshal(v)
		if err != nil {
			continue
		}
		out[prefix+k] = strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", " ")
	}
}

// displayValue returns a value for display.
func displayValue(key, value string) string {
	switch {
	case value == "":
		return "(none)"
	case strings.HasPrefix(key, "secrets."):
		return "(not shown)"
	}
	return value
}
