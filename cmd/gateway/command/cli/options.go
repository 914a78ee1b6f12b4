// Package cli has what the commands of the gateway share: the global flags, exit statuses and arguments, requests to
// the admin API, and output.
package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/config"
)

// Options are the flags of every command.
type Options struct {
	ConfigFile string // as named; File is the one to read
	Admin      string // a socket path or a URL; empty for the configuration's
	JSON       bool
}

// Register adds the flags to those of root. Their defaults come from the environment.
func (o *Options) Register(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&o.ConfigFile, "config", os.Getenv(config.FileVariable), "configuration file (default: "+config.DefaultFile+", if it exists)")
	f.BoolVar(&o.JSON, "json", false, "print JSON")
	f.StringVar(&o.Admin, "admin", os.Getenv(config.AdminVariable), "admin API: a socket path or a URL (default: the configuration's socket)")
}

// File returns the configuration file: the one named, else that of a packaged install if it exists, else "".
func (o *Options) File() string {
	if o.ConfigFile != "" {
		return o.ConfigFile
	}
	if _, err := os.Lstat(config.DefaultFile); errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return ""
	}
	return config.DefaultFile // reading it says why it cannot be looked at
}

// Load reads the configuration that the flags and the environment give.
func (o *Options) Load() (config.Config, error) { return config.Load(o.File(), os.Environ()) }

// loadForClient is Load, but does without a file that is not named if the address and the key are given: a user with a key
// may be barred from the host's configuration.
func (o *Options) loadForClient() (config.Config, error) {
	if o.ConfigFile == "" && o.Admin != "" && os.Getenv(config.APIKeyVariable) != "" {
		return config.Load("", os.Environ())
	}
	return o.Load()
}

// Client connects to the admin API of the running gateway: at the address of --admin or BOXGATE_ADMIN, else the socket
// of the configuration; with the key of BOXGATE_API_KEY, else the one written at the first start.
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
	if err != nil {
		return nil, noKey(err)
	}
	return api.NewClient(o.address(cfg), key), nil
}

// noKey says how to get at a key that could not be read.
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
