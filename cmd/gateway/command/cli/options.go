// Package cli contains the common parts of the commands of the gateway: the global flags, exit statuses and arguments,
// requests to the admin API, and output.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
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

	waiting *Progress              // nil before the first call of Waiting
	step    atomic.Pointer[string] // text of waiting
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
// who cannot read that, but may open the socket, have no key: members of admin.group do not need it. While [api.Client.Do] waits for
// an answer, a line on stderr shows it, unless --json is given.
func (o *Options) Client() (*api.Client, error) {
	client, err := o.QuietClient()
	if err == nil {
		client.OnWait(func() (end func()) { return o.Waiting("waiting for the gateway") })
	}
	return client, err
}

// Waiting shows on stderr, after some seconds, that the command is waiting, unless --json is given. The caller must call end before
// it prints. Not safe for concurrent use.
func (o *Options) Waiting(step string) (end func()) {
	if o.JSON {
		return func() {}
	}
	if o.waiting == nil {
		o.waiting = NewProgress(os.Stderr, func() string { return *o.step.Load() })
	}
	o.step.Store(&step)
	return o.waiting.Begin()
}

// QuietClient is Client for commands that write on the whole terminal, or show their progress themselves.
func (o *Options) QuietClient() (*api.Client, error) {
	cfg, err := o.loadForClient()
	if err != nil {
		return nil, err
	}
	key, err := apiKey(cfg)
	if errors.Is(err, os.ErrNotExist) {
		if absent := o.newClient(cfg, "").Listens(); absent != nil {
			return nil, absent // there is no key before the first start
		}
	}
	if (errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist)) && os.Geteuid() != 0 && opensSocket(o.address(cfg)) {
		return o.newClient(cfg, ""), nil
	}
	if err != nil {
		return nil, noKey(err)
	}
	return o.newClient(cfg, key), nil
}

// newClient makes a client of the configured or given address. At an address over TLS it trusts the roots of the system, and at the
// configured one the configured certificate instead, which may be no root's and for other names.
func (o *Options) newClient(cfg config.Config, key string) *api.Client {
	client := api.NewClient(o.address(cfg), key)
	if data, err := os.ReadFile(cfg.Admin.TLS.Cert); o.Admin == "" && cfg.Admin.Socket == "" && err == nil {
		client.TrustCertificate(data)
	}
	return client
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
		return cfg.Admin.URL()
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

// Render prints an answer of the admin API for people.
type Render func(io.Writer, json.RawMessage) error

// Call makes one request and prints the answer: the JSON itself with --json, else as rendered by render.
func (o *Options) Call(cmd *cobra.Command, method, path string, in any, render Render) error {
	client, err := o.Client()
	if err != nil {
		return err
	}
	var answer json.RawMessage
	if err := client.Do(cmd.Context(), method, path, in, &answer); err != nil {
		return err
	}
	return o.Show(cmd, answer, render)
}

// NameTaken extends a 409 for the name of a new box. If an existing box has the name, the error explains how to free or
// find it.
func NameTaken(ctx context.Context, client *api.Client, name string, err error) error {
	refused, ok := errors.AsType[*api.ResponseError](err)
	if !ok || refused.Status != http.StatusConflict || name == "" {
		return err
	}
	var box struct{ Name, Status string }
	switch {
	case client.Get(ctx, api.BoxPath(name), &box) != nil || box.Name != name:
		return err
	case box.Status == string(api.StatusGone):
		return fmt.Errorf("%w, and its sandbox has ended: `gateway box detach %s` frees the name, `gateway box reattach %s` goes on with the box", err, name, name)
	}
	return fmt.Errorf("%w; see `gateway box get %s`, and choose another --name", err, name)
}

// Show prints an answer like [Options.Call].
func (o *Options) Show(cmd *cobra.Command, answer json.RawMessage, render Render) error {
	if o.JSON {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), string(answer))
		return err
	}
	return render(cmd.OutOrStdout(), answer)
}

// Decoded makes a [Render] from a function that prints a type.
func Decoded[T any](render func(io.Writer, T) error) Render {
	return func(w io.Writer, data json.RawMessage) error {
		var v T
		if err := json.Unmarshal(data, &v); err != nil {
			return fmt.Errorf("cannot parse the gateway's answer: %w", err)
		}
		return render(w, v)
	}
}

// Silent is a [Render] without output.
func Silent(io.Writer, json.RawMessage) error { return nil }

// Indented is a [Render] that prints the JSON itself, indented. Characters that a terminal interprets, which JSON may contain, are escaped.
func Indented(w io.Writer, data json.RawMessage) error {
	out, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, Prose(string(out)))
	return err
}

// Interruptible returns a context that the first SIGINT or SIGTERM cancels, with an [Interrupted] as the cause. A second one ends
// the process immediately. stop releases the signal handlers.
func Interruptible() (ctx context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			number, _ := s.(syscall.Signal)
			signal.Stop(signals)
			cancel(Interrupted{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// Interrupted is the cause of a context that a signal has cancelled.
type Interrupted struct{ Signal syscall.Signal }

// Error implements error.
func (i Interrupted) Error() string { return "interrupted" }

// Is makes errors.Is report a cancellation, since net/http returns the cause of a cancelled context.
func (Interrupted) Is(target error) bool { return target == context.Canceled }

// Status returns the exit status of a command that the signal ended: 130 for SIGINT.
func (i Interrupted) Status() int { return 128 + int(i.Signal) }

// AfterSignal returns the error of a command that ended after its context was cancelled by a signal: one that only reports the
// cancellation becomes the exit status of the signal, without a message.
func AfterSignal(ctx context.Context, err error) error {
	by, ok := errors.AsType[Interrupted](context.Cause(ctx))
	if !ok || !errors.Is(err, context.Canceled) {
		return err
	}
	if _, own := errors.AsType[StatusError](err); own {
		return err
	}
	return CommandExit{Status: by.Status()}
}
