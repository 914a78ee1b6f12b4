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

	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/host/keys"
	"boxgate/policy/name"
	"boxgate/store"
)

// newStoreCommand is `gateway store`.
func newStoreCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("store", "Manage the store: back it up, restore it, verify it, change its key")
	var fromStdin bool
	rotate := &cobra.Command{
		Use:   "rotate-key",
		Short: "Encrypt the secrets of the store with a new key file, or with the passphrase in " + config.NewPassphraseVariable,
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			next, err := newPassphrase(fromStdin, cmd.InOrStdin())
			if err != nil {
				return err
			}
			return changeKeys(cmd, o, storeKeyChange(next))
		},
	}
	rotate.Flags().BoolVar(&fromStdin, "passphrase-stdin", false, "read the new passphrase from standard input")
	cmd.AddCommand(rotate, newStoreBackupCommand(o), newStoreRestoreCommand(o), newStoreVerifyCommand(o))
	return cmd
}

func storeKeyChange(next name.Secret) keyChange {
	body := map[string]string{}
	if next.Reveal() != "" {
		body["new_passphrase"] = next.Reveal()
	}
	return keyChange{
		path: "/v2/store/rotate-key", body: body,
		direct: func(cfg config.Config) error { return rotateClosedStore(cfg, next) },
		print:  func(w io.Writer, cfg config.Config) error { return printStoreKey(w, cfg, next) },
	}
}

// newPassphrase returns the new passphrase given to the command, or an empty one.
func newPassphrase(fromStdin bool, stdin io.Reader) (name.Secret, error) {
	text := os.Getenv(config.NewPassphraseVariable)
	if fromStdin {
		data, err := io.ReadAll(io.LimitReader(stdin, 4096))
		if err != nil {
			return name.Secret{}, fmt.Errorf("reading the new passphrase: %w", err)
		}
		if text = string(bytes.TrimSuffix(bytes.TrimSuffix(data, []byte("\n")), []byte("\r"))); text == "" {
			return name.Secret{}, errors.New("no new passphrase on standard input")
		}
	}
	next := name.NewSecret(text)
	return next, keys.CheckPassphrase(next)
}

func printStoreKey(w io.Writer, cfg config.Config, next name.Secret) error {
	message := fmt.Sprintf("The secrets of the store are now encrypted with the new key in %s. Update your backup of it.\n", filepath.Join(cfg.StateDir, store.KeyFileName))
	if next.Reveal() != "" {
		message = fmt.Sprintf("The secrets of the store are now encrypted with the new passphrase. From now on, start the gateway with it in %s.\n", config.PassphraseVariable)
	}
	_, err := io.WriteString(w, message)
	return err
}

func apiKeyChange(grace time.Duration) keyChange {
	return keyChange{
		path: "/v2/api-key/rotate", body: map[string]string{"grace": grace.String()},
		direct: func(cfg config.Config) error {
			return onClosedStore(cfg, name.Secret{}, func(db *store.DB) error { return db.Keys.Rotate(grace) })
		},
		print: func(w io.Writer, cfg config.Config) error {
			_, err := fmt.Fprintf(w, "The new API key is in %s.\n", filepath.Join(cfg.StateDir, "api-key"))
			return err
		},
	}
}

// keyChange is a change of keys, made by a request to a running gateway or directly in its store.
type keyChange struct {
	path   string // of the API request
	body   map[string]string
	direct func(config.Config) error            // changes the store when no gateway has it open
	print  func(io.Writer, config.Config) error // prints where the new key is
}

// changeKeys changes keys through the running gateway, recognized by its lock on the store, or else directly in the
// store. With --admin, it uses the gateway at that address.
func changeKeys(cmd *cobra.Command, o *cli.Options, c keyChange) error {
	cfg, err := o.Load()
	if err != nil {
		return err
	}
	if o.Admin == "" {
		err := c.direct(cfg)
		if err == nil {
			return c.answer(cmd, o, cfg)
		}
		if !errors.Is(err, store.ErrInUse) {
			return err
		}
	}
	return o.Call(cmd, "POST", c.path, c.body, func(w io.Writer, _ json.RawMessage) error { return c.print(w, cfg) })
}

// answer prints that the store was changed, in the format of the gateway's answer.
func (c keyChange) answer(cmd *cobra.Command, o *cli.Options, cfg config.Config) error {
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), map[string]bool{"ok": true})
	}
	return c.print(cmd.OutOrStdout(), cfg)
}

// rotateClosedStore changes the key of a store that no gateway has open. Opening the store a second time rewrites the
// file, so that it contains no data encrypted with the old key.
func rotateClosedStore(cfg config.Config, next name.Secret) error {
	err := onClosedStore(cfg, name.Secret{}, func(db *store.DB) error { return db.RotateKey(next) })
	if errors.Is(err, store.ErrPassphrase) {
		return fmt.Errorf("%w (in %s, or with --passphrase-stdin)", err, config.NewPassphraseVariable)
	}
	if err != nil {
		return err
	}
	return onClosedStore(cfg, next, func(*store.DB) error { return nil })
}

// onClosedStore opens the existing store of a gateway that is not running. An empty passphrase stands for the one in the
// environment.
func onClosedStore(cfg config.Config, passphrase name.Secret, do func(*store.DB) error) error {
	_, err := os.Stat(filepath.Join(cfg.StateDir, store.FileName))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("there is no store in %s: it is made at the first `gateway serve`; is --config the configuration of the gateway?", cfg.StateDir)
	}
	if err != nil {
		return cli.FileError(err)
	}
	db, err := store.Open(store.Options{
		Dir: cfg.StateDir, PassphraseEnv: config.PassphraseVariable, Passphrase: passphrase, LockTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	return errors.Join(do(db), db.Close())
}
