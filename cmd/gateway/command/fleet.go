package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/fleet"
	"boxgate/fleet/pki"
	"boxgate/fleet/roster"
	"boxgate/host/peerapi"
	"boxgate/policy/name"
	"boxgate/store"
)

// fleetTimeout bounds the requests of a command to etcd.
const fleetTimeout = 10 * time.Second

// fleetWord is the request for a token on the control socket.
const fleetWord = "fleet token"

// newFleetCommand is `gateway fleet`.
func newFleetCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("fleet", "Found, join and show a fleet of hosts")
	cmd.AddCommand(newFleetInitCommand(o), newFleetTokenCommand(o), newFleetJoinCommand(o), newFleetLeaveCommand(o), newFleetStatusCommand(o),
		newFleetCordonCommand(o, true), newFleetCordonCommand(o, false), newFleetDrainCommand(o))
	return cmd
}

// onFleet calls do with the configured fleet.
func onFleet(cmd *cobra.Command, o *cli.Options, do func(context.Context, config.Config, roster.Roster) error) error {
	cfg, err := o.Load()
	if err != nil {
		return err
	}
	c := cfg.Fleet
	if !c.Enabled() {
		return errors.New("no fleet is configured: set fleet.name and fleet.endpoints")
	}
	access := fleet.Access{Endpoints: c.Endpoints, CAFile: c.TLS.CAFile, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile}
	client, err := fleet.Dial(access)
	if err != nil {
		return err
	}
	defer client.Close()
	return access.Explain(cmd.Context(), do(cmd.Context(), cfg, roster.Roster{Client: client, Name: c.Name}))
}

// onMembership calls do with the store of a gateway that is not running, which it makes at the first call.
func onMembership(cfg config.Config, do func(*store.DB) error) error {
	db, err := store.Open(store.Options{Dir: cfg.StateDir, PassphraseEnv: config.PassphraseVariable, LockTimeout: 100 * time.Millisecond})
	if errors.Is(err, store.ErrInUse) {
		return errors.New("the gateway is running: stop it first (systemctl stop boxgate); its boxes go on")
	}
	if err != nil {
		return err
	}
	return errors.Join(do(db), db.Close())
}

// become makes this host a member by a call of the roster, and prints the result.
func become(cmd *cobra.Command, o *cli.Options, call func(context.Context, roster.Roster, roster.Machine) (fleet.Identity, error), message string) error {
	return onFleet(cmd, o, func(ctx context.Context, cfg config.Config, r roster.Roster) error {
		ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
		defer cancel()
		var id fleet.Identity
		err := onMembership(cfg, func(db *store.DB) (err error) {
			id, err = joinWith(ctx, db, r, call)
			return err
		})
		if err != nil {
			return err
		}
		if o.JSON {
			return cli.WriteJSON(cmd.OutOrStdout(), map[string]string{"fleet": id.Fleet, "host": id.Host})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), message, id.Host, id.Fleet)
		return err
	})
}

// joinWith keeps the membership in the store before etcd is changed, and forgets it if etcd refuses.
func joinWith(ctx context.Context, db *store.DB, r roster.Roster, call func(context.Context, roster.Roster, roster.Machine) (fleet.Identity, error)) (fleet.Identity, error) {
	known, err := membership(db)
	if err != nil {
		return fleet.Identity{}, err
	}
	if known.Host != "" {
		is, err := (roster.Roster{Client: r.Client, Name: known.Fleet}).IsMember(ctx, known)
		if err != nil {
			return fleet.Identity{}, err
		}
		if is {
			return fleet.Identity{}, fmt.Errorf("this host (%s) is a member of the fleet %q already", known.Host, known.Fleet)
		}
	}
	host, err := db.Installation.HostID()
	if err != nil {
		return fleet.Identity{}, err
	}
	machine, _ := os.Hostname()
	id, err := call(ctx, r, roster.Machine{ID: host, Name: machine, Keep: func(id fleet.Identity) error {
		text, err := fleet.Encode(id)
		if err != nil {
			return err
		}
		return db.Installation.SetFleet(name.NewSecret(text))
	}})
	if err != nil && !errors.Is(err, fleet.ErrUnreachable) {
		err = errors.Join(err, db.Installation.SetFleet(name.Secret{}))
	}
	return id, err
}

// membership returns the membership in a store, the zero value without one.
func membership(db *store.DB) (fleet.Identity, error) {
	text, err := db.Installation.Fleet()
	if err != nil || text.Reveal() == "" {
		return fleet.Identity{}, err
	}
	return fleet.Decode[fleet.Identity]([]byte(text.Reveal()))
}

func newFleetInitCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "init", Short: "Found the configured fleet, with this host as its first member; the gateway must be stopped", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return become(cmd, o, func(ctx context.Context, r roster.Roster, m roster.Machine) (fleet.Identity, error) {
				return r.Init(ctx, m)
			},
				"This host (%s) has founded the fleet %q. Start the gateway; for each further host: gateway fleet token\n")
		},
	}
}

func newFleetJoinCommand(o *cli.Options) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "join --token-file FILE", Short: "Join the configured fleet with a token of a member; the gateway must be stopped", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return cli.Usagef("--token-file is missing: the file with the token, or - for standard input; `gateway fleet token` on a member prints one")
			}
			text, err := readKeyFile(cmd, file)
			if err != nil {
				return cli.FileError(err)
			}
			token, err := pki.ParseToken(text)
			if err != nil {
				return err
			}
			return become(cmd, o, func(ctx context.Context, r roster.Roster, m roster.Machine) (fleet.Identity, error) {
				return r.Join(ctx, m, token)
			},
				"This host (%s) is a member of the fleet %q. Start the gateway.\n")
		},
	}
	cmd.Flags().StringVar(&file, "token-file", "", "the file with the token; -: standard input")
	return cmd
}

func newFleetTokenCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "token", Short: "Make a token for one host to join the fleet within an hour", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onFleet(cmd, o, func(ctx context.Context, cfg config.Config, r roster.Roster) error {
				token, err := fleetToken(ctx, cmd, o, cfg, r)
				if err != nil {
					return err
				}
				if o.JSON {
					return cli.WriteJSON(cmd.OutOrStdout(), map[string]string{"token": token})
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
				return err
			})
		},
	}
}

// fleetToken asks the running gateway for a token, or makes one with the store of a gateway that is not running.
func fleetToken(ctx context.Context, cmd *cobra.Command, o *cli.Options, cfg config.Config, r roster.Roster) (token string, err error) {
	if store.InUse(cfg.StateDir) {
		err = ask(cmd, o, "waiting for the token", fleetWord, &token)
		return token, err
	}
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	err = onMembership(cfg, func(db *store.DB) error {
		id, err := membership(db)
		if err != nil {
			return err
		}
		if id.Host == "" {
			return errors.New("this host is not a member of a fleet: gateway fleet init, or gateway fleet join")
		}
		text, err := r.Token(ctx, id)
		token = text.Reveal()
		return err
	})
	return token, err
}

func newFleetLeaveCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "leave [ID]", Short: "End the membership of this host, whose gateway must be stopped, or of the host with an ID", Args: cli.MaxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onFleet(cmd, o, func(ctx context.Context, cfg config.Config, r roster.Roster) error {
				ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
				defer cancel()
				if len(args) > 0 {
					if err := fleet.CheckHost(args[0]); err != nil {
						return err
					}
					return fleetDone(cmd, o, args[0], r.Leave(ctx, args[0]), "Host %s is not a member any longer. Withdraw its certificate for etcd, too.\n")
				}
				return onMembership(cfg, func(db *store.DB) error {
					id, err := membership(db)
					if err != nil {
						return err
					}
					if id.Host == "" {
						return errors.New("this host is not a member of a fleet")
					}
					err = (roster.Roster{Client: r.Client, Name: id.Fleet}).LeaveStopped(ctx, id)
					if err == nil || errors.Is(err, roster.ErrNotMember) {
						err = db.Installation.SetFleet(name.Secret{})
					}
					return fleetDone(cmd, o, id.Host, err, "This host (%s) has left the fleet. Remove fleet from its configuration before the gateway starts.\n")
				})
			})
		},
	}
}

// fleetDone prints the result of a change to one host.
func fleetDone(cmd *cobra.Command, o *cli.Options, id string, err error, message string) error {
	if err != nil {
		return err
	}
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), map[string]string{"host": id})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), message, id)
	return err
}

func newFleetCordonCommand(o *cli.Options, cordon bool) *cobra.Command {
	use, short, message := "cordon ID", "Have a host make no new boxes", "Host %s makes no new boxes. To end that: gateway fleet uncordon %[1]s\n"
	if !cordon {
		use, short, message = "uncordon ID", "Have a host make new boxes again", "Host %s makes new boxes again.\n"
	}
	return &cobra.Command{
		Use: use, Short: short, Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onFleet(cmd, o, func(ctx context.Context, _ config.Config, r roster.Roster) error {
				if err := fleet.CheckHost(args[0]); err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
				defer cancel()
				return fleetDone(cmd, o, args[0], r.Cordon(ctx, args[0], cordon), message)
			})
		},
	}
}

func newFleetDrainCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "drain ID", Short: "Have a host make no new boxes, and wait until it has no boxes", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onFleet(cmd, o, func(ctx context.Context, _ config.Config, r roster.Roster) error {
				id := args[0]
				if err := fleet.CheckHost(id); err != nil {
					return err
				}
				call, cancel := context.WithTimeout(ctx, fleetTimeout)
				err := r.Cordon(call, id, true)
				cancel()
				if err != nil {
					return err
				}
				end := o.Waiting("waiting until host " + id + " has no boxes")
				err = awaitDrained(ctx, r, id)
				end()
				return fleetDone(cmd, o, id, err, "Host %s has no boxes and makes no new ones.\n")
			})
		},
	}
}

// drainPoll is the time between two looks at a host that is drained. Hosts report no more often.
const drainPoll = 2 * time.Second

// awaitDrained waits until a cordoned host has no boxes.
func awaitDrained(ctx context.Context, r roster.Roster, id string) error {
	for {
		call, cancel := context.WithTimeout(ctx, fleetTimeout)
		m, err := r.Member(call, id)
		cancel()
		switch {
		case err != nil:
			return err
		case m.Problem != "":
			return fmt.Errorf("host %s: %s", id, audit.Escape(m.Problem, 200))
		case !m.Present:
			return fmt.Errorf("the gateway of host %s is not running, so the number of its boxes is not known; it stays cordoned", id)
		case !m.Cordoned:
			return fmt.Errorf("host %s was uncordoned", id)
		case m.Drained:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(drainPoll):
		}
	}
}

func newFleetStatusCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "List the hosts of the fleet, with their boxes, versions and states", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onFleet(cmd, o, func(ctx context.Context, cfg config.Config, r roster.Roster) error {
				ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
				defer cancel()
				own := ownStatus(ctx, cfg)
				state, err := r.State(ctx)
				if err != nil {
					return errors.Join(err, printOwn(cmd.ErrOrStderr(), own, 0))
				}
				if o.JSON {
					return cli.WriteJSON(cmd.OutOrStdout(), peerapi.View(state, own))
				}
				if err := printFleet(cmd.OutOrStdout(), state); err != nil {
					return err
				}
				return printOwn(cmd.OutOrStdout(), own, state.Revision)
			})
		},
	}
}

// printFleet prints the hosts of a fleet. Names and versions come from other hosts.
func printFleet(w io.Writer, s roster.State) error {
	rows := [][]string{{"ID", "NAME", "STATE", "BOXES", "VERSION", "SINCE"}}
	for _, h := range s.Hosts {
		state, boxes := h.Condition(), strconv.Itoa(h.Boxes)
		if h.Problem != "" || !h.Present {
			boxes = "-"
		}
		rows = append(rows, []string{audit.Escape(h.ID, 16), textOrDash(audit.Escape(h.Name, 64)), state, boxes, textOrDash(audit.Escape(h.Version, 64)), timeOrDash(h.Since)})
	}
	return cli.Table(w, rows...)
}
