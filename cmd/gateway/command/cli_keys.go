package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"boxgate/config"
	"boxgate/host"
	"boxgate/policy"
	"boxgate/store"
)

// newStoreCommand is `gateway store`.
func newStoreCommand(o *globalOptions) *cobra.Command {
	cmd := group("store", "Manage the store")
	var fromStdin bool
	rotate := &cobra.Command{
		Use:   "rotate-key",
		Short: "Encrypt the secrets of the store with a new key file, or with the passphrase in " + config.NewPassphraseVariable,
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			next, err := newPassphrase(fromStdin, cmd.InOrStdin())
			if err != nil {
				return err
			}
			body := map[string]string{}
			if next.Reveal() != "" {
				body["new_passphrase"] = next.Reveal()
			}
			return o.changeKeys(cmd, "/v2/store/rotate-key", body, func(cfg config.Config) error { return rotateClosedStore(cfg, next) },
				func(w io.Writer, cfg config.Config) error { return sayStoreKey(w, cfg, next) })
		},
	}
	rotate.Flags().BoolVar(&fromStdin, "passphrase-stdin", false, "read the new passphrase from standard input")
	cmd.AddCommand(rotate)
	return cmd
}

// newPassphrase returns the new passphrase given to the command; empty if none.
func newPassphrase(fromStdin bool, stdin io.Reader) (policy.Secret, error) {
	text := os.Getenv(config.NewPassphraseVariable)
	if fromStdin {
		data, err := io.ReadAll(io.LimitReader(stdin, 4096))
		if err != nil {
			return policy.Secret{}, fmt.Errorf("reading the new passphrase: %w", err)
		}
		if text = string(bytes.TrimSuffix(bytes.TrimSuffix(data, []byte("\n")), []byte("\r"))); text == "" {
			return policy.Secret{}, errors.New("no new passphrase on standard input")
		}
	}
	next := policy.NewSecret(text)
	return next, host.CheckPassphrase(next)
}

func sayStoreKey(w io.Writer, cfg config.Config, next policy.Secret) error {
	said := fmt.Sprintf("The secrets of the store are now encrypted with the new key in %s. Update your backup of it.\n", filepath.Join(cfg.StateDir, "secret.key"))
	if next.Reveal() != "" {
		said = fmt.Sprintf("The secrets of the store are now encrypted with the new passphrase. From now on, start the gateway with it in %s.\n", config.PassphraseVariable)
	}
	_, err := io.WriteString(w, said)
	return err
}

// newAPIKeyCommand is `gateway api-key`.
func newAPIKeyCommand(o *globalOptions) *cobra.Command {
	cmd := group("api-key", "Manage the key of the admin API")
	var grace time.Duration
	rotate := &cobra.Command{
		Use:   "rotate",
		Short: "Make a new API key, write it to {state_dir}/api-key, and revoke earlier ones",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if grace < 0 || grace > 30*24*time.Hour {
				return usageError{errors.New("--grace must be from 0s to 720h")}
			}
			return o.changeKeys(cmd, "/v2/api-key/rotate", map[string]string{"grace": grace.String()},
				func(cfg config.Config) error {
					return onClosedStore(cfg, policy.Secret{}, func(db *store.DB) error { return db.RotateAPIKey(grace) })
				},
				func(w io.Writer, cfg config.Config) error {
					_, err := fmt.Fprintf(w, "The new API key is in %s.\n", filepath.Join(cfg.StateDir, "api-key"))
					return err
				})
		},
	}
	rotate.Flags().DurationVar(&grace, "grace", 0, "how long earlier keys go on working")
	cmd.AddCommand(rotate)
	return cmd
}

// changeKeys changes keys through the gateway if one is running, that is, has the store open, else in the store itself.
// With --admin it uses the gateway there.
func (o *globalOptions) changeKeys(cmd *cobra.Command, path string, body any, direct func(config.Config) error, say func(io.Writer, config.Config) error) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	if o.admin == "" {
		err := direct(cfg)
		if err == nil {
			return o.answered(cmd, cfg, say)
		}
		if !errors.Is(err, store.ErrInUse) {
			return err
		}
	}
	return o.call(cmd, "POST", path, body, func(w io.Writer, _ json.RawMessage) error { return say(w, cfg) })
}

func (o *globalOptions) answered(cmd *cobra.Command, cfg config.Config, say func(io.Writer, config.Config) error) error {
	if o.json {
		return writeJSON(cmd.OutOrStdout(), map[string]bool{"ok": true})
	}
	return say(cmd.OutOrStdout(), cfg)
}

// rotateClosedStore changes the key of a store that no gateway has open. Opening it a second time rewrites the file
// without data encrypted with the old key.
func rotateClosedStore(cfg config.Config, next policy.Secret) error {
	err := onClosedStore(cfg, policy.Secret{}, func(db *store.DB) error { return db.RotateKey(next) })
	if errors.Is(err, store.ErrPassphrase) {
		return fmt.Errorf("%w (in %s, or with --passphrase-stdin)", err, config.NewPassphraseVariable)
	}
	if err != nil {
		return err
	}
	return onClosedStore(cfg, next, func(*store.DB) error { return nil })
}

// onClosedStore opens the store of a gateway that is not running, if it exists. The passphrase is that of the
// environment unless one is given.
func onClosedStore(cfg config.Config, passphrase policy.Secret, do func(*store.DB) error) error {
	if _, err := os.Stat(filepath.Join(cfg.StateDir, "boxgate.db")); err != nil {
		return fmt.Errorf("there is no store to change: %w", err)
	}
	db, err := store.Open(store.Options{
		Dir: cfg.StateDir, PassphraseEnv: config.PassphraseVariable, Passphrase: passphrase, LockTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	return errors.Join(do(db), db.Close())
}
