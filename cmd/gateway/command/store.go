package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/host/keys"
	"boxgate/policy/name"
	"boxgate/store"
)

func newStoreBackupCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a copy of the store to a new file; also keep the key file or the passphrase, in another place",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			end := o.Waiting("copying the store")
			n, err := writeNew(args[0], func(w io.Writer) (int64, error) { return backupTo(cmd, o, w) })
			end()
			if err != nil {
				return err
			}
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"file": args[0], "bytes": n})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The store is in %s (%d bytes), encrypted as it was. It can only be used with secret.key of the state directory, or the passphrase: keep that in another place.\n", args[0], n)
			return err
		},
	}
}

// backupTo copies the store through the running gateway, or directly if the gateway is not running.
func backupTo(cmd *cobra.Command, o *cli.Options, w io.Writer) (n int64, err error) {
	cfg, err := o.Load()
	if err != nil {
		return 0, err
	}
	if o.Admin == "" {
		err := onClosedStore(cfg, name.Secret{}, func(db *store.DB) error { n, err = db.Backup(w); return err })
		if err == nil || !errors.Is(err, store.ErrInUse) {
			return n, err
		}
	}
	client, err := o.Client()
	if err != nil {
		return 0, err
	}
	answer, err := client.Stream(cmd.Context(), http.MethodGet, "/v2/store/backup", "", nil)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if n, err = io.Copy(w, answer.Body); err != nil {
		return n, fmt.Errorf("the gateway cut the copy off: %w; its log says why", err)
	}
	return n, nil
}

// writeNew creates a file that only its owner can read. The file appears complete or not at all; an existing one is not
// replaced.
func writeNew(path string, write func(io.Writer) (int64, error)) (n int64, err error) {
	if _, err := os.Lstat(path); err == nil {
		return 0, fmt.Errorf("%s exists already; name a new file", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return 0, cli.WriteError(path, err)
	}
	defer os.Remove(f.Name())
	n, err = write(f)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return n, cli.WriteError(path, err)
	}
	if err := os.Link(f.Name(), path); err != nil { // fails if the file was created in the meantime
		return n, fmt.Errorf("%s cannot be written; name a new file on the same disk", path)
	}
	return n, nil
}

func newStoreRestoreCommand(o *cli.Options) *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the store by a backup while the gateway is stopped; makes a new API key and revokes the others",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := o.Load()
			if err != nil {
				return err
			}
			if _, err := os.Stat(args[0]); err != nil {
				return cli.FileError(err)
			}
			end := o.Waiting("checking and restoring the backup")
			r, err := store.Restore(store.RestoreOptions{
				Dir: cfg.StateDir, From: args[0], KeepAPIKeys: keep, By: localUser(), Passphrase: name.NewSecret(os.Getenv(config.PassphraseVariable)),
			})
			end()
			if err != nil {
				return fmt.Errorf("nothing was changed: %w", err)
			}
			if len(r.Problems) > 0 {
				return fmt.Errorf("nothing was changed, because the backup is damaged: %s", r.Problems[0])
			}
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), r)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The store was restored from the backup (%s). Start the gateway: it writes a new API key to %s. The previous store is %s.\n",
				cli.Count(r.Documents, "document", "documents"), filepath.Join(cfg.StateDir, "api-key"), filepath.Join(cfg.StateDir, store.ReplacedFile))
			if err == nil && r.HistoryLost {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "The history of policies since the backup could not be read from the previous store; the next versions have much higher numbers.")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&keep, "keep-api-keys", false, "keep the named API keys of the backup, even if they were revoked since")
	return cmd
}

// localUser returns the user of the command, and the user who became root by sudo.
func localUser() string {
	user := "unix, " + api.Peer{UID: os.Getuid()}.String()
	if by := os.Getenv("SUDO_USER"); by != "" && os.Getuid() == 0 {
		user += ", sudo by " + by
	}
	return user
}

func newStoreVerifyCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Read every document of the store, and list those that cannot be decoded or decrypted",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := o.Load()
			if err != nil {
				return err
			}
			var r api.StoreReport
			say := func(w io.Writer, r api.StoreReport) error {
				for _, p := range r.Problems {
					fmt.Fprintln(w, p)
				}
				_, err := fmt.Fprintf(w, "%s, %s\n", cli.Count(r.Documents, "document", "documents"), cli.Count(len(r.Problems), "problem", "problems"))
				return err
			}
			err = store.ErrInUse
			if o.Admin == "" {
				end := o.Waiting("reading the store")
				err = onClosedStore(cfg, name.Secret{}, func(db *store.DB) error {
					found, err := db.Verify()
					r = api.StoreReport{Documents: found.Documents, Problems: found.Problems}
					return err
				})
				end()
			}
			switch {
			case errors.Is(err, store.ErrInUse):
				err = o.Call(cmd, "GET", "/v2/store/verify", nil, cli.Decoded(func(w io.Writer, found api.StoreReport) error { r = found; return say(w, r) }))
			case err == nil && o.JSON:
				err = cli.WriteJSON(cmd.OutOrStdout(), r)
			case err == nil:
				err = say(cmd.OutOrStdout(), r)
			}
			if err == nil && len(r.Problems) > 0 {
				return errors.New("the store is damaged: restore a backup (gateway store restore)")
			}
			return err
		},
	}
}

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
		end := o.Waiting("encrypting the store")
		err := c.direct(cfg)
		end()
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
