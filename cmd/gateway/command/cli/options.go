// Package cli contains the common parts of the commands of the gateway: the global flags, exit statuses and arguments,
// requests to the admin API, and output.
package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/config"
)

// Options are the flags of every command.
type Options struct {
	ConfigFile string // as given; File returns the one to read
	Admin      string // a socket path or a URL; empty for that of the configuration
	JSON       bool
}

// Register adds the flags to root. Their defaults come from the environment.
func (o *Options) Register(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&o.ConfigFile, "config", os.Getenv(config.FileVariable), "configuration file (default: "+config.DefaultFile+", if it exists)")
	f.BoolVar(&o.JSON, "json", false, "print JSON")
	f.StringVar(&o.Admin, "admin", os.Getenv(config.AdminVariable), "admin API: a socket path or a URL (default: the configuration's socket)")
}

// File returns the configuration file: the one given, or that of a packaged install if it exists, or "".
func (o *Options) File() string {
	if o.ConfigFile != "" {
		return o.ConfigFile
	}
	if _, err := os.Lstat(config.DefaultFile); errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return ""
	}
	return config.DefaultFile // an inaccessible file is reported when it is read
}

// Load reads the configuration according to the flags and the environment.
func (o *Options) Load() (config.Config, error) { return config.Load(o.File(), os.Environ()) }

// loadForClient is Load, except that it skips the default file if address and key are given, or if the user may not read it: one
// with a key or in admin.group may not be allowed to read the host's configuration.
func (o *Options) loadForClient() (config.Config, error) {
	if o.ConfigFile == "" && o.Admin != "" && os.Getenv(config.APIKeyVariable) != "" {
		return config.Load("", os.Environ())
	}
	cfg, err := o.Load()
	if o.ConfigFile == "" && errors.Is(err, os.ErrPermission) {
		return config.Load("", os.Environ())
	}
	return cfg, err
}

// Client returns a client of the running gateway's admin API. The address is that of --admin or BOXGATE_ADMIN, or else
// the configured socket. The key is that of BOXGATE_API_KEY, or else the one written at the gateway's first start. Users
// who cannot read that, but may open the socket, have no key: members of admin.group do not need it.
func (o *Options) Client() (*api.Client, error) {
	cfg, err := o.loadForClient()
	if err != nil {
		return nil, err
	}
	key, err := apiKey(cfg)
	if errors.Is(err, os.ErrNotExist) {
		if absent := api.NewClient(o.address(cfg), "").Listens(); absent != nil {
			return nil, absent // there is no key before the first start
		}
	}
	if (errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist)) && os.Geteuid() != 0 && opensSocket(o.address(cfg)) {
		return api.NewClient(o.address(cfg), ""), nil
	}
	if err != nil {
		return nil, noKey(err)
	}
	return api.NewClient(o.address(cfg), key), nil
}

// opensSocket reports whether this user may open a Unix socket.
func opensSocket(path string) bool {
	return filepath.IsAbs(path) && unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) == nil
}

// noKey extends the error of an unreadable key by how to get access.
func noKey(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("no API key: %w; run this with sudo, or set %s", FileError(err), config.APIKeyVariable)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("no API key: %w, but the gateway runs: name its configuration with --config, or set %s", FileError(err), config.APIKeyVariable)
	}
	return fmt.Errorf("no API key: %w; mend that, or set %s", FileError(err), config.APIKeyVariable)
}

func (o *Options) address(cfg config.Config) string {
	switch {
	case o.Admin != "":
		return o.Admin
	case cfg.Admin.Socket != "":
		return cfg.Admin.Socket
	default:
		return "http://" + cfg.Admin.Listen
	}
}

func apiKey(cfg config.Config) (string, error) {
	if key := os.Getenv(config.APIKeyVariable); key != "" {
		return key, nil
	}
	data, err := os.ReadFile(filepath.Join(cfg.StateDir, "api-key"))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}
